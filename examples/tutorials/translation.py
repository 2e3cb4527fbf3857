"""Translation: the task of the Keras and TensorFlow tutorials.

The tutorials of [Keras] and of [TensorFlow] train a Transformer to translate. This
tutorial does the same with this library, from text files to a BLEU score and a
SavedModel. [`translation.py`](translation.py) is the whole program;
[`examples/translate.py`](../translate.py) is the one to run on your own text.

It reads text files with one sentence per line: `train.en` and `train.de` to train on,
`valid.en` and `valid.de` to watch the training, `test.en` and `test.de` for the score.
Multi30k, English to German, has 29,000, 1,014 and 1,000 pairs.

[Keras]: https://keras.io/examples/nlp/neural_machine_translation_with_transformer/
[TensorFlow]: https://www.tensorflow.org/text/tutorials/transformer
"""

import pathlib

import keras

import keras_transformer as kt

# ## Text to batches
#
# The tutorial of Keras splits text into words; a word that is not in the vocabulary
# becomes `[UNK]`. That of TensorFlow downloads a vocabulary for its data. This tutorial
# trains a tokenizer of subwords on both languages. It represents every word, and
# returns the text with its punctuation.

tokenizer = kt.SentencePieceTokenizer.train(
    ["train.en", "train.de"], vocabulary_size=8000
)
print(tokenizer.describe())

# `parallel_dataset` shifts the targets, sorts sentences by length, and fills each batch
# up to a number of tokens. The tutorial of Keras pads every sentence to 20 words, and
# cuts off what is longer; that of TensorFlow pads batches of mixed lengths.

tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
train = kt.parallel_dataset("train.en", "train.de", **tokenizers)
valid = kt.parallel_dataset("valid.en", "valid.de", shuffle=False, **tokenizers)
print(train)

# ## The model
#
# The tutorials implement the attention blocks, the positions and the masks. In this
# library they are layers, and `Seq2Seq` is the model of the paper, with one matrix for
# the embeddings of both languages and for the logits. Its blocks normalise the inputs
# of the sub-layers. Those of the paper, `normalize_first=False`, normalise the outputs;
# they do not learn this task at the learning rate below.

model = kt.Seq2Seq.from_preset("transformer_tiny", dropout=0.3, **tokenizers)
model.summary()

# ## Training
#
# The loss and the metrics leave the padding out. The learning rate rises, then falls,
# as in the paper. The mean of the weights of the last epochs is better than the last
# ones, so a callback keeps checkpoints; the same program also resumes at the last of
# them.

EPOCHS = 40
schedule = kt.WarmupInverseSquareRoot(peak_learning_rate=4e-3, warmup_steps=2000)
model.compile(
    keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
    kt.LabelSmoothedCrossEntropy(),
    metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
)
model.fit(
    train.dataset,
    validation_data=valid.dataset,
    epochs=EPOCHS,
    shuffle=False,  # the dataset is already shuffled
    callbacks=[kt.Checkpoints("runs/tutorial", data=train, monitor="val_loss")],
)
kt.average_checkpoints(model, "runs/tutorial", last=min(10, EPOCHS))

# ## Translations and their score
#
# The loop of the tutorials evaluates the whole model for each new token of one
# sentence. `generate` keeps the keys and values of the earlier tokens, translates a
# batch at a time, and keeps several beams. BLEU is that of sacreBLEU, with the
# signature that makes it comparable; accuracy, the metric of the tutorials, says little
# about translations.

sources, references = (
    pathlib.Path(f"test.{language}").read_text("utf-8").splitlines()
    for language in ("en", "de")
)
translations = model.generate(sources, kt.BeamSearch(num_beams=5))
print(sources[0], "→", translations[0])
print(kt.evaluation.bleu(translations, references))

# ## Files
#
# The `.keras` file loads on every backend, with its tokenizers. The SavedModel takes
# and returns strings, and needs only TensorFlow and tensorflow-text.

model.save("en-de.keras")
model.export("saved_models/en-de/1")

# ## Side by side
#
# | | tutorial of Keras | here |
# | --- | --- | --- |
# | lines of code, without text and empty lines | 254 | 37 |
# | of these, layers and model | 147 | 2 |
# | of these, vocabulary and batches | 48 | 8 |
# | a word that is not in the vocabulary | `[UNK]` | its subwords |
# | longer than 20 words | cut off | translated |
# | cross-attention | up to its own position | to the whole source |
# | search | greedy, one sentence | beams, batches |
# | score | token accuracy | BLEU |
#
# The lines are those of the version of February 2022.
# [Migration](../../docs/migration.md#the-keras-tutorial) explains each difference.
#
# Programs in the way of each tutorial, with models of one size, learned Multi30k for 20
# epochs on one core. The minutes are those of training, the seconds those of 1,000
# translations, and BLEU ignores letter case:
#
# | | lines | pairs a second | minutes | seconds | BLEU |
# | --- | ---: | ---: | ---: | ---: | ---: |
# | here | 31 | 517 | 19 | 30 | 34.9 |
# | TensorFlow | 209 | 278 | 37 | 37 | 28.7 |
# | KerasHub | 84 | 158 | 64 | 1,193 | 13.9 |
#
# The [benchmarks](../../benchmarks/README.md#tutorials) describe them. The command
# `keras-transformer train` reaches [40.2 to
# 41.8](../../benchmarks/README.md#translation) BLEU.
#
# Next: [what the model attends to](attention.py).
