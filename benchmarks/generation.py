"""Compares the speed of text generation at the size of GPT-2 small.

The model is a `GPT2LMHeadModel` of transformers with random weights and 12 blocks of
width 768. `load_gpt2` reads it; CTranslate2's converter and KerasHub's `GPT2CausalLM`
have the same sizes. The prompts are random tokens of 16 to 64, and each side generates
64 new tokens of each, greedily or by sampling (`--sample top-p`: 0.9, `--sample top-k`:
50). No side can end earlier. CTranslate2 groups prompts by length; transformers pads on
the left; KerasHub pads on the right and starts at the shortest prompt.

Each side runs in its own process with its default threads; the sides alternate, and the
figure is the median of new tokens a second, compilation apart:

    python benchmarks/generation.py --prompts 64 1 --repeats 3
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SIDES = ("ours-jax", "ours-tensorflow", "ctranslate2", "transformers", "keras_hub")
SHORTEST, LONGEST, NEW = 16, 64, 64
TOP_P, TOP_K = 0.9, 50
VOCABULARY, END = 50257, 50256


def prompts_of(count):
    import numpy as np

    rng = np.random.default_rng(1)
    lengths = rng.integers(SHORTEST, LONGEST + 1, size=count)
    return [rng.integers(0, END, size=n).tolist() for n in lengths]


def write_model(folder, layers):
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


def ours(folder, prompts, sample, backend):
    os.environ["KERAS_BACKEND"] = backend
    import keras_transformer as kt

    model = kt.load_gpt2(folder)
    searches = {
        "top-p": kt.Sampling(top_p=TOP_P),
        "top-k": kt.Sampling(top_k=TOP_K),
        None: kt.GreedySearch(),
    }

    def generate():
        result = model.generate(prompts, searches[sample], NEW, min_length=NEW, seed=1)
        return int(result.lengths.sum())

    return generate


def ctranslate2(folder, prompts, sample):
    import ctranslate2

    target = pathlib.Path(folder) / "ctranslate2"
    if not target.exists():
        import keras_transformer as kt

        kt.load_gpt2(folder).export(target, format="ctranslate2")
    generator = ctranslate2.Generator(str(target))
    tokens = json.loads((target / "vocabulary.json").read_text())
    rows = [[tokens[i] for i in prompt] for prompt in prompts]
    options = {
        "top-p": {"sampling_topk": 0, "sampling_topp": TOP_P},
        "top-k": {"sampling_topk": TOP_K},
        None: {},
    }

    def generate():
        results = generator.generate_batch(
            rows,
            max_length=NEW,
            min_length=NEW,
            include_prompt_in_result=False,
            **options[sample],
        )
        return sum(len(result.sequences_ids[0]) for result in results)

    return generate


def transformers(folder, prompts, sample):
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[END] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in prompts])
    options = {
        "top-p": {"top_p": TOP_P, "top_k": 0},
        "top-k": {"top_k": TOP_K},
        None: {},
    }

    def generate():
        with torch.no_grad():
            found = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=sample is not None,
                pad_token_id=END,
                **options[sample],
            )
        return found[:, longest:].numel()

    return generate


def keras_hub(folder, prompts, sample):
    os.environ["KERAS_BACKEND"] = "jax"
    import keras_nlp
    import numpy as np

    backbone = keras_nlp.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=len(json.loads((pathlib.Path(folder) / "layers.json").read_text())),
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

    def generate():
        model.generate(inputs, stop_token_ids=None)
        return len(prompts) * NEW  # It writes up to 128 tokens for every prompt.

    return generate


def measure(arguments):
    kind, _, backend = arguments.measure.partition("-")
    prompts = prompts_of(arguments.prompts[0])
    make = globals()[kind]
    options = (backend,) if backend else ()
    generate = make(arguments.folder, prompts, arguments.sample, *options)
    start = time.perf_counter()
    generate()
    first = time.perf_counter() - start
    start = time.perf_counter()
    tokens = generate()
    seconds = time.perf_counter() - start
    print(json.dumps([tokens / seconds, first - seconds]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--sides", nargs="*", default=[*SIDES])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--sample", choices=("top-p", "top-k"), help="in place of greedy search"
    )
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, arguments.layers)
        layers = pathlib.Path(folder) / "layers.json"
        layers.write_text(json.dumps([*range(arguments.layers)]))
        for count in arguments.prompts:
            speeds = {side: [] for side in arguments.sides}
            for _ in range(arguments.repeats):
                for side in arguments.sides:
                    command = [sys.executable, __file__, "--measure", side]
                    command += ["--folder", folder, "--prompts", str(count)]
                    if arguments.sample:
                        command += ["--sample", arguments.sample]
                    done = subprocess.run(command, capture_output=True, text=True)
                    if done.returncode:
                        sys.exit(f"{side}: {done.stderr[-3000:]}")
                    speeds[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{count} prompts, {arguments.sample or 'greedy'}:")
            for side, found in speeds.items():
                speed, first = map(statistics.median, zip(*found, strict=True))
                print(f"  {side:16} {speed:8.1f} tokens/s, compilation {first:5.1f} s")


if __name__ == "__main__":
    main()
