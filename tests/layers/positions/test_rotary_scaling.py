"""Scaled rotary embeddings rotate as those of transformers."""

import math

import keras
import numpy as np
import pytest
import torch
from keras import ops
from layer_contract import check_layer, on_torch, to_numpy
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import DecoderBlock, RotaryEmbedding
from keras_transformer.layers.positions.rotary_scaling import scaled_frequencies

RNG = np.random.default_rng(37)
KEY_DIM, NUM_HEADS, LENGTH, ORIGINAL = 14, 3, 11, 7
HEADS = RNG.normal(size=(2, LENGTH, NUM_HEADS, KEY_DIM)).astype("float32")
ROWS = np.array([[*range(LENGTH)], [*range(23, 23 + LENGTH)]])

THEIR_NAMES = {
    "type": "rope_type",
    "original_max_length": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "original_max_length": 512,
    "low_frequency_factor": 1.0,
    "high_frequency_factor": 4.0,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_length": 300}
MAGNITUDES = {"mscale": 0.7, "mscale_all_dim": 1.3}
SCALINGS = {
    "linear": {"type": "linear", "factor": 2.5},
    "dynamic": {"type": "dynamic", "factor": 3.0, "original_max_length": ORIGINAL},
    "yarn": YARN,
    "llama3": LLAMA3,
    "yarn, betas": {**YARN, "beta_fast": 5, "beta_slow": 2, "truncate": False},
    "yarn, attention": {**YARN, "attention_factor": 0.5, "beta_fast": None},
    "yarn, magnitudes": {**YARN, **MAGNITUDES},
    "yarn, one limit": {**YARN, "beta_fast": 3, "beta_slow": 3, "truncate": False},
    "yarn, short": {**YARN, "factor": 1.0, "original_max_length": 2},
}
each_scaling = pytest.mark.parametrize(
    "name", [*list(SCALINGS)[:4], *map(on_torch, list(SCALINGS)[4:])]
)


def their_config(scaling, base, **options):
    parameters = {THEIR_NAMES.get(name, name): x for name, x in scaling.items()}
    if scaling["type"] == "dynamic":
        del parameters["original_max_position_embeddings"]
    return LlamaConfig(
        hidden_size=NUM_HEADS * KEY_DIM,
        num_attention_heads=NUM_HEADS,
        max_position_embeddings=ORIGINAL,
        rope_parameters={**parameters, "rope_theta": base},
        **options,
    )


def their_rotation(module, embedding, heads, positions):
    """The heads, rotated by a module of transformers."""
    heads, positions = torch.tensor(heads), torch.tensor(positions)
    cos, sin = embedding(heads, positions)
    return module.apply_rotary_pos_emb(heads, heads, cos, sin, unsqueeze_dim=2)[0]


@each_scaling
@pytest.mark.parametrize("base", [10000.0, on_torch(50.0)])
def test_equals_transformers(name, base):
    scaling = SCALINGS[name]
    layer = RotaryEmbedding(base, scaling)
    config = their_config(scaling, base)
    for row, positions in enumerate(ROWS):  # a dynamic scaling keeps the longest
        embedding = modeling_llama.LlamaRotaryEmbedding(config)
        heads, positions = HEADS[[row]], positions[None]
        expected = their_rotation(modeling_llama, embedding, heads, positions)
        output = to_numpy(layer(HEADS, positions=ROWS))[row]
        np.testing.assert_allclose(output, expected[0].numpy(), atol=2e-5)
        output = to_numpy(layer(heads, positions=positions[0]))
        np.testing.assert_allclose(output, expected.numpy(), atol=2e-5)
    plain = to_numpy(RotaryEmbedding(base)(HEADS, positions=ROWS))
    assert np.abs(to_numpy(layer(HEADS, positions=ROWS)) - plain).max() > 0.01 or (
        scaling["factor"] == 1
    )


@pytest.mark.once("torch")
@each_scaling
@pytest.mark.parametrize("base", [50.0, 500000.0])
def test_frequencies_equal_those_of_transformers(name, base):
    scaling = RotaryEmbedding(base, SCALINGS[name]).scaling
    frequencies = scaled_frequencies(KEY_DIM, base, scaling)
    config = their_config(SCALINGS[name], base)
    expected, _ = ROPE_INIT_FUNCTIONS[scaling["type"]](config, "cpu")
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=1e-6)


@pytest.mark.once("torch")
def test_every_part_of_a_scaling_is_covered():
    """Some frequencies are kept, some are divided, and some lie between."""
    for name in ("yarn", "llama3"):
        scaling = RotaryEmbedding(scaling=SCALINGS[name]).scaling
        plain = 10000.0 ** (-np.arange(0, KEY_DIM, 2) / KEY_DIM)
        ratios = plain / scaled_frequencies(KEY_DIM, 10000.0, scaling)
        assert np.isclose(ratios[0], 1) and np.isclose(ratios[-1], scaling["factor"])
        between = (ratios > 1.01) & (ratios < 0.99 * scaling["factor"])
        assert between.any()


def test_a_dynamic_scaling_grows_with_the_longest_position_of_a_row():
    layer = RotaryEmbedding(scaling=SCALINGS["dynamic"])
    alone = [to_numpy(layer(HEADS[[i]], positions=ROWS[[i]])) for i in (0, 1)]
    together = to_numpy(layer(HEADS, positions=ROWS))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)
    short = to_numpy(layer(HEADS[:, :ORIGINAL]))
    plain = to_numpy(RotaryEmbedding()(HEADS[:, :ORIGINAL]))
    np.testing.assert_allclose(short, plain, atol=1e-6)
    longer = to_numpy(layer(HEADS))[:, :ORIGINAL]
    assert np.abs(longer - plain).max() > 0.1


def test_a_cached_key_keeps_the_rotation_of_its_step():
    """The embedding of transformers grows from step to step as well."""
    scaling = SCALINGS["dynamic"]
    embedding = modeling_llama.LlamaRotaryEmbedding(their_config(scaling, 10000.0))
    layer = RotaryEmbedding(scaling=scaling)
    for chunk in np.split(np.arange(LENGTH), [5, 6, 7, 8, 10]):
        heads, positions = HEADS[:1, chunk], chunk[None]
        expected = their_rotation(modeling_llama, embedding, heads, positions)
        output = to_numpy(layer(heads, start_index=int(chunk[0])))
        np.testing.assert_allclose(output, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("name", ["dynamic", on_torch("yarn")])
def test_under_compilation(name):
    layer = RotaryEmbedding(scaling=SCALINGS[name])
    positions = ops.convert_to_tensor(ROWS, "int32")
    compiled = compile_function(lambda x, p: layer(x, positions=p), layer)
    output = to_numpy(compiled(ops.convert_to_tensor(HEADS), positions))
    expected = to_numpy(layer(HEADS, positions=ROWS))
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("scaling", [None, on_torch(SCALINGS["linear"])])
def test_the_first_dimensions_only(scaling):
    """GPT-NeoX rotates a part of the dimensions."""
    parameters = {"rope_type": "default", **({} if scaling is None else scaling)}
    if scaling is not None:
        parameters["rope_type"] = parameters.pop("type")
    rotary_dim = 6
    config = GPTNeoXConfig(
        hidden_size=NUM_HEADS * KEY_DIM,
        num_attention_heads=NUM_HEADS,
        rope_parameters={
            **parameters,
            "rope_theta": 10000.0,
            "partial_rotary_factor": rotary_dim / KEY_DIM,
        },
    )
    embedding = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)
    assert embedding.inv_freq.shape == (rotary_dim // 2,)
    expected = their_rotation(modeling_gpt_neox, embedding, HEADS, ROWS)
    layer = RotaryEmbedding(scaling=scaling, rotary_dim=rotary_dim)
    output = to_numpy(layer(HEADS, positions=ROWS))
    np.testing.assert_allclose(output, expected.numpy(), atol=2e-5)
    np.testing.assert_array_equal(output[..., rotary_dim:], HEADS[..., rotary_dim:])


@pytest.mark.parametrize(
    "arguments",
    [{"scaling": SCALINGS["dynamic"], "rotary_dim": 6}, on_torch({"scaling": LLAMA3})],
)
def test_contract(arguments):
    shapes = [(None, NUM_HEADS, KEY_DIM)]
    check_layer(RotaryEmbedding, arguments, [HEADS], [], shapes)


@pytest.mark.once("torch")
def test_a_block_of_one_pair_of_dimensions():
    """The exponents of a dynamic scaling have the number of the others below them."""
    heads = HEADS[..., :2]
    output = to_numpy(RotaryEmbedding(scaling=SCALINGS["dynamic"])(heads))
    np.testing.assert_allclose(output, to_numpy(RotaryEmbedding()(heads)), atol=1e-6)


@pytest.mark.once("torch")
def test_a_half_type_rounds_once():
    layer = RotaryEmbedding(scaling=YARN, dtype="bfloat16")
    heads = to_numpy(ops.cast(HEADS, "bfloat16"))
    output = layer(heads, positions=ROWS)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    expected = to_numpy(RotaryEmbedding(scaling=YARN)(heads, positions=ROWS))
    np.testing.assert_allclose(to_numpy(output), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.once("torch")
class TestErrors:
    @pytest.mark.parametrize(
        ("scaling", "message"),
        [
            ("linear", "`scaling` must be .* 'linear', .*`scaling='linear'`"),
            ({"factor": 2.0}, "`scaling` must be .*whose entry 'type' is one of"),
            ({"type": "longrope", "factor": 2}, "whose entry 'type' is one of"),
            ({"type": ["yarn"], "factor": 2}, "whose entry 'type' is one of"),
            ({"type": "linear"}, "must have the entries 'factor'; received no 'fac"),
            ({"type": "linear", "factor": None}, "received no 'factor' in"),
            ({**YARN, "rope_theta": 1.0}, "and may have .*; received 'rope_theta' in"),
            ({**YARN, "mscale": 1.0}, "'mscale_all_dim'.*; received no 'mscale_all_di"),
            ({**LLAMA3, "beta_fast": 32}, "type 'llama3' .*; received 'beta_fast' in"),
            ({"type": "linear", "factor": 0}, "`factor` must be .*above 0; .*`factor="),
            ({**YARN, "factor": math.nan}, "`factor` must be a finite number"),
            ({**YARN, "factor": "4"}, "`factor` must be a finite number"),
            ({**YARN, "attention_factor": -1}, "`attention_factor` must be a finite"),
            ({**YARN, "truncate": 0}, "`truncate` must be True or False; .*an entry"),
            ({**YARN, "beta_slow": 33}, "`beta_fast` must be .* of at least 33"),
            (
                {**YARN, "original_max_length": 2.5},
                "`original_max_length` must be an int of at least 1; .*an entry",
            ),
            (
                {**LLAMA3, "high_frequency_factor": 1.0},
                "`high_frequency_factor` must be a finite number above 1.0",
            ),
        ],
    )
    def test_of_a_scaling(self, scaling, message):
        with pytest.raises(ValueError, match=message):
            RotaryEmbedding(scaling=scaling)

    def test_of_a_wavelength(self):
        with pytest.raises(ValueError, match="`max_wavelength` must be .*above 1;"):
            RotaryEmbedding(1.0, YARN)

    @pytest.mark.parametrize(
        ("rotary_dim", "message"),
        [
            (3, "`rotary_dim` must be even.*`rotary_dim=3`"),
            (16, "`rotary_dim` must be at most `key_dim`; .*`key_dim=14`"),
            (0, "`rotary_dim` must be an int of at least 1"),
        ],
    )
    def test_of_the_rotated_dimensions(self, rotary_dim, message):
        with pytest.raises(ValueError, match=message):
            RotaryEmbedding(rotary_dim=rotary_dim)(HEADS)

    def test_in_a_block(self):
        block = DecoderBlock(5, 3, positions=RotaryEmbedding(rotary_dim=6))
        with pytest.raises(ValueError, match="`rotary_dim` must be at most `key_dim`"):
            block(np.zeros((1, 2, 12), "float32"))
