"""Batches of all sides."""

import dataclasses
import pathlib
import tempfile

import numpy as np

PAIRS = 29_000  # the size of Multi30k
VOCABULARY_SIZE = 8000


@dataclasses.dataclass(frozen=True)
class Batch:
    """int32 token ids of sources and of targets shifted by one. Padding is 0."""

    encoder_token_ids: np.ndarray
    decoder_token_ids: np.ndarray
    target_token_ids: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, source length, target length."""
        return *self.encoder_token_ids.shape, self.target_token_ids.shape[1]

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens without padding of each row, of source and target."""
        sides = self.encoder_token_ids, self.target_token_ids
        return tuple(np.count_nonzero(ids, axis=1) for ids in sides)

    @property
    def tokens(self) -> int:
        """Target tokens without padding."""
        return np.count_nonzero(self.target_token_ids)


def make_random_batches(
    path: str, lengths: tuple[int, int], tokens_per_batch: int, steps: int
) -> str:
    """Writes batches of random ids of one shape and returns a description.

    The last eighth of a row has padding: of each row between none and all of it.
    """
    rng = np.random.default_rng(0)
    rows = tokens_per_batch // lengths[1]

    def random_ids(length: int) -> np.ndarray:
        ids = rng.integers(4, VOCABULARY_SIZE, (rows, length), dtype="int32")
        real = rng.integers(length - length // 8, length + 1, (rows, 1))
        real[0] = length
        return np.where(np.arange(length) < real, ids, 0).astype("int32")

    batches = []
    for _ in range(steps):
        targets = random_ids(lengths[1] + 1)
        batches.append(Batch(random_ids(lengths[0]), targets[:, :-1], targets[:, 1:]))
    return _write(path, batches, steps)


def make_batches(
    path: str,
    files: tuple[str | None, str | None],
    tokens_per_batch: int,
    steps: int,
) -> str:
    """Writes a sample of an epoch of `parallel_dataset` and returns a description."""
    from keras_transformer import SentencePieceTokenizer, parallel_dataset

    with tempfile.TemporaryDirectory() as folder:
        if not all(files):
            files = generate_corpus(pathlib.Path(folder))
        tokenizer = SentencePieceTokenizer.train(files, VOCABULARY_SIZE, lowercase=True)
        data = parallel_dataset(
            *files,
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            tokens_per_batch=tokens_per_batch,
        )
        epoch = [
            Batch(**inputs, target_token_ids=targets)
            for inputs, targets in data.dataset.as_numpy_iterator()
        ]
    return _write(path, choose(epoch, steps), len(epoch))


def _write(path: str, chosen: list[Batch], total: int) -> str:
    arrays = {
        f"{number}.{name}": ids
        for number, batch in enumerate(chosen)
        for name, ids in vars(batch).items()
    }
    np.savez(path, **arrays)
    padding = 1 - sum(batch.tokens for batch in chosen) / sum(
        batch.target_token_ids.size for batch in chosen
    )
    return (
        f"{len(chosen)} of {total} batches, {len(first_of_each_shape(chosen))} shapes, "
        f"{sum(batch.tokens for batch in chosen):,} target tokens, "
        f"{padding:.1%} padding"
    )


def choose(epoch: list[Batch], steps: int) -> list[Batch]:
    """Returns batches with the shapes in proportion to the epoch, in random order."""
    ordered = sorted(epoch, key=lambda batch: batch.shape)
    middles = (np.arange(steps) + 0.5) / steps * len(ordered)
    chosen = np.random.default_rng(0).permutation(middles.astype(int))
    return [ordered[number] for number in chosen]


def read_batches(path: str) -> list[Batch]:
    with np.load(path) as arrays:
        names = [field.name for field in dataclasses.fields(Batch)]
        return [
            Batch(*(arrays[f"{number}.{name}"] for name in names))
            for number in range(len(arrays.files) // len(names))
        ]


def first_of_each_shape(batches: list[Batch]) -> list[Batch]:
    return list({batch.shape: batch for batch in reversed(batches)}.values())


def generate_corpus(folder: pathlib.Path) -> tuple[str, str]:
    """Writes parallel text with Zipf's frequencies and the lengths of Multi30k."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(11.3), 0.32, PAIRS), 4, 40)
    ratios = rng.normal(0.95, 0.12, PAIRS)
    source, target = folder / "source.txt", folder / "target.txt"
    write_sentences(source, lengths.astype(int), rng)
    write_sentences(target, np.clip(lengths * ratios, 3, 45).astype(int), rng)
    return str(source), str(target)


def write_sentences(
    path: pathlib.Path, lengths: np.ndarray, rng: np.random.Generator
) -> None:
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(12_000)]
    frequencies = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(words, lengths.sum(), p=frequencies / frequencies.sum())
    sentences = np.split(drawn, np.cumsum(lengths)[:-1])
    path.write_text("\n".join(" ".join(words) for words in sentences) + "\n")
