"""BERT, ViT and GPT-2 of `docs/families.md` compute what transformers computes."""

import gpt2_folders
import numpy as np
import pytest
import torch
from family_weights import (
    copy_attention,
    copy_conv,
    copy_dense,
    copy_norm,
    documented_model,
    numpy,
    randomized,
    saved_and_loaded,
)
from keras import ops
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

from keras_transformer import load_pretrained

SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 64, "attn_implementation": "eager"},
}


@pytest.mark.once("torch")
def test_bert(tmp_path):
    config = BertConfig(vocab_size=50, max_position_embeddings=20, **SIZES)
    theirs, ours = randomized(BertModel(config)), documented_model("BERT")["bert"]
    embeddings = theirs.embeddings
    for name, weight in {
        "tokens": embeddings.word_embeddings.weight,
        "segments": embeddings.token_type_embeddings.weight,
        "positions": embeddings.position_embeddings.weight,
    }.items():
        ours.get_layer(name).set_weights([numpy(weight)])
    copy_norm(ours.get_layer("norm"), embeddings.LayerNorm)
    copy_dense(ours.get_layer("pooler"), theirs.pooler.dense)
    blocks = ours.get_layer("encoder").blocks
    for block, layer in zip(blocks, theirs.encoder.layer, strict=True):
        own, output = layer.attention.self, layer.attention.output
        projections = own.query, own.key, own.value, output.dense
        copy_attention(block.self_attention, *projections)
        copy_norm(block.self_attention_residual.norm, output.LayerNorm)
        copy_dense(block.feed_forward.intermediate_dense, layer.intermediate.dense)
        copy_dense(block.feed_forward.output_dense, layer.output.dense)
        copy_norm(block.feed_forward_residual.norm, layer.output.LayerNorm)
    rng = np.random.default_rng(0)
    token_ids, segment_ids = rng.integers(1, 50, (3, 9)), rng.integers(0, 2, (3, 9))
    real = np.arange(9) < np.array([[9], [6], [3]])
    token_ids = np.where(real, token_ids, 0)
    expected = theirs(
        input_ids=torch.tensor(token_ids),
        token_type_ids=torch.tensor(segment_ids),
        attention_mask=torch.tensor(real.astype("int64")),
    )
    for model in (ours, saved_and_loaded(ours, tmp_path)):
        hidden, pooled = map(ops.convert_to_numpy, model([token_ids, segment_ids]))
        last = numpy(expected.last_hidden_state)
        np.testing.assert_allclose(hidden[real], last[real], atol=1e-5)
        np.testing.assert_allclose(pooled, numpy(expected.pooler_output), atol=1e-5)


@pytest.mark.once("torch")
def test_vit(tmp_path):
    config = ViTConfig(image_size=16, patch_size=4, **SIZES)
    theirs = randomized(ViTModel(config, add_pooling_layer=False))
    ours = documented_model("ViT")["vit"]
    embeddings = theirs.embeddings
    copy_conv(ours.get_layer("patches"), embeddings.patch_embeddings.projection)
    ours.get_layer("class_token").set_weights([numpy(embeddings.cls_token)[0]])
    positions = numpy(embeddings.position_embeddings)[0]
    ours.get_layer("positions").set_weights([positions])
    encoder = ours.get_layer("encoder")
    layers = getattr(theirs, "layers", None) or theirs.encoder.layer
    for block, layer in zip(encoder.blocks, layers, strict=True):
        modules = dict(layer.named_modules())
        linear = [m for m in modules.values() if isinstance(m, torch.nn.Linear)]
        copy_attention(block.self_attention, *linear[:4])
        copy_norm(block.self_attention_residual.norm, layer.layernorm_before)
        copy_norm(block.feed_forward_residual.norm, layer.layernorm_after)
        copy_dense(block.feed_forward.intermediate_dense, linear[4])
        copy_dense(block.feed_forward.output_dense, linear[5])
    copy_norm(encoder.norm, theirs.layernorm)
    pixels = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    expected = theirs(torch.tensor(pixels.transpose(0, 3, 1, 2))).last_hidden_state
    for model in (ours, saved_and_loaded(ours, tmp_path)):
        found = ops.convert_to_numpy(model(pixels))
        np.testing.assert_allclose(found, numpy(expected), atol=1e-5)


@pytest.mark.once("torch")  # tests/interoperability/test_load_pretrained.py runs on all
def test_gpt2(tmp_path):
    # `load_pretrained` adds a token of padding, and an unused bias.
    theirs = gpt2_folders.random_model(vocab_size=49, n_inner=64)
    theirs.save_pretrained(tmp_path)
    loaded, ours = load_pretrained(tmp_path), documented_model("GPT-2")["gpt2"]
    weights = [w for w in loaded.weights if w is not loaded.logits_bias]
    for weight, other in zip(ours.weights, weights, strict=True):
        weight.assign(other)
    rows = np.random.default_rng(0).integers(1, 46, (3, 9))
    expected = theirs(torch.tensor(rows)).logits
    for model in (ours, saved_and_loaded(ours, tmp_path)):
        found = ops.convert_to_numpy(model(rows))[..., :49]
        np.testing.assert_allclose(found, numpy(expected), atol=1e-5)
