"""`nn.Transformer`, trained by a PyTorch loop."""

import math

import torch
from torch import nn

from training_sides.setting import Setting, Train
from training_sides.torch_loop import loop, smoothed_cross_entropy


def build(setting: Setting, compiled: bool = False) -> Train:
    model = TorchTransformer(setting)
    loss_of = smoothed_cross_entropy(model, setting)
    return loop(torch.compile(loss_of) if compiled else loss_of, model)


class TorchTransformer(nn.Module):
    """`nn.Transformer` with tied embeddings and output."""

    def __init__(self, setting: Setting):
        super().__init__()
        dimensions = setting.dimensions
        self.width = dimensions["hidden_dim"]
        self.embedding = nn.Embedding(setting.vocabulary_size, self.width)
        nn.init.normal_(self.embedding.weight, std=self.width**-0.5)
        self.register_buffer("positions", sinusoids(512, self.width))
        self.dropout = nn.Dropout(setting.dropout)
        self.transformer = nn.Transformer(
            d_model=self.width,
            nhead=dimensions["num_heads"],
            num_encoder_layers=dimensions["num_layers"],
            num_decoder_layers=dimensions["num_layers"],
            dim_feedforward=dimensions["intermediate_dim"],
            dropout=setting.dropout,
            batch_first=True,
            norm_first=True,
        )

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        length = targets.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        padding = sources == 0
        decoded = self.transformer(
            self.embed(sources),
            self.embed(targets),
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return decoded @ self.embedding.weight.T

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token_ids) * math.sqrt(self.width)
        return self.dropout(x + self.positions[: token_ids.shape[1]])


def sinusoids(length: int, width: int) -> torch.Tensor:
    angles = torch.arange(length)[:, None] / 10000 ** (
        torch.arange(0, width, 2) / width
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
