"""Learns to write from any text, and prints what it writes.

A decoder-only Transformer with rotary positions, gated feed-forward networks and RMS
normalisation learns to predict the next character. It takes two to five minutes on two
cores:

    python examples/write.py shakespeare.txt --prompt "ROMEO:"

Without a file, the text is the source code of some modules of Python's library. The
last tenth of the text is not trained on; the loss on it is printed in nats per
character.
"""

import argparse
import pathlib
import sysconfig

import keras

import keras_transformer as kt

MODULES = (
    *("argparse", "ast", "collections/__init__", "datetime", "doctest", "inspect"),
    *("logging/__init__", "pathlib", "pickle", "tarfile", "typing", "zipfile"),
)


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the loss on the rest of the text."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    text = read_text(options.files)[: options.limit]
    end = len(text) * 9 // 10
    tokenizer = kt.CharacterTokenizer.train(lines=[text])
    train, valid = (
        kt.text_dataset(texts=[part], tokenizer=tokenizer, length=options.length)
        for part in (text[:end], text[end:])
    )
    print(train)

    epochs = max(1, round(options.updates / train.batches_per_epoch))
    updates = epochs * train.batches_per_epoch
    model = build_model(tokenizer)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=3e-3, warmup_steps=updates // 20
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "scale"])
    model.compile(optimizer, kt.LabelSmoothedCrossEntropy(0.0))
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=epochs,
        shuffle=False,
        callbacks=[kt.TrainingProgress(train.tokens_per_epoch)],
    )

    scored = model.score_texts([text[end:]], context=options.length)
    loss = -float(scored.scores[0]) / int(scored.lengths[0])
    print(
        f"loss on {len(text) - end:,} other characters: {loss:.3f} nats per character"
    )
    path = pathlib.Path(options.output) / "write.keras"
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    print(f"model: {path}")
    search = kt.Sampling(options.samples, temperature=0.8, top_p=0.95)
    written = model.generate(
        options.prompt,
        search,
        max_length=options.characters,
        include_prompt=True,
        seed=options.seed,
    )
    for sample in [written] if search.num_hypotheses == 1 else written:
        print("-" * 79, sample, sep="\n")
    return loss


def build_model(tokenizer: kt.Tokenizer) -> kt.CausalLM:
    """Builds a model of 0.9 million parameters."""
    return kt.CausalLM(
        num_layers=4,
        hidden_dim=128,
        intermediate_dim=384,
        num_heads=4,
        dropout=0.0,
        activation="silu",
        positions=kt.RotaryEmbedding(),
        attention_options={"use_bias": False},
        feed_forward_options={"gated": True, "use_bias": False},
        residual_options={"normalization": "rms"},
        tokenizer=tokenizer,
    )


def read_text(files: list[str]) -> str:
    """Reads the files, or modules of Python's library."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = [*map(pathlib.Path, files)] or [library / f"{m}.py" for m in MODULES]
    return "".join(path.read_text("utf-8") for path in paths)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="text files in UTF-8")
    parser.add_argument("--prompt", default="", help="the beginning of the samples")
    parser.add_argument("--samples", type=int, default=3, help="number of samples")
    parser.add_argument("--characters", type=int, default=300, help="of a sample")
    parser.add_argument("--updates", type=int, default=1000, help="of the weights")
    parser.add_argument("--length", type=int, default=256, help="of a window")
    parser.add_argument("--limit", type=int, help="characters of the text to use")
    parser.add_argument("--output", default="runs", help="folder of the model")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
