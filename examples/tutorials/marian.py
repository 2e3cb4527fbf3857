"""A published model, fine-tuned and served.

[OPUS-MT](https://github.com/Helsinki-NLP/Opus-MT) has trained more than a thousand
translation models with Marian. This tutorial loads one, measures it on your text,
trains it further on your text, and serves the result.

It reads a folder with the files of a model, such as a download of
`Helsinki-NLP/opus-mt-en-de`, and text of your domain: `train.en`, `train.de` and
`valid.en`, `valid.de`. With the extra `hub`, the name of a repository in place of the
folder downloads it. The files are read as data; nothing in them is executed.
"""

import pathlib

import keras

import keras_transformer as kt

model = kt.load_pretrained("opus-mt-en-de")
print(model.generate("a man sees two dogs"))

# ## Before
#
# The model is a `Seq2Seq`, so everything of this library applies to it. Measure first:
# fine-tuning is worth it if the model is worse on your text than on the news and
# subtitles that it was trained on.

sources, references = (
    pathlib.Path(f"valid.{language}").read_text("utf-8").splitlines()
    for language in ("en", "de")
)
before = kt.evaluation.bleu(model.generate(sources), references)
print(f"before: {before.score:.1f} BLEU")

# ## Train further
#
# The datasets take the tokenizers of the model, since new tokenizers have other ids.
# The start token of a Marian model is also its padding, so the loss requires
# `pad_token_id`.

train = kt.parallel_dataset(
    "train.en",
    "train.de",
    source_tokenizer=model.source_tokenizer,
    target_tokenizer=model.target_tokenizer,
    tokens_per_batch=1024,
)

# A trained model needs a learning rate that is a hundred times smaller than that of a
# new one, and few epochs. `TranslationQuality` translates the validation text after
# each epoch, and `Checkpoints` keeps the weights of the best one. `kt.freeze` keeps
# chosen weights as they are, such as the embeddings, and saves memory.

model.compile(
    keras.optimizers.Adam(1e-5),
    kt.LabelSmoothedCrossEntropy(pad_token_id=model.pad_token_id),
)
model.fit(
    train.dataset,
    epochs=3,
    shuffle=False,
    callbacks=[
        kt.TranslationQuality(sources, references, kt.GreedySearch()),
        kt.Checkpoints("runs/opus", data=train, monitor="val_bleu"),
    ],
)
kt.load_checkpoint(model, "runs/opus/best.npz")
after = kt.evaluation.bleu(model.generate(sources), references)
print(f"after: {after.score:.1f} BLEU")

# ## Save, serve
#
# The `.keras` file is for this library. `export` writes the others: a SavedModel for
# the server, or with `format="marian"` a folder that transformers loads as before, or
# with `format="ctranslate2"` and `quantization="int8"` one for CTranslate2.

model.save("opus-en-de.keras")
model.export("saved_models/opus-en-de/1")

# One command serves it, with batches, metrics and a page to try it:
#
# ```sh
# keras-transformer serve saved_models/opus-en-de
# curl -d '{"instances": ["a man sees two dogs"]}' \
#     http://127.0.0.1:8501/v1/models/opus-en-de:predict
# ```
#
# [Models of other toolkits](../../docs/interoperability.md) has the details,
# [training](../../docs/training.md#fine-tuning) more on fine-tuning, and
# [serving](../../docs/serving.md) the options of the server.
