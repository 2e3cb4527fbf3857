"""Hugging Face's Marian with random weights, trained by a PyTorch loop."""

import torch
from transformers import MarianConfig, MarianMTModel

from training_sides.setting import Setting, Train
from training_sides.torch_loop import loop, smoothed_cross_entropy


def make_model(size: dict[str, int], vocabulary_size: int, **options) -> MarianMTModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary_size,
            d_model=size["hidden_dim"],
            encoder_layers=size["num_layers"],
            decoder_layers=size["num_layers"],
            encoder_attention_heads=size["num_heads"],
            decoder_attention_heads=size["num_heads"],
            encoder_ffn_dim=size["intermediate_dim"],
            decoder_ffn_dim=size["intermediate_dim"],
            activation_function="relu",
            max_position_embeddings=512,
            scale_embedding=True,
            pad_token_id=0,
            decoder_start_token_id=2,
            eos_token_id=3,
            forced_eos_token_id=None,
            **options,
        )
    )


def build(setting: Setting, compiled: bool = False) -> Train:
    model = make_model(
        setting.dimensions,
        setting.vocabulary_size,
        dropout=setting.dropout,
        attention_dropout=setting.dropout,
        use_cache=False,
    )

    def logits_of(sources: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        outputs = model(
            input_ids=sources, attention_mask=sources != 0, decoder_input_ids=inputs
        )
        return outputs.logits

    loss_of = smoothed_cross_entropy(logits_of, setting)
    return loop(torch.compile(loss_of) if compiled else loss_of, model)
