"""A language model, from a text file to samples.

A language model predicts the next token of a text. This tutorial trains one on the
characters of a file, `text.txt`, generates text, and lists improbable characters.
[`examples/write.py`](../write.py) does the same with options on the command line, and
without a file; a million characters train in about 5 minutes on two cores.
"""

import pathlib

import keras
import numpy as np

import keras_transformer as kt

text = pathlib.Path("text.txt").read_text("utf-8")
end = len(text) * 9 // 10  # the rest is not trained on

# ## Windows of running text
#
# A token is a character, so nothing is unknown and the vocabulary is small. The text
# has no sentences to sort: `text_dataset` cuts it into windows of 256 tokens, at other
# places in each epoch. For large texts, subwords contain more text per token:
# `SentencePieceTokenizer.train(files, vocabulary_size=8000, keep_whitespace=True)`.

LENGTH = 256
tokenizer = kt.CharacterTokenizer.train(lines=[text])
train, valid = (
    kt.text_dataset(texts=[part], tokenizer=tokenizer, length=LENGTH)
    for part in (text[:end], text[end:])
)
print(train)

# ## The model
#
# `CausalLM` is a stack of decoder blocks without an encoder. Its default blocks are
# those of the paper of 2017, but they normalise the inputs of the sub-layers
# (`normalize_first=True`). The options select the blocks of recent models: rotary
# positions, gated feed-forward networks, RMS normalisation, no biases.

model = kt.CausalLM(
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

# ## Training
#
# The perplexity is e to the power of the loss: a model with perplexity 4 is as
# uncertain as one that chooses among four characters. Biases and normalisations have no
# weight decay.

EPOCHS = 20
schedule = keras.optimizers.schedules.CosineDecay(
    3e-3, decay_steps=EPOCHS * train.batches_per_epoch
)
optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0)
optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "scale"])
model.compile(optimizer, kt.LabelSmoothedCrossEntropy(0.0), metrics=[kt.Perplexity()])
model.fit(train.dataset, validation_data=valid.dataset, epochs=EPOCHS, shuffle=False)

# ## Writing
#
# The most probable text repeats itself, so a sample is drawn. A lower temperature makes
# probable tokens more probable, and `top_p` excludes improbable tokens. `stream` yields
# the text character by character.

prompt = text[end : end + 20]
for piece in model.stream(
    prompt, kt.Sampling(temperature=0.8, top_p=0.95), max_length=200, seed=1
):
    print(piece, end="")
print()

# ## The least probable characters
#
# `score_texts` returns the log-probability of every character. Compare models with
# different tokens by bits per character. The least probable characters are those that
# the earlier text does not determine: beginnings of words, names, typing errors.

result = model.score_texts([text[end:]], context=LENGTH)
bits = -np.asarray(result.token_scores[0]) / np.log(2)
print(f"{bits.mean():.2f} bits per character")
for place in np.argsort(-bits)[:5]:
    before = text[end:][max(0, place - 20) : place]
    print(f"{bits[place]:5.1f} bits: {before!r}, then {text[end:][place]!r}")

model.save("writer.keras")

# [Language models](../../docs/language_models.md) describes documents, prompts and
# answers, GPT-2 and the export.
