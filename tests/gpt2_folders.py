"""Random GPT-2 models of transformers, and folders of them."""

import json

import torch
from transformers import GPT2Config, GPT2LMHeadModel

END = 46


def random_model(**options):
    settings = {"vocab_size": 47, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ids = {"n_positions": 20, "bos_token_id": END, "eos_token_id": END}
    model = GPT2LMHeadModel(GPT2Config(**{**settings, **ids, **options})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = 0.2 * torch.randn(weight.shape, generator=generator)
            is_scale = "ln_" in name and name.endswith("weight")
            weight.copy_(noise + is_scale)
    return model


def write_tokenizer(folder, settings):
    tokens = [*"abdegmnostw", "Ġ", "Ġm", "an", "Ġman", "Ġs", "Ġse", "Ġsee", "so"]
    tokens = [*tokens, "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = ["Ġ m", "a n", "Ġm an", "Ġ s", "Ġs e", "Ġse e", "s o"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    text = "\n".join(["#version: 0.2", *merges, ""])
    (folder / "merges.txt").write_text(text, "utf-8")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, **settings(len(tokens))}))
    return vocabulary
