"""Makes the files of this folder with the code of version 0.1.0, commit 6924f40.

The files stay as they are. `test_old_files.py` loads them with the present code and
compares the results with `expected.json`, which the code of version 0.1.0 wrote:

    PYTHONPATH=<checkout of 6924f40> python make.py
"""

import contextlib
import json
import pathlib
import shutil
import tempfile
import zipfile

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.recipe import Recipe, run, train
from keras_transformer.recipe.history_file import HistoryFile

FOLDER = pathlib.Path(__file__).parent
SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
LETTERS = "abcdef"
TEXTS = ["bad", "face", "", "deaf"]
INPUTS = {
    "encoder_token_ids": [[6, 4, 7, 5, 3], [9, 8, 3, 0, 0]],
    "decoder_token_ids": [[2, 7, 4, 5], [2, 8, 9, 0]],
}
NUMBERS = np.round(np.random.default_rng(3).normal(size=(2, 7, 6)), 3)
# In place of the temporary folder, which the files of a run name.
ROOT = "/folder"


class Stop(keras.callbacks.Callback):
    """Ends a run as Ctrl-C does, before one of its batches."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.position = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.position:
            raise KeyboardInterrupt


class StoppingHistoryFile(Stop, HistoryFile):
    """Ends a run of the command in its second epoch."""

    def __init__(self, path):
        HistoryFile.__init__(self, path)
        self.position = 1, 3


class Losses(keras.callbacks.Callback):
    """Lists the mean loss of the epoch so far after each batch."""

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def write_text(path, count, seed):
    """Writes words and their letters in reverse, in upper case."""
    random = np.random.default_rng(seed)
    words = [
        "".join(random.choice([*LETTERS], random.integers(2, 6))) for _ in range(count)
    ]
    lines = [f"{word}\t{' '.join(word[::-1].upper())}\n" for word in words]
    path.write_text("".join(lines))


def make_tokenizers():
    lines = ["a cat sat on a mat", "the cat"]
    pieces = kt.SentencePieceTokenizer.train(
        lines=lines, vocabulary_size=23, normalization="identity"
    )
    marian = ["</s>", "<unk>", *pieces.get_vocabulary()[4:], ">>fra<<", "<pad>"]
    return {
        "characters": kt.CharacterTokenizer.train(lines=[LETTERS]),
        "words": kt.WordTokenizer.train(lines=[" ".join(LETTERS.upper())]),
        "sentence_piece": pieces,
        "marian": kt.MarianTokenizer(pieces.proto, marian),
        "lower_case": kt.WordTokenizer.train(lines=["A Cat"], lowercase=True),
    }


def compress(path, target):
    """Copies a `.keras` file, compressed: most bytes of a small HDF5 file are 0."""
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for member in source.namelist():
            file.writestr(member, source.read(member))


def save(model, name):
    with tempfile.TemporaryDirectory() as folder:
        model.save(pathlib.Path(folder, name))
        compress(pathlib.Path(folder, name), FOLDER / name)


def rounded(array):
    return np.round(keras.ops.convert_to_numpy(array).astype("float64"), 6).tolist()


def logits(model):
    return rounded(model({name: np.array(ids) for name, ids in INPUTS.items()}))


def make_data():
    return kt.parallel_dataset(
        FOLDER / "train.tsv",
        source_tokenizer=kt.Tokenizer.load(FOLDER / "characters.json"),
        target_tokenizer=kt.Tokenizer.load(FOLDER / "words.json"),
        tokens_per_batch=60,
        window=17,
        batches_per_epoch=6,
        max_source_length=8,
        max_target_length=8,
        max_shapes=2,
        seed=5,
    )


def make_plain(tokenizers, seed):
    """A compiled model, after a few epochs."""
    keras.utils.set_random_seed(seed)
    model = kt.Seq2Seq(
        **SIZES,
        dropout=0.0,
        source_tokenizer=tokenizers["characters"],
        target_tokenizer=tokenizers["words"],
        max_source_length=30,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            kt.WarmupInverseSquareRoot(1e-2, 20), beta_2=0.98
        ),
        loss=kt.LabelSmoothedCrossEntropy(0.05),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        micro_batches=2,
        consistency=0.5,
    )
    model.fit(make_data().dataset, epochs=20, shuffle=False, verbose=0)
    return model


def make_options(tokenizers):
    """A model of many options, with one tokenizer for both sides."""
    return kt.Seq2Seq(
        **SIZES,
        num_decoder_layers=2,
        tie_embeddings="none",
        activation="silu",
        normalize_first=True,
        positions=kt.RotaryEmbedding(),
        attention_options={
            "num_key_value_heads": 1,
            "dropout": 0.2,
            "pattern": kt.LocalWindow(2),
        },
        feed_forward_options={"gated": True, "use_bias": False},
        residual_options={"normalization": "rms", "stochastic_depth": 0.1},
        rematerialize=True,
        source_tokenizer=tokenizers["sentence_piece"],
        name="options",
    )


def make_layers():
    """A Keras model of the layers, one part of it frozen."""
    block = {"intermediate_dim": 5, "num_heads": 2}
    x = inputs = keras.Input((None, 6))
    x = kt.PositionalEncoding()(x)
    x = kt.EncoderBlock(
        **block, positions=kt.RelativePositionBias(8, 5), trainable=False
    )(x)
    encoded = kt.EncoderStack(
        num_layers=1,
        **block,
        positions=kt.AlibiBias(),
        attention_options={"pattern": kt.GlobalLocal(2, 1)},
    )(x)
    x = kt.LearnedPositionalEncoding(11)(x)
    x = kt.DecoderBlock(**block)(x, encoded)
    x = kt.DecoderStack(num_layers=1, **block, normalize_first=True)(x, encoded)
    x = kt.MultiHeadAttention(
        num_heads=2, key_dim=4, pattern=kt.Strided(3, 1), use_gate=True
    )(x, x)
    x = kt.FeedForward(7, activation="gelu")(x)
    return keras.Model(inputs, x)


def make_preset(tokenizers):
    model = kt.Seq2Seq(
        **SIZES,
        positions=kt.LearnedPositionalEncoding(13),
        source_tokenizer=tokenizers["sentence_piece"],
        target_tokenizer=tokenizers["words"],
    )
    model.save_to_preset(FOLDER / "preset")
    return logits(model)


def make_fit():
    """Checkpoints of a stopped `fit`, and the losses of one that was not stopped."""

    def fit(folder, *callbacks):
        model, data = keras.saving.load_model(FOLDER / "plain.keras"), make_data()
        losses = Losses()
        early = keras.callbacks.EarlyStopping("loss", patience=3)
        checkpoints = kt.Checkpoints(folder, data, save_every=2, keep=1)
        model.fit(
            data.dataset,
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[losses, *callbacks, early, checkpoints],
        )
        return {
            "losses": losses.losses,
            "batches_per_epoch": data.batches_per_epoch,
            "logits": logits(model),
        }

    with tempfile.TemporaryDirectory() as folder:
        expected = fit(folder)
    try:
        fit(FOLDER / "checkpoints", Stop(1, 3))
    except KeyboardInterrupt:
        return expected


def make_run():
    """The folder of a stopped run, and that of one that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("train.tsv", "valid.tsv"):
            shutil.copy(FOLDER / name, root)
        options = {
            "train": [str(root / "train.tsv")],
            "valid": [str(root / "valid.tsv")],
            "init": str(FOLDER / "plain.keras"),
            "max_length": 20,
            "export": False,
            "dropout": 0.1,
            "attention_dropout": 0.05,
            "epochs": 3,
            "tokens_per_batch": 70,
            "learning_rate": 3e-3,
            "warmup_steps": 4,
            "cooldown": 1,
            "consistency": 0.5,
            "micro_batches": 2,
            "average": 2,
            "patience": 5,
            "save_every": 2,
            "num_beams": 1,
            "verbose": 0,
        }
        trained = train(Recipe(**options, output=str(root / "ended")))
        whole = root / "ended"
        history = (whole / "history.csv").read_text()
        keep(whole, ["options.toml", "figures.json", "model.keras"], root)
        run.HistoryFile = StoppingHistoryFile
        with contextlib.suppress(KeyboardInterrupt):
            train(Recipe(**options, output=str(root / "stopped")))
        keep(
            root / "stopped",
            ["options.toml", "history.csv", "initial.keras", "checkpoints"],
            root,
        )
    return {
        "history": history,
        "figures": trained.figures,
        "logits": logits(trained.model),
    }


def keep(folder, names, root):
    """Copies files of a run into this folder."""
    target = FOLDER / folder.name
    target.mkdir()
    for name in names:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, target / name)
        elif name.endswith(".toml"):
            text = (folder / name).read_text().replace(str(root), ROOT)
            (target / name).write_text(text.replace(str(FOLDER), ROOT))
        elif name.endswith(".keras"):
            compress(folder / name, target / name)
        else:
            shutil.copy(folder / name, target / name)


def make_translation(model):
    """A translation of `valid.tsv`'s sources that was stopped after a window."""
    source = FOLDER / "source.txt"
    lines = (FOLDER / "valid.tsv").read_text().splitlines()
    source.write_text("".join(line.split("\t")[0] + "\n" for line in lines))
    kwargs = {"window": 3, "verbose": 0, "search": kt.BeamSearch(3, 0.6)}
    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder, "target.txt")
        kt.translate_file(model, source, whole, **kwargs)
        expected = whole.read_text()
    generate, calls = model.generate, []

    def stop(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*args, **kwargs)

    model.generate = stop
    try:
        kt.translate_file(model, source, FOLDER / "target.txt", **kwargs)
    except KeyboardInterrupt:
        return expected


def main():
    write_text(FOLDER / "train.tsv", 41, 1)
    write_text(FOLDER / "valid.tsv", 7, 2)
    tokenizers = make_tokenizers()
    expected = {"tokenizers": {}, "logits": {}}
    texts = ["bad", "A B", "the cat", ">>fra<< a cat", ""]
    for name, tokenizer in tokenizers.items():
        tokenizer.save(FOLDER / f"{name}.json")
        rows = tokenizer.tokenize(texts, add_end=True)
        back = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
        expected["tokenizers"][name] = {"ids": rows.to_list(), "texts": back}
    expected["texts"] = texts

    plain, other = make_plain(tokenizers, 1), make_plain(tokenizers, 2)
    models = {
        "plain": plain,
        "options": make_options(tokenizers),
        "ensemble": kt.Ensemble([plain, other]),
    }
    for name, model in models.items():
        expected["logits"][name] = logits(model)
        save(model, f"{name}.keras")
    layers = make_layers()
    expected["layers"] = rounded(layers(NUMBERS))
    save(layers, "layers.keras")
    expected["logits"]["preset"] = make_preset(tokenizers)
    found, scores = plain.generate(TEXTS, kt.BeamSearch(3, 0.6), return_scores=True)
    expected["generated"] = {
        "sources": TEXTS,
        "texts": found,
        "scores": rounded(scores),
    }
    expected["fit"] = make_fit()
    expected["run"] = make_run()
    expected["translation"] = make_translation(
        keras.saving.load_model(FOLDER / "plain.keras")
    )
    expected["iterations"] = int(plain.optimizer.iterations)
    expected["metrics"] = [metric.name for metric in plain.metrics]
    expected["inputs"], expected["numbers"] = INPUTS, NUMBERS.tolist()
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
