"""What an installation without TensorFlow does. `test_installation.py` runs it.

The program asserts everything itself, and ends with the folder of the library that it
has used. It uses only public names.
"""

import pathlib
import sys
import tempfile
from importlib import util

import keras
import numpy as np

import keras_transformer as kt

SIZES = {"num_layers": 2, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
SEARCHES = (kt.GreedySearch(), kt.BeamSearch(3))


def pairs(rows=24):
    """Sources of five tokens, which are also the targets; 2 ends, 1 starts."""
    tokens = np.random.default_rng(7).integers(3, 19, size=(rows, 5))
    ends, starts = np.full((rows, 1), 2), np.full((rows, 1), 1)
    inputs = {
        "encoder_token_ids": np.concatenate([tokens, ends], axis=1),
        "decoder_token_ids": np.concatenate([starts, tokens], axis=1),
    }
    return inputs, inputs["encoder_token_ids"]


def compile_model(model, **options):
    model.compile(
        optimizer=keras.optimizers.Adam(
            kt.WarmupInverseSquareRoot(peak_learning_rate=1e-2, warmup_steps=4)
        ),
        loss=kt.LabelSmoothedCrossEntropy(),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        **options,
    )


def check_layers():
    inputs = keras.Input((None, 8))
    encoded = kt.EncoderStack(num_layers=1, intermediate_dim=16, num_heads=2)(
        kt.PositionalEncoding()(inputs)
    )
    outputs = kt.MultiHeadAttention(num_heads=2, key_dim=4)(encoded, encoded)
    model = keras.Model(inputs, outputs)
    assert model(np.zeros((3, 5, 8), "float32")).shape == (3, 5, 8)


def check_seq2seq(folder):
    inputs, targets = pairs()
    model = kt.Seq2Seq(**SIZES, vocabulary_size=19, dropout=0.0)
    compile_model(model, micro_batches=2)
    checkpoints = kt.Checkpoints(folder / "checkpoints")
    losses = model.fit(
        *(inputs, targets),
        **{"batch_size": 12, "epochs": 3, "verbose": 0},
        callbacks=[checkpoints, kt.TrainingProgress()],
        validation_data=(inputs, targets),
    ).history["loss"]
    assert losses[-1] < losses[0]
    assert kt.list_checkpoints(folder / "checkpoints")
    sources = inputs["encoder_token_ids"][:3]
    for search in SEARCHES:
        result = model.generate(sources, search=search, max_length=6)
        assert result.token_ids.dtype == "int32"
        assert np.all(result.token_ids < 19)
    expected = model(inputs)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_allclose(
        *map(keras.ops.convert_to_numpy, (loaded(inputs), expected)), rtol=1e-5
    )
    model.save_to_preset(folder / "preset")
    again = kt.Seq2Seq.from_preset(str(folder / "preset"))
    assert again.count_params() == model.count_params()
    kt.Ensemble([model, again]).generate(sources, search=kt.BeamSearch(2))
    return loaded


def check_language_model():
    model = kt.CausalLM.from_preset(
        "transformer_tiny", vocabulary_size=19, num_layers=1
    )
    compile_model(model)
    tokens = np.random.default_rng(7).integers(3, 19, size=(8, 6))
    model.fit(tokens[:, :-1], tokens[:, 1:], verbose=0)
    result = model.generate(tokens[:2, :3], search=kt.Sampling(top_k=5), max_length=4)
    assert result.token_ids.shape[0] == 2


def check_missing(use, name):
    """The error names the packages and has the command that installs them."""
    try:
        use()
    except ModuleNotFoundError as error:
        message = str(error)
        assert message.startswith(f"`{name}` requires the package"), message
        assert 'To install: pip install "' in message, message
        assert '"tensorflow>=' in message or '"sacrebleu>=' in message, message
    else:
        raise AssertionError(f"{name} has raised no error")


def check_advice(model, folder):
    check_missing(lambda: kt.SentencePieceTokenizer, "SentencePieceTokenizer")
    check_missing(lambda: kt.parallel_dataset, "parallel_dataset")
    check_missing(lambda: kt.load_pretrained, "load_pretrained")
    check_missing(lambda: kt.translate_file, "translate_file")
    check_missing(lambda: kt.text, "keras_transformer.text")
    check_missing(lambda: kt.dataset, "keras_transformer.dataset")
    check_missing(lambda: kt.evaluation, "keras_transformer.evaluation")
    check_missing(lambda: kt.recipe, "keras_transformer.recipe")
    check_missing(lambda: kt.interoperability.load_pretrained, "load_pretrained")
    check_missing(lambda: model.export(folder / "saved_model"), "export_saved_model")
    check_missing(
        lambda: model.export(folder / "ct2", format="ctranslate2"), "export_ctranslate2"
    )


def main():
    assert util.find_spec("tensorflow") is None
    check_layers()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = check_seq2seq(folder)
        check_advice(model, folder)
    check_language_model()
    assert not [name for name in sys.modules if name.startswith("tensorflow")]
    backend = keras.backend.backend()
    print(f"{pathlib.Path(kt.__file__).parent} works on {backend} without TensorFlow.")


if __name__ == "__main__":
    main()
