"""`CausalLM` computes and generates what Llama and Qwen 3 of transformers do."""

import numpy as np
import pytest
import torch
from layer_contract import to_numpy
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from keras_transformer import CausalLM, GreedySearch
from keras_transformer.layers import RotaryEmbedding

VOCABULARY, WIDTH, NUM_HEADS, KEY_VALUE_HEADS, KEY_DIM = 13, 12, 6, 3, 14
NEW_TOKENS = 5
# Also one that is shorter than the original length of a scaling, and one padded to it.
PROMPTS = [[2, 5, 6, 7, 8, 9, 4, 11, 12], [2, 9], [2, 4, 4, 10, 3, 5]]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 17,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "head_dim": KEY_DIM,
    "rms_norm_eps": 0.01,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


def randomized(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = 0.5 * torch.randn(weight.shape, generator=generator)
            weight.copy_(noise + name.endswith("norm.weight"))
    return model.eval()


def qwen_3_with_windows():
    parameters = {"rope_type": "llama3", "factor": 4.0, "rope_theta": 100.0}
    parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 3.0}
    config = Qwen3Config(
        **SIZES,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
        rope_parameters={**parameters, "original_max_position_embeddings": 23},
    )
    assert config.layer_types == ["full_attention", "sliding_attention"]
    scaling = {
        "type": "llama3",
        "factor": 4.0,
        "original_max_length": 23,
        "low_frequency_factor": 1.0,
        "high_frequency_factor": 3.0,
    }
    options = {"query_key_normalization": "rms", "sliding_window": [None, 3]}
    return randomized(Qwen3ForCausalLM(config)), scaling, options


def llama_with_dynamic_scaling():
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    config = LlamaConfig(**SIZES, rope_parameters=parameters, max_position_embeddings=4)
    scaling = {"type": "dynamic", "factor": 2.0, "original_max_length": 4}
    return randomized(LlamaForCausalLM(config)), scaling, {}


MODELS = {"qwen 3": qwen_3_with_windows, "dynamic": llama_with_dynamic_scaling}


def ours_of(theirs, scaling, options):
    model = CausalLM(
        num_layers=2,
        hidden_dim=WIDTH,
        intermediate_dim=17,
        num_heads=NUM_HEADS,
        vocabulary_size=VOCABULARY,
        dropout=0.0,
        activation="silu",
        layer_norm_epsilon=0.01,
        positions=RotaryEmbedding(100.0, scaling),
        attention_options={
            "key_dim": KEY_DIM,
            "num_key_value_heads": KEY_VALUE_HEADS,
            "use_bias": False,
            **options,
        },
        feed_forward_options={"gated": True, "use_bias": False},
        residual_options={"normalization": "rms"},
        tie_embeddings=False,
        scale_embeddings=False,
        output_bias=False,
    )

    def copy(layer, module, transposed=True):
        weight = module.weight.detach().numpy()
        weight = weight.T if transposed else weight
        layer.set_weights([weight.reshape(layer.weights[0].shape)])

    copy(model.target_embedding, theirs.model.embed_tokens, transposed=False)
    for block, layer in zip(model.decoder.blocks, theirs.model.layers, strict=True):
        attention, own = block.self_attention, layer.self_attn
        copy(attention.query_dense, own.q_proj)
        copy(attention.key_dense, own.k_proj)
        copy(attention.value_dense, own.v_proj)
        copy(attention.output_dense, own.o_proj)
        if attention.query_norm is not None:
            copy(attention.query_norm, own.q_norm)
            copy(attention.key_norm, own.k_norm)
        copy(block.self_attention_residual.norm, layer.input_layernorm)
        copy(block.feed_forward.gate_dense, layer.mlp.gate_proj)
        copy(block.feed_forward.intermediate_dense, layer.mlp.up_proj)
        copy(block.feed_forward.output_dense, layer.mlp.down_proj)
        copy(block.feed_forward_residual.norm, layer.post_attention_layernorm)
    copy(model.decoder.norm, theirs.model.norm)
    copy(model.output_dense, theirs.lm_head)
    return model


def fresh(name):
    """A new model, since a dynamic scaling keeps the longest length."""
    return MODELS[name]()[0]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_outputs(name):
    ours = ours_of(*MODELS[name]())
    for row in PROMPTS:
        with torch.no_grad():
            expected = fresh(name)(torch.tensor([row])).logits.numpy()
        np.testing.assert_allclose(to_numpy(ours(np.array([row]))), expected, atol=1e-4)
    result = ours.generate(PROMPTS, GreedySearch(), max_length=NEW_TOKENS)
    outputs = [
        row[0, : lengths[0]].tolist()
        for row, lengths in zip(result.token_ids, result.lengths, strict=True)
    ]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        found = fresh(name).generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            suppress_tokens=[0],
        )
        assert output == found[0, len(prompt) :].tolist()
    assert max(map(len, outputs)) == NEW_TOKENS


@pytest.mark.once("torch")
def test_cached_steps_respect_the_window_of_each_layer():
    model = ours_of(*qwen_3_with_windows())
    result = model.generate(PROMPTS, GreedySearch(), max_length=NEW_TOKENS)
    for prompt, ids, length in zip(
        PROMPTS, result.token_ids, result.lengths, strict=True
    ):
        row = [*prompt, *ids[0, : length[0]].tolist()]
        logits = to_numpy(model(np.array([row])))[0, len(prompt) - 1 : -1]
        logits[:, 0] = -np.inf
        assert logits.argmax(axis=-1).tolist() == row[len(prompt) :]
