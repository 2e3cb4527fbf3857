r"""Measures the memory and the time of `load_pretrained`.

transformers writes a random Llama model of about 1 GB in shards of 200 MB. For each
backend, a fresh process imports the library, loads the folder and prints the peak
memory above that of the process before, divided by the size of the weights. The script
needs Linux.

    python benchmarks/pretrained.py --layers 12
"""

import argparse
import pathlib
import tempfile
import time

from measuring import (
    BACKENDS,
    environment,
    in_a_process,
    peak_mb,
    print_header,
    print_row,
    reset_peak,
    resident_mb,
)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12, help="blocks of width 1,024")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    options = parser.parse_args()
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(write, folder, options.layers)
        files = pathlib.Path(folder).glob("*.safetensors")
        size = sum(file.stat().st_size for file in files) / 2**20
        print(f"{size:,.0f} MB of weights\n")
        print_header("backend", "peak / weights", "after / weights", "seconds")
        for backend in options.backends:
            peak, after, seconds = in_a_process(load, folder, backend=backend)
            ratios = (f"{peak / size:.2f}", f"{after / size:.2f}")
            print_row(backend, *ratios, f"{seconds:.1f}")


def write(folder: str, layers: int) -> None:
    """Writes a random model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=16,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="200MB")


def load(folder: str) -> tuple[float, float, float]:
    """Returns the peak and final memory in MB above those before, and the seconds."""
    from keras_transformer import load_pretrained
    from keras_transformer.layers import DecoderBlock

    DecoderBlock(8, 1).build((None, None, 8))  # imports what any layer needs
    before = resident_mb()
    reset_peak()
    start = time.perf_counter()
    model = load_pretrained(folder)
    seconds = time.perf_counter() - start
    assert model.count_params() > 0
    return peak_mb() - before, resident_mb() - before, seconds


if __name__ == "__main__":
    main()
