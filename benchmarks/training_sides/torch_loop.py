"""A training loop of PyTorch."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from training_sides.batches import Batch
from training_sides.devices import allow_tf32, gpu_name, torch_device
from training_sides.setting import Setting, Train

AUTOCAST = {"mixed_bfloat16": torch.bfloat16}


def smoothed_cross_entropy(
    logits_of: Callable[..., torch.Tensor], setting: Setting
) -> Callable[..., torch.Tensor]:
    dtype = AUTOCAST.get(setting.dtype)
    device = torch_device()
    is_mixed = gpu_name() is not None and dtype is not None

    def loss_of(
        sources: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        with torch.autocast(device, dtype, enabled=is_mixed):
            return nn.functional.cross_entropy(
                logits_of(sources, inputs).flatten(0, 1),
                targets.flatten(),
                ignore_index=0,
                label_smoothing=setting.label_smoothing,
            )

    return loss_of


def loop(loss_of: Callable[..., torch.Tensor], model: nn.Module) -> Train:
    allow_tf32()
    model.to(torch_device())
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )

    def train(batches: list[Batch], done: Callable[[], None]) -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(*map(as_tensor, vars(batch).values()))
            loss.backward()
            optimizer.step()
            if gpu_name() is None:
                loss.item()
            done()

    return train


def as_tensor(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(ids).to(torch_device()).long()
