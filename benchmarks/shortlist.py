"""Measures how much less time a search with a shortlist takes.

The model has random weights, and the shortlist random translations, in place of learned
ones: sources of random tokens share fewer translations than sentences do, so the
shortlist of a batch is larger than that of a text. Outputs are forced to one length.
Seconds are processor time of the fastest of the repeats, which alternate between both
sides. The variable KERAS_BACKEND selects the backend.

    python benchmarks/shortlist.py --size small --vocabulary-size 32000 --batch-size 64
"""

import argparse
import time
from typing import Any

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer_runtime.presets import PRESETS

SOURCE_LENGTH = 14


def main() -> None:
    """Prints the seconds of a batch with and without the shortlist, and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="small", help="tiny, small, base or big")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--length", type=int, default=24, help="tokens of each output")
    parser.add_argument("--translations-per-token", type=int, default=50)
    parser.add_argument("--frequent-tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size, count = options.vocabulary_size, options.translations_per_token
    model = kt.Seq2Seq(
        **PRESETS[f"transformer_{options.size}"],
        vocabulary_size=size,
        max_source_length=64,
        max_target_length=64,
    )
    rng = np.random.default_rng(0)
    # As in text, few tokens are frequent, on both sides.
    ranks = np.arange(1, size - 3)
    shares = 1 / ranks / np.sum(1 / ranks)
    shape = options.batch_size, SOURCE_LENGTH - 1
    words = 4 + rng.choice(len(shares), shape, p=shares)
    sources = [[*row.tolist(), model.end_token_id] for row in words]
    translations = 4 + rng.choice(len(shares), (size, count), p=shares)
    frequent = np.arange(4, 4 + options.frequent_tokens)
    shortlist = kt.Shortlist(translations, frequent)
    mask = shortlist.allowed(model, sources, [[] for _ in sources])
    seconds: dict[str, list[float]] = {"all tokens": [], "shortlist": []}
    given: dict[str, Any] = {"max_length": options.length, "min_length": options.length}
    for _ in range(1 + options.repeats):
        for name, times in seconds.items():
            used = shortlist if name == "shortlist" else None
            start = time.process_time()
            model.generate(
                sources, kt.BeamSearch(options.num_beams), **given, shortlist=used
            )
            times.append(time.process_time() - start)
    best = {name: min(times[1:]) for name, times in seconds.items()}
    print(
        f"{keras.backend.backend()}, {options.size}, vocabulary {size}, batch "
        f"{options.batch_size}: {mask.sum(axis=1).mean():.0f} tokens a source, "
        f"{mask.any(axis=0).sum()} in the batch; "
        f"{best['all tokens']:.3f} s, with the shortlist {best['shortlist']:.3f} s, "
        f"{best['all tokens'] / best['shortlist']:.2f} times as fast; first call "
        f"{seconds['all tokens'][0]:.1f} s and {seconds['shortlist'][0]:.1f} s"
    )


if __name__ == "__main__":
    main()
