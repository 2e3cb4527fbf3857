"""Trains a character model of tinyshakespeare, beside a plain PyTorch loop.

The design and the budget are those that nanoGPT's README gives for a processor: 4
blocks of width 128 with 4 heads, a context of 64 characters, 2,000 steps of 12 windows,
no dropout, AdamW with a rate of 1e-3 that falls to 1e-4. The first 90 % of the text are
for training. The loss is a mean over the whole rest of the text, in windows of 64
without overlap, in nats per character; nanoGPT reports 1.88 from 20 batches.

Ours trains with `fit` on `text_dataset`; the peer is a loop over random windows with
`torch.nn` and `scaled_dot_product_attention`. Each side runs in its own process. Steps
per second are those after the first 100, so without compilation, whose seconds have a
column of their own. The side `ours-tensorflow-xla` has `compile(jit_compile=True)`.
`--design plain` has rotary positions and otherwise the blocks of Vaswani et al., before
their normalisations; `--design modern` has also SwiGLU, RMSNorm and no biases, with as
many parameters.

    python benchmarks/language_model.py --text input.txt
    python benchmarks/language_model.py --text input.txt --design modern --side ours-jax
"""

import argparse
import pathlib
import tempfile
import time
from typing import Any

from measuring import environment, in_a_process, print_header, print_row

SIDES = ("ours-jax", "ours-torch", "ours-tensorflow", "ours-tensorflow-xla", "peer")
COLUMNS = ("loss", "steps/s", "first step, s", "training, s", "parameters")
LAYERS, WIDTH, HEADS, CONTEXT, ROWS = 4, 128, 4, 64, 12
WARMUP, RATE, LEAST = 100, 1e-3, 1e-4


def main() -> None:
    """Prints a row for each side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="tinyshakespeare's input.txt")
    parser.add_argument(
        "--steps", type=int, default=2000, help=f"more than {WARMUP} (the warm-up)"
    )
    parser.add_argument("--side", nargs="*", choices=SIDES, default=SIDES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--context", type=int, default=CONTEXT, help="of training")
    parser.add_argument(
        "--valid-context", type=int, default=CONTEXT, help="of ours in validation"
    )
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--design", choices=("gpt2", "plain", "modern"), default="gpt2", help="of ours"
    )
    options = parser.parse_args()
    print(f"{environment()}\n")
    print_header("", *COLUMNS)
    for side in options.side:
        backend = side.split("-")[1] if side != "peer" else "torch"
        train = peer if side == "peer" else ours
        figures = in_a_process(train, options, side.endswith("-xla"), backend=backend)
        print_row(side, *(f"{value:,.4g}" for value in figures))


def split(path: str) -> tuple[str, str]:
    text = pathlib.Path(path).read_text("utf-8")
    end = int(0.9 * len(text))
    return text[:end], text[end:]


def figures_of(
    loss: float, start: float, times: list[float], parameters: int
) -> tuple[float, ...]:
    """Returns the columns of a side, from the time at the end of each step."""
    speed = (len(times) - WARMUP) / (times[-1] - times[WARMUP - 1])
    return loss, speed, times[0] - start, times[-1] - start, parameters


def ours(arguments: argparse.Namespace, is_compiled: bool) -> tuple[float, ...]:
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(arguments.seed)
    texts = split(arguments.text)
    tokenizer = kt.CharacterTokenizer.train(lines=[texts[0]])
    length, width = arguments.context, arguments.width
    lengths = length, arguments.valid_context
    sizes = arguments.rows * length, 64 * CONTEXT
    with tempfile.TemporaryDirectory() as folder:
        datasets = []
        for text, length, size in zip(texts, lengths, sizes, strict=True):
            path = pathlib.Path(folder) / str(len(datasets))
            path.write_text(text, "utf-8")
            data = kt.text_dataset(
                path,
                length=length,
                tokens_per_batch=size,
                seed=arguments.seed,
                shuffle=not datasets,  # the training text
                tokenizer=tokenizer,
                documents=None,
            )
            datasets.append(data)
    train, valid = datasets
    designs: dict[str, dict[str, Any]] = {
        "gpt2": {
            "positions": kt.LearnedPositionalEncoding(arguments.context),
            "activation": "gelu",
            "intermediate_dim": 4 * width,
            "scale_embeddings": False,
        },
        "plain": {
            "positions": kt.RotaryEmbedding(),
            "intermediate_dim": 4 * width,
        },
        "modern": {
            "positions": kt.RotaryEmbedding(),
            "attention_options": {"use_bias": False},
            "feed_forward_options": {"gated": True, "use_bias": False},
            "residual_options": {"normalization": "rms"},
            "activation": "silu",
            "intermediate_dim": 8 * round(width / 3),
        },
    }
    model = kt.CausalLM(
        num_layers=LAYERS,
        hidden_dim=width,
        num_heads=HEADS,
        dropout=arguments.dropout,
        tokenizer=tokenizer,
        **designs[arguments.design],
    )
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        arguments.steps - WARMUP,
        alpha=LEAST / arguments.rate,
        warmup_target=arguments.rate,
        warmup_steps=WARMUP,
    )
    optimizer = keras.optimizers.AdamW(
        schedule, weight_decay=0.1, beta_2=0.99, global_clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "scale"])
    loss = kt.LabelSmoothedCrossEntropy(0.0)
    model.compile(optimizer, loss, jit_compile=is_compiled or "auto")

    class Clock(keras.callbacks.Callback):
        times: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())
            if len(self.times) == arguments.steps:
                self.model.stop_training = True

    start, clock = time.perf_counter(), Clock()
    epochs = -(-arguments.steps // train.batches_per_epoch)
    model.fit(
        train.dataset if epochs > 1 else train.dataset.take(arguments.steps),
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[clock],
    )
    value = model.evaluate(valid.dataset, verbose=0)
    return figures_of(value, start, clock.times, model.count_params())


def peer(arguments: argparse.Namespace, _: bool) -> tuple[float, ...]:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(arguments.seed)
    train_text, valid_text = split(arguments.text)
    letters = {c: i for i, c in enumerate(sorted({*train_text, *valid_text}))}
    train, valid = (
        torch.tensor([letters[c] for c in text]) for text in (train_text, valid_text)
    )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (
                t.view(batch, length, HEADS, -1).transpose(1, 2)
                for t in self.qkv(self.norm(x)).split(WIDTH, 2)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(len(letters), WIDTH)
            self.positions = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm = nn.LayerNorm(WIDTH)
            for name, weight in self.named_parameters():
                if weight.ndim == 2:
                    residual = name.endswith(("out.weight", "down.weight"))
                    scale = (2 * LAYERS) ** -0.5 if residual else 1.0
                    nn.init.normal_(weight, std=0.02 * scale)
                elif name.endswith("bias"):
                    nn.init.zeros_(weight)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
            return self.norm(self.blocks(x)) @ self.tokens.weight.T

    model = Model()
    decayed = [w for w in model.parameters() if w.ndim == 2]
    others = [w for w in model.parameters() if w.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0},
        ],
        betas=(0.9, 0.99),
    )
    times, start = [], time.perf_counter()
    for step in range(arguments.steps):
        done = max(0, step - WARMUP) / (arguments.steps - WARMUP)
        rate = LEAST + 0.5 * (1 + np.cos(np.pi * done)) * (RATE - LEAST)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / WARMUP if step < WARMUP else rate
        begin = torch.randint(len(train) - CONTEXT, (ROWS,))
        rows = torch.stack([train[i : i + CONTEXT + 1] for i in begin])
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter())
    total = 0.0
    with torch.no_grad():
        for i in range(0, len(valid) - 1, CONTEXT):
            row = valid[i : i + CONTEXT + 1]
            logits = model(row[None, :-1])[0]
            total += functional.cross_entropy(logits, row[1:], reduction="sum").item()
    parameters = sum(w.numel() for w in model.parameters())
    return figures_of(total / (len(valid) - 1), start, times, parameters)


if __name__ == "__main__":
    main()
