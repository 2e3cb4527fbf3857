"""Compares the speed of text generation at the size of GPT-2 small.

The model is a `GPT2LMHeadModel` of transformers with random weights and 12 blocks of
width 768. `load_pretrained` reads it; the models of CTranslate2's converter and
KerasHub's `GPT2CausalLM` have the same sizes. The prompts are random tokens of 16 to
64, and each side generates 64 new tokens of each, greedily or by sampling (`--sample
top-p`: 0.9, `--sample top-k`: 50). No side can end earlier. CTranslate2
groups prompts by length; transformers pads on the left; KerasHub pads on the right and
starts at the shortest prompt.

Each side runs in its own process with its default threads; the sides alternate, and the
figure is the median of new tokens a second, compilation apart:

    python benchmarks/generation.py --prompts 64 1 --repeats 3
"""

import argparse
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

from measuring import environment, in_a_process, print_header, print_row, seconds

SIDES = ("ours-jax", "ours-tensorflow", "ctranslate2", "transformers", "keras_hub-jax")
SHORTEST, LONGEST, NEW = 16, 64, 64
TOP_P, TOP_K = 0.9, 50
VOCABULARY, END = 50257, 50256

Generate = Callable[[], Any]


def main() -> None:
    """Prints a table for each number of prompts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--sides", nargs="*", default=SIDES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--sample", choices=("top-p", "top-k"), help="in place of greedy search"
    )
    options = parser.parse_args()
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(write_model, folder, options.layers)
        for count in options.prompts:
            found: dict[str, list[Any]] = {side: [] for side in options.sides}
            for _ in range(options.repeats):
                for side, figures in found.items():
                    work = side, folder, count, options.sample, options.layers
                    backend = side.partition("-")[2] or "torch"
                    figures.append(in_a_process(measure, *work, backend=backend))
            print(f"\n{count} prompts, {options.sample or 'greedy'}\n")
            print_header("", "tokens/s", "compilation, s")
            for side, figures in found.items():
                speed, first = map(statistics.median, zip(*figures, strict=True))
                print_row(side, f"{speed:.1f}", f"{first:.1f}")


def write_model(folder: str, layers: int) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers))
    model.save_pretrained(folder)
    # CTranslate2 names tokens; the names have no effect on the speed.
    tokens = [*map(chr, range(256, 512)), "a", "Ġa"]
    tokens += [f"token{i}" for i in range(END - len(tokens))]
    vocabulary = {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}
    (pathlib.Path(folder) / "vocab.json").write_text(json.dumps(vocabulary))
    (pathlib.Path(folder) / "merges.txt").write_text("#version: 0.2\nĠ a\n")


def measure(
    side: str, folder: str, count: int, sample: str | None, layers: int
) -> tuple[float, float]:
    """Returns new tokens a second and the additional seconds of the first call."""
    import numpy as np

    rng = np.random.default_rng(1)
    lengths = rng.integers(SHORTEST, LONGEST + 1, size=count)
    prompts = [rng.integers(0, END, size=n).tolist() for n in lengths]
    kind = side.partition("-")[0]
    if kind == "keras_hub":
        generate = keras_hub(layers, prompts, sample)
    else:
        generate = globals()[kind](folder, prompts, sample)
    first, later = seconds(generate), seconds(generate)
    return count * NEW / later, first - later


def ours(folder: str, prompts: list[list[int]], sample: str | None) -> Generate:
    import keras_transformer as kt

    model = kt.load_pretrained(folder)
    searches = {
        "top-p": kt.Sampling(top_p=TOP_P),
        "top-k": kt.Sampling(top_k=TOP_K),
        None: kt.GreedySearch(),
    }

    def generate() -> None:
        result = model.generate(prompts, searches[sample], NEW, min_length=NEW, seed=1)
        assert result.lengths.sum() == len(prompts) * NEW

    return generate


def ctranslate2(folder: str, prompts: list[list[int]], sample: str | None) -> Generate:
    import ctranslate2

    target = pathlib.Path(folder) / "ctranslate2"
    if not target.exists():
        import keras_transformer as kt

        kt.load_pretrained(folder).export(target, format="ctranslate2")
    generator = ctranslate2.Generator(str(target))
    tokens = json.loads((target / "vocabulary.json").read_text())
    rows = [[tokens[i] for i in prompt] for prompt in prompts]
    options: dict[str | None, Any] = {
        "top-p": {"sampling_topk": 0, "sampling_topp": TOP_P},
        "top-k": {"sampling_topk": TOP_K},
        None: {},
    }

    def generate() -> None:
        results = generator.generate_batch(
            rows,
            max_length=NEW,
            min_length=NEW,
            include_prompt_in_result=False,
            **options[sample],
        )
        assert all(len(result.sequences_ids[0]) == NEW for result in results)

    return generate


def transformers(folder: str, prompts: list[list[int]], sample: str | None) -> Generate:
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[END] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in prompts])
    options: dict[str | None, Any] = {
        "top-p": {"top_p": TOP_P, "top_k": 0},
        "top-k": {"top_k": TOP_K},
        None: {},
    }

    @torch.no_grad()
    def generate() -> None:
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=sample is not None,
            pad_token_id=END,
            **options[sample],
        )
        assert found.shape == (len(prompts), longest + NEW)

    return generate


def keras_hub(layers: int, prompts: list[list[int]], sample: str | None) -> Generate:
    import keras_nlp
    import numpy as np

    backbone = keras_nlp.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=layers,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        max_sequence_length=1024,
    )
    model = keras_nlp.models.GPT2CausalLM(backbone, preprocessor=None)
    samplers = {
        "top-p": keras_nlp.samplers.TopPSampler(p=TOP_P),
        "top-k": keras_nlp.samplers.TopKSampler(k=TOP_K),
        None: "greedy",
    }
    model.compile(sampler=samplers[sample])
    ids = np.zeros((len(prompts), LONGEST + NEW), "int32")
    mask = np.zeros((len(prompts), LONGEST + NEW), "int32")
    for row, real, prompt in zip(ids, mask, prompts, strict=True):
        row[: len(prompt)], real[: len(prompt)] = prompt, 1
    inputs = {"token_ids": ids, "padding_mask": mask}
    # It writes up to 128 tokens for every prompt.
    return lambda: model.generate(inputs, stop_token_ids=None)


if __name__ == "__main__":
    main()
