"""PEFT and this library load the adapters of each other, with equal logits."""

import copy
import json

import marian_folders
import numpy as np
import peft
import published_models
import pytest
import torch
from gpt2_folders import random_model
from keras import ops
from layer_contract import with_random_weights

from keras_transformer import CausalLM, Seq2Seq, enable_lora, merge_lora
from keras_transformer.interoperability import (
    load_adapter,
    load_pretrained,
    save_adapter,
    save_pretrained,
)
from keras_transformer.training.lora import adapted_layers, matrices

pytestmark = [
    pytest.mark.once("torch"),
    # PEFT reads an attribute of transformers that has another name in its version 6.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

ROWS = np.random.default_rng(2).integers(0, 12, (3, 7))
SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 11, "num_heads": 2}


def random_matrices(model, seed=5):
    """Sets the matrices of LoRA to random numbers."""
    random = np.random.default_rng(seed)
    for layer in adapted_layers(model).values():
        for matrix in matrices(layer):
            matrix.assign(random.normal(0, 0.3, matrix.shape))
    return model


def random_adapter(theirs, **options):
    """Returns a model of transformers with an adapter of random numbers."""
    is_gpt2 = theirs.config.model_type == "gpt2"  # whose weights are transposed
    config = peft.LoraConfig(**options, fan_in_fan_out=is_gpt2)
    adapted = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return adapted


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    theirs = random_model()
    folder = tmp_path_factory.mktemp("gpt2")
    theirs.save_pretrained(folder)
    return theirs, folder


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian") / "model"
    theirs = marian_folders.random_model(folder)
    return theirs, folder


def gpt2_logits(model):
    if isinstance(model, CausalLM):
        return ops.convert_to_numpy(model(ROWS))[..., :47]
    with torch.no_grad():
        return model(torch.tensor(ROWS)).logits.numpy()


def marian_logits(model):
    if isinstance(model, Seq2Seq):
        inputs = {"encoder_token_ids": ROWS, "decoder_token_ids": ROWS[:, :4]}
        return ops.convert_to_numpy(model(inputs))
    rows = torch.tensor(ROWS)
    with torch.no_grad():
        return model(rows, decoder_input_ids=rows[:, :4]).logits.numpy()


CASES = {
    "gpt2": (load_pretrained, gpt2_logits, ["c_attn", "attn.c_proj", "c_fc"]),
    "marian": (load_pretrained, marian_logits, ["q_proj", "v_proj", "fc2"]),
}


@pytest.mark.parametrize("targets", [("query", "value"), "all", "self_attention.key"])
@pytest.mark.parametrize("family", CASES)
def test_peft_loads_ours(family, targets, request, tmp_path):
    theirs, folder = request.getfixturevalue(family)
    load, logits, _ = CASES[family]
    ours = load(folder)
    before = logits(ours)
    paths = enable_lora(ours, rank=3, alpha=4, targets=targets)
    random_matrices(ours)
    assert np.abs(logits(ours) - before).max() > 0.01
    save_adapter(ours, tmp_path / "adapter", folder)
    loaded = peft.PeftModel.from_pretrained(
        copy.deepcopy(theirs), tmp_path / "adapter"
    ).eval()
    np.testing.assert_allclose(logits(loaded), logits(ours), atol=1e-4)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folder)
    # The way back has the same matrices.
    again = load(folder)
    assert sorted(load_adapter(again, tmp_path / "adapter")) == sorted(paths)
    for path, layer in adapted_layers(ours).items():
        found = adapted_layers(again)[path]
        assert found.lora_alpha / found.lora_rank == pytest.approx(4 / 3)
        for a, b in zip(matrices(found), matrices(layer), strict=True):
            np.testing.assert_array_equal(*map(ops.convert_to_numpy, (a, b)))
    np.testing.assert_allclose(logits(again), logits(ours), atol=1e-6)
    names = {weight.name for weight in again.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b"}


@pytest.mark.parametrize("family", CASES)
def test_we_load_those_of_peft(family, request, tmp_path):
    theirs, folder = request.getfixturevalue(family)
    load, logits, modules = CASES[family]
    adapted = random_adapter(
        theirs,
        r=3,
        lora_alpha=5,
        target_modules=modules,
        use_rslora=True,
        rank_pattern={modules[0]: 2},
        alpha_pattern={rf".*[01]\.{modules[-1]}|mlp.{modules[-1]}": 7},
    )
    adapted.save_pretrained(tmp_path)
    ours = load(folder)
    load_adapter(ours, tmp_path)
    np.testing.assert_allclose(logits(ours), logits(adapted), atol=1e-4)
    merged = adapted.merge_and_unload()
    np.testing.assert_allclose(logits(merge_lora(ours)), logits(merged), atol=1e-4)


def test_a_model_of_no_family(tmp_path):
    def model():
        return with_random_weights(CausalLM(**SIZES, vocabulary_size=13))

    ours, loaded = model(), model()
    enable_lora(ours, 2, targets="all")
    save_adapter(random_matrices(ours), tmp_path / "adapter")
    load_adapter(loaded, tmp_path / "adapter")
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(m(ROWS)) for m in (ours, loaded))
    )
    with pytest.raises(ValueError, match="`model` must have no LoRA yet"):
        load_adapter(loaded, tmp_path / "adapter")
    other = Seq2Seq(**SIZES, vocabulary_size=13)
    with pytest.raises(ValueError, match="must have LoRA; received a model without"):
        save_adapter(other, tmp_path / "other")
    with pytest.raises(ValueError, match="`module_names` must have a module for 'dec"):
        save_adapter(ours, tmp_path / "other", module_names={})
    larger = CausalLM(**{**SIZES, "num_heads": 1, "hidden_dim": 9}, vocabulary_size=13)
    with pytest.raises(ValueError, match="of shape"):
        load_adapter(larger, tmp_path / "adapter")
    short = CausalLM(**{**SIZES, "intermediate_dim": 7}, vocabulary_size=13)
    with pytest.raises(ValueError, match="of shape"):
        load_adapter(short, tmp_path / "adapter")
    assert not adapted_layers(short)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"peft_type": "IA3"},
            "`peft_type` in .* must be 'LORA'; received `peft_type='",
        ),
        ({"use_dora": True}, "`use_dora` in .* must be False; received"),
        ({"bias": "all"}, "`bias` in .* must be 'none'"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` in"),
        ({"r": 3}, "must have the rank 3 of adapter_config.json"),
        ({"rank_pattern": [1]}, "`rank_pattern` in .* must be a dictionary"),
        ({"use_rslora": "x"}, "use_rslora"),
    ],
)
def test_other_adapters_are_refused(changes, message, tmp_path):
    ours = CausalLM(**SIZES, vocabulary_size=13)
    enable_lora(ours, 2)
    save_adapter(ours, tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    fresh = CausalLM(**SIZES, vocabulary_size=13)
    with pytest.raises(ValueError, match=message):
        load_adapter(fresh, tmp_path / "adapter")
    assert not adapted_layers(fresh)


def test_unknown_modules_are_refused(gpt2, tmp_path):
    adapted = random_adapter(gpt2[0], target_modules=["c_fc"], r=2)
    adapted.save_pretrained(tmp_path)
    fresh = CausalLM(**SIZES, vocabulary_size=13)
    message = "received 'base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight'. The"
    with pytest.raises(ValueError, match=message):
        load_adapter(fresh, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"adapter_config\.json"):
        load_adapter(fresh, tmp_path / "none")


@pytest.mark.parametrize("name", ["llama 3", "qwen 3", "t5", "bart", "bert"])
def test_other_families(name, tmp_path):
    theirs = published_models.random_model(name)
    theirs.save_pretrained(tmp_path / "model")
    ours = load_pretrained(tmp_path / "model")
    # Of different tokens: among equal ones, queries make no difference.
    rows, targets = np.array([[7, 30, 9, 11, 25]]), np.array([[9, 4, 21]])

    def outputs(model):
        if model is ours or model is again:
            inputs = {"encoder_token_ids": rows, "decoder_token_ids": targets}
            found = model(inputs if isinstance(model, Seq2Seq) else rows)
            return ops.convert_to_numpy(found)[..., :47]
        options = {}
        if theirs.config.is_encoder_decoder:
            options = {"decoder_input_ids": torch.tensor(targets)}
        with torch.no_grad():
            return model(torch.tensor(rows), **options)[0].numpy()

    again = None
    before = outputs(theirs)
    enable_lora(ours, rank=2)
    random_matrices(ours)
    save_adapter(ours, tmp_path / "adapter")
    again = load_pretrained(tmp_path / "model")
    load_adapter(again, tmp_path / "adapter")
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    expected = outputs(adapted)
    assert np.abs(expected - before).max() > 0.01
    for model in (ours, again):
        np.testing.assert_allclose(outputs(model), expected, atol=1e-4)
    save_pretrained(ours, tmp_path / "merged")
    merged = type(theirs).from_pretrained(tmp_path / "merged").eval()
    np.testing.assert_allclose(outputs(merged), expected, atol=1e-4)
