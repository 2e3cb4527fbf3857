"""Looking at attention.

For each token that a Transformer predicts, attention shows how much it depends on each
token of the source. This tutorial plots the attention of a trained model,
`en-de.keras`, such as the one of the [tutorial on translation](translation.py). The
plots require the extra `plots`.

`python examples/pronounce.py` and [`examples/translate.py`](../translate.py) draw such
plots at the end of a training run.
"""

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import plotting

model = keras.saving.load_model("en-de.keras")
source = "a man sees two dogs"

# ## Which word comes from which?
#
# `generate` returns the attention together with the output: one row per token of the
# output, its end token included, and one column per token of the source. It is the mean
# of the heads of one decoder layer, the second to last, which fits alignments best.

target, alignment = model.generate(source, return_alignments=True)
print(target, alignment.attention.shape)


def tokens(tokenizer: kt.Tokenizer, text: str) -> list[str]:
    ids = tokenizer.tokenize([text], add_end=True).to_list()[0]
    return [tokenizer.id_to_token(id) for id in ids]


columns = tokens(model.source_tokenizer, source)
rows = tokens(model.target_tokenizer, target)[: len(alignment.attention)]
plotting.plot_attention(alignment.attention[: len(rows)], rows, columns).savefig(
    "attention.png"
)

# ![Heat map with a row per phoneme and a column per letter: each phoneme attends to the
# letter that it represents](../../docs/images/attention.png)
#
# The figure shows a model that pronounces English words. Dark cells near the diagonal
# mean that the output follows the order of the source. A column that is dark in many
# rows is often that of the end token. Heads attend to it when no other token is
# relevant.

# ## The entropy of attention
#
# A row of attention sums to one. Its entropy, in bits, is 0 if all of it is on one
# token, and log₂ of the length if it is the same everywhere.

weights = np.clip(alignment.attention, 1e-9, 1.0)
entropy = -np.sum(weights * np.log2(weights), axis=-1)
for row, bits in zip(rows, entropy, strict=False):
    print(f"{row:12} {bits:.2f} of at most {np.log2(len(columns)):.2f} bits")

# ## Head by head
#
# A call of the model returns the scores of all layers and heads: those of the encoder,
# of the decoder to itself, and of the decoder to the source (`"cross"`), each an array
# `(batch, num_heads, query_length, key_length)`. Heads differ: some attend to the
# previous token, some to the same word, some to the punctuation.

inputs = {
    "encoder_token_ids": model.source_tokenizer.tokenize([source], add_end=True),
    "decoder_token_ids": model.target_tokenizer.tokenize([target], add_start=True),
}
_, scores = model(
    {name: ids.to_tensor().numpy() for name, ids in inputs.items()},
    return_attention_scores=True,
)
heads = keras.ops.convert_to_numpy(scores["encoder"][-1])[0]
plotting.plot_attention_heads(
    heads, columns, columns, query_label="query", key_label="key"
).savefig("heads.png")

# A bar chart shows one query: what does the last word attend to?

plotting.plot_token_attention(
    heads.mean(axis=0)[-2], columns, query_token=columns[-2]
).savefig("token.png")

# ## The hypotheses of the search
#
# Attention shows where an output comes from. The tree of the search shows the other
# hypotheses that the search kept at some step, with their scores.

tree = model.search_tree(source, max_length=8)
plotting.plot_search_tree(tree.paths, tree.scores, tree.best, source).savefig(
    "tree.png"
)

# ![The tree of a beam search](../../docs/images/search_tree.png)
#
# [Plots](../../docs/pictures.md) describes all functions, and
# [decoding](../../docs/decoding.md#alignments) what alignments mean. The [page of the
# server](../../docs/serving.md) shows attention in a browser.
