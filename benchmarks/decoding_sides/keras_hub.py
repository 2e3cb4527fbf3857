"""KerasHub's samplers, layers and caches, compiled as in KerasHub's models."""

from typing import Any

import keras
import keras_nlp
from keras import ops

from decoding_sides.setting import START, Decode, Setting, padded_batches
from keras_transformer.backend.compiling import compile_function


def build(setting: Setting) -> Decode:
    model = _Model(setting)
    run = compile_function(model.search, model)
    rows = setting.rows

    def decode(chosen: list[int], batch_size: int) -> None:
        for batch in padded_batches(rows, chosen, batch_size):
            prompt = ops.convert_to_numpy(run(ops.convert_to_tensor(batch)))
            assert prompt.shape[1] == setting.length + 1

    return decode


class _Model(keras.Model):
    def __init__(self, setting: Setting):
        super().__init__()
        size = setting.dimensions
        self.hidden_dim, self.num_heads = size["hidden_dim"], size["num_heads"]
        self.length, self.num_beams = setting.length, setting.num_beams
        options = {
            "intermediate_dim": size["intermediate_dim"],
            "num_heads": self.num_heads,
            "normalize_first": True,
        }
        numbers = range(size["num_layers"])
        self.embedding = keras_nlp.layers.ReversibleEmbedding(
            len(setting.vocabulary), self.hidden_dim
        )
        self.encoding = keras_nlp.layers.SinePositionEncoding()
        self.encoder = [keras_nlp.layers.TransformerEncoder(**options) for _ in numbers]
        self.decoder = [keras_nlp.layers.TransformerDecoder(**options) for _ in numbers]
        self.encoder_norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.decoder_norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.sampler: Any = keras_nlp.samplers.GreedySampler()
        if self.num_beams > 1:
            self.sampler = keras_nlp.samplers.BeamSampler(num_beams=self.num_beams)
        token_ids = ops.ones((1, 4), "int32")
        encoded, mask = self.encode(token_ids)
        x = self.embed(token_ids)
        for layer in self.decoder:
            x = layer(x, encoded, encoder_padding_mask=mask)
        self.embedding(self.decoder_norm(x), reverse=True)
        self.built = True

    def embed(self, token_ids: Any, start_index: Any = 0) -> Any:
        x = self.embedding(token_ids) * self.hidden_dim**0.5
        return x + self.encoding(x, start_index=start_index)

    def encode(self, token_ids: Any) -> tuple[Any, Any]:
        mask = ops.not_equal(token_ids, 0)
        x = self.embed(token_ids)
        for layer in self.encoder:
            x = layer(x, padding_mask=mask)
        return self.encoder_norm(x), mask

    def search(self, token_ids: Any) -> Any:
        encoded, mask = self.encode(token_ids)
        batch, source_length = ops.shape(token_ids)
        heads = (self.num_heads, self.hidden_dim // self.num_heads)
        own = ops.zeros((batch, len(self.decoder), 2, self.length + 1, *heads))
        source = []
        for layer in self.decoder:  # KerasHub's models fill their caches like this.
            empty = ops.zeros((batch, 2, source_length, *heads))
            _, _, cache = layer(
                self.embed(token_ids[:, :1]),
                encoded,
                encoder_padding_mask=mask,
                self_attention_cache=own[:, 0],
                self_attention_cache_update_index=0,
                cross_attention_cache=empty,
                cross_attention_cache_update_index=0,
            )
            source.append(cache)
        beams = self.num_beams
        encoded, mask, *source = (
            ops.repeat(x, beams, axis=0) for x in (encoded, mask, *source)
        )

        def next_token(prompt: Any, cache: Any, index: Any) -> tuple[Any, Any, Any]:
            newest = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))
            x = self.embed(newest, index - 1)
            caches = []
            for number, layer in enumerate(self.decoder):
                x, updated, _ = layer(
                    x,
                    encoded,
                    encoder_padding_mask=mask,
                    self_attention_cache=cache[:, number],
                    self_attention_cache_update_index=index - 1,
                    cross_attention_cache=source[number],
                )
                caches.append(updated)
            x = self.decoder_norm(x)
            logits = self.embedding(x, reverse=True)[:, 0]
            return logits, None, ops.stack(caches, axis=1)

        prompt = ops.zeros((batch, self.length + 1), "int32")
        start = ops.full((batch, 1), START, "int32")
        prompt = ops.slice_update(prompt, (0, 0), start)
        return self.sampler(next_token, prompt, own, index=1)
