"""Compares training speed with KerasHub, PyTorch's Transformer and Marian.

The speed is in target tokens per second, without padding. Ours and KerasHub train with
`fit`, the others with a PyTorch loop, on the same batches with float32, Adam and label
smoothing 0.1 (KerasHub's model without: Keras requires one-hot targets for it). Each
side runs in a separate process with the default number of threads of its library. The
sides alternate. A process first trains twice on each shape of batch. The difference of
the two times is compilation. Then it trains on all batches several times; the first
time is not counted, and the figure is the median of the others. Memory is the peak
without the memory before the model is built (Linux), on a GPU the peak there.

On one core (`taskset --cpu-list 0 python …`) seconds are processor time, which other
processes affect little. Without texts, the batches have random ids, and no TensorFlow
is needed.

    python benchmarks/training.py --source train.en --target train.de --sizes tiny
"""

import argparse
import dataclasses
import importlib
import math
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import (
    clock,
    environment,
    gpu_name,
    in_a_process,
    is_installed,
    median_ratio,
    peak_mb,
    print_header,
    print_row,
    report,
    reset_peak,
)

SIZES = ("tiny", "small", "base", "big")
# With a suffix: `jit_compile=False` after "-eager", otherwise `jit_compile=True`.
BACKENDS = (
    *("jax", "tensorflow", "tensorflow-xla"),
    *("torch", "torch-compiled", "torch-eager"),
)
PEERS = ("keras_hub", "transformer", "transformer-compiled", "marian")
VOCABULARY_SIZE = 8000
LABEL_SMOOTHING = 0.1
LIBRARIES = {
    "ours": "keras_transformer",
    "keras_hub": "keras_nlp",
    "transformer": "torch",
    "marian": "transformers",
}
COLUMNS = ("tokens/s", "lowest to highest", "ratio to the best peer")

Figures = dict[str, float]
# int32 token ids of sources and of targets shifted by one; padding is 0.
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
# Trains for some epochs and returns the seconds of each.
Train = Callable[[list[Batch], int], list[float]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of the model and the options of its training."""

    size: str
    dropout: float
    dtype: str = "float32"  # dtype policy of Keras
    attention_dropout: float | None = None  # of ours; `None` = `dropout`
    vocabulary_size: int = VOCABULARY_SIZE
    tie_embeddings: str | None = None  # of ours; the others tie all embeddings

    @property
    def dimensions(self) -> dict[str, int]:
        from keras_transformer.models import PRESETS

        return PRESETS[f"transformer_{self.size}"]


def main() -> None:
    """Prints a table per size and dtype."""
    options = parse_arguments()
    sides = choose_sides(options.backends, options.peers)
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "batches.npz")
        make, data = make_random_batches, options.random_lengths
        if options.source and options.target:
            make, data = make_batches, (options.source, options.target)
        steps = options.tokens_per_batch, options.steps
        print(in_a_process(make, path, data, *steps))
        for size in options.sizes:
            for dtype in options.dtype:
                setting = Setting(
                    size, options.dropout, dtype, options.attention_dropout
                )
                rounds = []
                for number in range(options.repeats):
                    figures = {}
                    for side in sides:
                        work = side, setting, path, options.passes
                        backend = backend_of(side)
                        row = in_a_process(measure, *work, backend=backend)
                        report(f"{size}, {dtype}, round {number + 1}: {side}", row)
                        figures[side] = row
                    rounds.append(figures)
                print_table(setting, sides, rounds)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", metavar="FILE", help="default: random ids")
    parser.add_argument("--target", metavar="FILE")
    parser.add_argument(
        "--random-lengths",
        nargs=2,
        type=int,
        metavar="N",
        default=[16, 16],
        help="of sources and targets without `--source` and `--target`",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small"])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS[:4])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="N")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--attention-dropout",
        type=float,
        metavar="RATE",
        help="of ours; default: that of the other layers",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float32", "mixed_bfloat16"),
        default=["float32"],
        help="of the Keras models; the others use float32, and on a GPU autocast",
    )
    parser.add_argument("--steps", type=int, default=8, help="batches per pass")
    parser.add_argument("--passes", type=int, default=3, help="measured passes")
    parser.add_argument("--repeats", type=int, default=3, help="processes per side")
    return parser.parse_args()


def choose_sides(backends: list[str], peers: list[str]) -> list[str]:
    """Returns the names of the sides whose packages are installed."""
    sides = []
    for backend in backends:
        if is_installed(backend.partition("-")[0]):
            sides.append(f"ours, {backend}")
            if "keras_hub" in peers and is_installed("keras_nlp"):
                sides.append(f"keras_hub, {backend}")
    return sides + [
        peer
        for peer in peers
        if peer != "keras_hub" and is_installed(LIBRARIES[peer.partition("-")[0]])
    ]


def backend_of(side: str) -> str:
    return side.partition(", ")[2].partition("-")[0] or "torch"


def print_table(
    setting: Setting, sides: list[str], rounds: list[dict[str, Figures]]
) -> None:
    """Prints a row per side with medians of all rounds."""

    def speeds(side: str) -> list[float]:
        return [figures[side]["tokens_per_second"] for figures in rounds]

    def median(side: str, figure: str) -> str:
        return f"{statistics.median(row[side][figure] for row in rounds):,.0f}"

    peers = [side for side in sides if not side.startswith("ours")]
    best = max(peers, key=lambda side: statistics.median(speeds(side)), default=None)
    print(f"\n{setting.size}, dropout {setting.dropout}, {setting.dtype}\n")
    print_header("", *COLUMNS, "compilation, s", "additional MB")
    for side in sides:
        found = speeds(side)
        print_row(
            side,
            f"{statistics.median(found):,.0f}",
            f"{min(found):,.0f} to {max(found):,.0f}",
            f"{median_ratio(found, speeds(best)):.2f}" if best else "",
            median(side, "compile_seconds"),
            median(side, "extra_mb"),
        )


def measure(
    side: str,
    setting: Setting,
    path: str,
    passes: int,
    after: Callable[[Train, list[Batch]], Figures] | None = None,
) -> Figures:
    """Builds and trains a side. Runs in the process of the side.

    Args:
        side: str, its name.
        setting: the model.
        path: str, the file of the batches.
        passes: int, number of measured passes over the batches.
        after: `None`, or a function that measures further figures.
    """
    batches = read_batches(path)
    shapes = list({shape_of(batch): batch for batch in batches}.values())
    importlib.import_module(LIBRARIES[kind_of(side)])
    before = reset_peak()
    train = start(side, setting)
    first, second = train(shapes, 2)
    _, *taken = train(batches, 1 + passes)
    extra_mb = peak_mb() - before
    return {
        "tokens_per_second": tokens(batches) / statistics.median(taken),
        "compile_seconds": first - second,
        "extra_mb": extra_mb,
        **(after(train, batches) if after else {}),
    }


def kind_of(side: str) -> str:
    return side.partition(", ")[0].partition("-")[0]


def start(side: str, setting: Setting) -> Train:
    """Builds the model of a side."""
    kind, _, build = side.partition(", ")
    form = kind.partition("-")[2] or build.partition("-")[2]
    is_compiled = form != "eager" if form else "auto"
    return KINDS[kind_of(side)](setting, is_compiled)


# Batches.


def shape_of(batch: Batch) -> tuple[int, ...]:
    return batch[0].shape + batch[2].shape


def tokens(batches: list[Batch]) -> int:
    """Returns the number of target tokens without padding."""
    return sum(int(np.count_nonzero(targets)) for _, _, targets in batches)


def make_random_batches(
    path: str,
    lengths: tuple[int, int],
    tokens_per_batch: int,
    steps: int,
    vocabulary_size: int = VOCABULARY_SIZE,
) -> str:
    """Writes batches of random ids of one shape and returns a description.

    The last eighth of a row has padding: of each row between none and all of it.
    """
    rng = np.random.default_rng(0)
    rows = tokens_per_batch // lengths[1]

    def random_ids(length: int) -> np.ndarray:
        ids = rng.integers(4, vocabulary_size, (rows, length), dtype="int32")
        real = rng.integers(length - length // 8, length + 1, (rows, 1))
        real[0] = length
        return np.where(np.arange(length) < real, ids, 0).astype("int32")

    batches = []
    for _ in range(steps):
        targets = random_ids(lengths[1] + 1)
        batches.append((random_ids(lengths[0]), targets[:, :-1], targets[:, 1:]))
    return write(path, batches)


def make_batches(
    path: str, files: tuple[str, str], tokens_per_batch: int, steps: int
) -> str:
    """Writes a sample of an epoch of `parallel_dataset` and returns a description.

    The shapes have the proportions of the epoch, in random order.
    """
    from keras_transformer import SentencePieceTokenizer, parallel_dataset

    tokenizer = SentencePieceTokenizer.train(files, VOCABULARY_SIZE, lowercase=True)
    data = parallel_dataset(
        *files,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=tokens_per_batch,
    )
    epoch = [
        (inputs["encoder_token_ids"], inputs["decoder_token_ids"], targets)
        for inputs, targets in data.dataset.as_numpy_iterator()
    ]
    ordered = sorted(epoch, key=shape_of)
    middles = (np.arange(steps) + 0.5) / steps * len(ordered)
    chosen = np.random.default_rng(0).permutation(middles.astype(int))
    return write(path, [ordered[number] for number in chosen])


def read_batches(path: str) -> list[Batch]:
    with np.load(path) as arrays:
        ids = [arrays[str(number)] for number in range(len(arrays.files))]
    return list(zip(*[iter(ids)] * 3, strict=True))


def write(path: str, batches: list[Batch]) -> str:
    ids = [ids for batch in batches for ids in batch]
    np.savez(path, **{str(number): array for number, array in enumerate(ids)})
    padding = 1 - tokens(batches) / sum(targets.size for _, _, targets in batches)
    return (
        f"{len(batches)} batches of {len(set(map(shape_of, batches)))} shapes, "
        f"{tokens(batches):,} target tokens, {padding:.1%} padding"
    )


# Keras.


def build_ours(setting: Setting, is_compiled: bool | str) -> Train:
    import keras

    import keras_transformer as kt

    attention = setting.attention_dropout
    model = kt.Seq2Seq.from_preset(
        f"transformer_{setting.size}",
        normalize_first=True,
        dropout=setting.dropout,
        attention_options=None if attention is None else {"dropout": attention},
        vocabulary_size=setting.vocabulary_size,
        tie_embeddings=setting.tie_embeddings,
        dtype=setting.dtype,
    )
    if keras.backend.backend() == "torch":
        allow_tf32()
    model.compile(
        optimizer=adam(),
        loss=kt.LabelSmoothedCrossEntropy(LABEL_SMOOTHING),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        jit_compile=is_compiled,
    )
    return fit(model)


def build_keras_hub(setting: Setting, is_compiled: bool | str) -> Train:
    import keras

    keras.config.set_dtype_policy(setting.dtype)
    model = keras_hub_model(setting)
    model.compile(
        optimizer=adam(),
        # Label smoothing requires one-hot targets, which are much slower.
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
        jit_compile=is_compiled,
    )
    return fit(model, has_weights=True)


def keras_hub_model(setting: Setting) -> Any:
    import keras
    import keras_nlp
    from keras import ops

    size = setting.dimensions
    block = {
        "intermediate_dim": size["intermediate_dim"],
        "num_heads": size["num_heads"],
        "dropout": setting.dropout,
        "normalize_first": True,
    }
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("encoder_token_ids", "decoder_token_ids")
    }
    source_ids, target_ids = inputs.values()
    embedding = keras_nlp.layers.ReversibleEmbedding(
        setting.vocabulary_size, size["hidden_dim"]
    )
    encoder_mask, decoder_mask = (
        ops.not_equal(source_ids, 0),
        ops.not_equal(target_ids, 0),
    )

    def embed(token_ids: Any) -> Any:
        x = embedding(token_ids) * size["hidden_dim"] ** 0.5
        x = x + keras_nlp.layers.SinePositionEncoding()(x)
        return keras.layers.Dropout(setting.dropout)(x)

    x = embed(source_ids)
    for _ in range(size["num_layers"]):
        x = keras_nlp.layers.TransformerEncoder(**block)(x, padding_mask=encoder_mask)
    encoded = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    x = embed(target_ids)
    for _ in range(size["num_layers"]):
        x = keras_nlp.layers.TransformerDecoder(**block)(
            x,
            encoded,
            decoder_padding_mask=decoder_mask,
            encoder_padding_mask=encoder_mask,
        )
    decoded = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, embedding(decoded, reverse=True))


def adam() -> Any:
    import keras

    import keras_transformer as kt

    schedule = kt.WarmupInverseSquareRoot(peak_learning_rate=1e-3, warmup_steps=2000)
    return keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)


def fit(model: Any, has_weights: bool = False) -> Train:
    """Returns a function that trains with `fit`."""
    import keras

    from keras_transformer.backend.freed_memory import keep_freed_memory

    class Batches(keras.utils.PyDataset):
        def __init__(self, batches: list[Batch]):
            super().__init__()
            self.batches = batches

        def __len__(self) -> int:
            return len(self.batches)

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            keep_freed_memory()  # As `parallel_dataset` does, for both sides.
            sources, inputs, targets = self.batches[index]
            ids = {"encoder_token_ids": sources, "decoder_token_ids": inputs}
            weights = [(targets != 0).astype("float32")] if has_weights else []
            return ids, targets, *weights

    class EpochSeconds(keras.callbacks.Callback):
        async_safe = True  # JAX does not wait for the result of a step.

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.start = clock()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(clock() - self.start)

    def train(batches: list[Batch], epochs: int) -> list[float]:
        timer = EpochSeconds()
        model.fit(
            Batches(batches),
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[timer],
        )
        return timer.seconds

    return train


# PyTorch.


def torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def allow_tf32() -> None:
    """Lets PyTorch multiply float32 matrices with TF32 on a GPU, as JAX does."""
    if gpu_name() is not None:
        import torch

        torch.set_float32_matmul_precision("high")


def torch_loop(
    model: Any, logits_of: Any, setting: Setting, compiled: bool | str
) -> Train:
    """Returns a function that trains a model of PyTorch."""
    import torch

    allow_tf32()
    device = torch_device()
    model.to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    is_mixed = gpu_name() is not None and setting.dtype == "mixed_bfloat16"

    def loss_of(sources: Any, inputs: Any, targets: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=is_mixed):
            return torch.nn.functional.cross_entropy(
                logits_of(sources, inputs).flatten(0, 1),
                targets.flatten(),
                ignore_index=0,
                label_smoothing=LABEL_SMOOTHING,
            )

    call = torch.compile(loss_of) if compiled is True else loss_of

    def epoch(batches: list[Batch]) -> float:
        start = clock()
        for batch in batches:
            optimizer.zero_grad()
            loss = call(*(torch.from_numpy(ids).to(device).long() for ids in batch))
            loss.backward()
            optimizer.step()
        loss.item()  # Waits for the GPU.
        return clock() - start

    return lambda batches, epochs: [epoch(batches) for _ in range(epochs)]


def build_transformer(setting: Setting, is_compiled: bool | str) -> Train:
    """`nn.Transformer` with tied embeddings and output."""
    import torch
    from torch import nn

    size = setting.dimensions
    width = size["hidden_dim"]
    embedding = nn.Embedding(setting.vocabulary_size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    positions = positions.to(torch_device())
    dropout = nn.Dropout(setting.dropout)
    transformer = nn.Transformer(
        d_model=width,
        nhead=size["num_heads"],
        num_encoder_layers=size["num_layers"],
        num_decoder_layers=size["num_layers"],
        dim_feedforward=size["intermediate_dim"],
        dropout=setting.dropout,
        batch_first=True,
        norm_first=True,
    )

    def embed(token_ids: Any) -> Any:
        x = embedding(token_ids) * math.sqrt(width)
        return dropout(x + positions[: token_ids.shape[1]])

    def logits_of(sources: Any, targets: Any) -> Any:
        length = targets.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=targets.device)
        padding = sources == 0
        decoded = transformer(
            embed(sources),
            embed(targets),
            tgt_mask=later.triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return decoded @ embedding.weight.T

    model = nn.ModuleList([embedding, transformer])
    return torch_loop(model, logits_of, setting, is_compiled)


def build_marian(setting: Setting, is_compiled: bool | str) -> Train:
    rates = {"dropout": setting.dropout, "attention_dropout": setting.dropout}
    model = marian_model(
        setting.dimensions, setting.vocabulary_size, use_cache=False, **rates
    )

    def logits_of(sources: Any, inputs: Any) -> Any:
        return model(
            input_ids=sources, attention_mask=sources != 0, decoder_input_ids=inputs
        ).logits

    return torch_loop(model, logits_of, setting, is_compiled)


def marian_model(
    size: dict[str, int], vocabulary_size: int = VOCABULARY_SIZE, **options: Any
) -> Any:
    """Returns Hugging Face's Marian with random weights."""
    from transformers import MarianConfig, MarianMTModel

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


KINDS: dict[str, Callable[[Setting, bool | str], Train]] = {
    "ours": build_ours,
    "keras_hub": build_keras_hub,
    "transformer": build_transformer,
    "marian": build_marian,
}

if __name__ == "__main__":
    main()
