"""T5, BART and Whisper of `docs/families.md` are those of transformers."""

import numpy as np
import pytest
import torch
from family_weights import (
    copy_attention,
    copy_bart_stack,
    copy_conv,
    copy_dense,
    copy_norm,
    documented_model,
    hypotheses,
    hypotheses_of_transformers,
    numpy,
    randomized,
    saved_and_loaded,
)
from keras import ops
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationMixin,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from keras_transformer import BeamSearch

RNG = np.random.default_rng(0)
LENGTHS = np.array([[19], [13], [5]])
SOURCES = RNG.integers(3, 50, (3, 19))
TARGETS = RNG.integers(3, 50, (3, 11))
FRAMES = RNG.normal(size=(3, 50, 8)).astype("float32")
BART_SIZES = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 50},
    "attn_implementation": "eager",
}


class T5:
    pad, end, start = 0, 1, 0

    def __init__(self):
        config = T5Config(
            **{"vocab_size": 50, "d_model": 32, "d_kv": 6, "d_ff": 64},
            **{"num_layers": 2, "num_heads": 4, "attn_implementation": "eager"},
        )
        self.theirs = randomized(T5ForConditionalGeneration(config))
        self.ours = documented_model("T5")["t5"]
        self.ours.target_embedding.set_weights([numpy(self.theirs.shared.weight)])
        self._copy(self.ours.encoder, self.theirs.encoder)
        self._copy(self.ours.decoder, self.theirs.decoder)
        norm = self.ours.decoder.norm
        norm.set_weights([norm.get_weights()[0] * 32**-0.5])

    def _copy(self, stack, theirs):
        table = theirs.block[0].layer[0].SelfAttention.relative_attention_bias
        for block, other in zip(stack.blocks, theirs.block, strict=True):
            first, *cross, last = other.layer
            attentions = [(block.self_attention, first.SelfAttention)]
            attentions += [(block.cross_attention, x.EncDecAttention) for x in cross]
            for own, attention in attentions:
                parts = attention.q, attention.k, attention.v, attention.o
                copy_attention(own, *parts, scale=6**0.5)
            block.self_attention.positions.set_weights([numpy(table.weight)])
            copy_norm(block.self_attention_residual.norm, first.layer_norm)
            for layer in cross:
                copy_norm(block.cross_attention_residual.norm, layer.layer_norm)
            feed_forward = last.DenseReluDense
            copy_dense(block.feed_forward.intermediate_dense, feed_forward.wi)
            copy_dense(block.feed_forward.output_dense, feed_forward.wo)
            copy_norm(block.feed_forward_residual.norm, last.layer_norm)
        copy_norm(stack.norm, theirs.final_layer_norm)


class Bart:
    pad, end, start = 1, 2, 2

    def __init__(self):
        config = BartConfig(
            **BART_SIZES, max_position_embeddings=40, scale_embedding=True
        )
        self.theirs = randomized(BartForConditionalGeneration(config))
        bias = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
        self.theirs.final_logits_bias.copy_(bias)
        self.ours, theirs = documented_model("BART")["bart"], self.theirs.model
        self.ours.target_embedding.set_weights([numpy(theirs.shared.weight)])
        self.ours.logits_bias.assign(numpy(bias)[0])
        for side, name in (("source", "encoder"), ("target", "decoder")):
            stack = getattr(theirs, name)
            encoding = getattr(self.ours, f"{side}_encoding")
            encoding.set_weights([numpy(stack.embed_positions.weight)[2:]])
            norm = getattr(self.ours, f"{side}_norm")
            copy_norm(norm, stack.layernorm_embedding)
            copy_bart_stack(getattr(self.ours, name), stack)


class Whisper:
    pad, end, start = 0, 2, 1

    def __init__(self):
        config = WhisperConfig(
            **BART_SIZES,
            **{"num_mel_bins": 8, "max_source_positions": 25, "pad_token_id": 0},
            **{"max_target_positions": 30, "bos_token_id": 1, "eos_token_id": 2},
            **{"decoder_start_token_id": 1, "begin_suppress_tokens": None},
        )
        self.theirs = randomized(WhisperForConditionalGeneration(config))
        self.ours, theirs = documented_model("Whisper")["whisper"], self.theirs.model
        first, _, second, positions = self.ours.source_embedding.layers
        copy_conv(first, theirs.encoder.conv1)
        copy_conv(second, theirs.encoder.conv2)
        positions.set_weights([numpy(theirs.encoder.embed_positions.weight)])
        tokens = numpy(theirs.decoder.embed_tokens.weight)
        self.ours.target_embedding.set_weights([tokens])
        table = numpy(theirs.decoder.embed_positions.weight)
        self.ours.target_encoding.set_weights([table])
        for name in ("encoder", "decoder"):
            stack, other = getattr(self.ours, name), getattr(theirs, name)
            copy_bart_stack(stack, other)
            copy_norm(stack.norm, other.layer_norm)


@pytest.fixture(scope="module", params=[T5, Bart, Whisper])
def family(request):
    return request.param()


def sources(family):
    """Returns the sources, and the arguments of transformers."""
    if isinstance(family, Whisper):
        features = torch.tensor(FRAMES.transpose(0, 2, 1))
        return FRAMES, {"input_features": features}
    real = np.arange(19) < LENGTHS
    token_ids = np.where(real, SOURCES, family.pad)
    mask = torch.tensor(real.astype("int64"))
    return token_ids, {"input_ids": torch.tensor(token_ids), "attention_mask": mask}


@pytest.mark.once("torch")  # `test_beams` runs on all
def test_logits(family, tmp_path):
    given, arguments = sources(family)
    inputs = {"encoder_token_ids": given, "decoder_token_ids": TARGETS}
    with torch.no_grad():
        logits = family.theirs(**arguments, decoder_input_ids=torch.tensor(TARGETS))
    for model in (family.ours, saved_and_loaded(family.ours, tmp_path)):
        found = ops.convert_to_numpy(model(inputs))
        np.testing.assert_allclose(found, numpy(logits.logits), atol=1e-5)


@pytest.mark.slow
def test_beams(family):
    given, arguments = sources(family)
    # Whisper's own `generate` decodes speech of 30 s in its languages.
    expected = GenerationMixin.generate(
        family.theirs,
        **arguments,
        **{"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
        **{"length_penalty": 0.0, "early_stopping": "never", "max_length": 21},
        **{"forced_eos_token_id": None, "decoder_start_token_id": family.start},
        **{"eos_token_id": family.end, "pad_token_id": family.pad},
        **{"bad_words_ids": [[family.pad]], "no_repeat_ngram_size": 0},
        **{"return_dict_in_generate": True, "output_scores": True},
    )
    search = BeamSearch(4, num_hypotheses=2, length_penalty=0.0)
    family.ours.forces_end_token = False
    found = family.ours.generate(given, search, max_length=20)
    scores = numpy(expected.sequences_scores).reshape(3, 2)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)
    rows = hypotheses_of_transformers(expected.sequences, family.end, family.pad)
    assert hypotheses(found) == rows
    assert len({*map(tuple, rows)}) == 6
