r"""Compares loaded and exported models with the other toolkit.

A PyTorch loop trains a small `MarianMTModel` of transformers on sentences of a toy
grammar, whose verb comes last in the target language. On other sentences of the
grammar, the benchmark compares

- `load_marian`, which loads the folder of the model, with transformers;
- the model after one more epoch of `fit`, with transformers, which loads the folder of
  `export(format="marian")`;
- the same model with CTranslate2, which loads the folder of
  `export(format="ctranslate2")`;
- `load_ctranslate2`, which loads a folder of CTranslate2's converter, with CTranslate2.

"Tokens" is the largest difference of the log-probability of a token of the references.
Without a length penalty, both searches are equivalent: "best" is the share of sentences
with the same translation, with 4 beams, and "scores" the largest difference of their
log-probabilities. "Penalty" is the share of sentences with the same best hypothesis
when scores are divided by lengths, where the two searches stop at different steps.

    KERAS_BACKEND=jax python benchmarks/interoperability.py
"""

import argparse
import io
import json
import pathlib
import random
import tempfile
import warnings
from typing import Any

import ctranslate2
import keras
import numpy as np
import sentencepiece
import torch
from ctranslate2.converters import TransformersConverter
from measuring import print_header, print_row

from keras_transformer import (
    BeamSearch,
    LabelSmoothedCrossEntropy,
    PowerLengthPenalty,
    Seq2Seq,
    load_ctranslate2,
    load_marian,
    parallel_dataset,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NOUNS = "man:Mann woman:Frau dog:Hund cat:Katze child:Kind horse:Pferd bird:Vogel"
ADJECTIVES = "old:alte small:kleine red:rote happy:frohe wet:nasse young:junge"
VERBS = "sees:sieht hears:hört follows:verfolgt likes:mag paints:malt carries:trägt"
PLACES = "today:heute here:hier outside:draußen again:wieder now:jetzt"
MAX_LENGTH = 60
NUM_BEAMS = 4
COLUMNS = ("tokens", "best %", "scores", "penalty %")
Hypotheses = tuple[list[str], np.ndarray]


def main() -> None:
    """Writes the folders and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="of the training")
    parser.add_argument("--sentences", type=int, default=200, help="to translate")
    options = parser.parse_args()
    pairs = sentences(4000 + options.sentences)
    seen, unseen = pairs[options.sentences :], pairs[: options.sentences]
    with tempfile.TemporaryDirectory() as name:
        compare(pathlib.Path(name), seen, unseen, options.steps)


def compare(
    folder: pathlib.Path,
    seen: list[tuple[str, str]],
    unseen: list[tuple[str, str]],
    steps: int,
) -> None:
    """Prints the rows of the table."""
    sources, targets = map(list, zip(*unseen, strict=True))
    marian, written, exported, converted = (folder / str(i) for i in range(4))
    train_marian(marian, seen, steps)
    print_header(keras.backend.backend(), *COLUMNS)

    def add(name: str, ours: Seq2Seq, theirs: Any) -> None:
        figures = difference(ours, theirs, sources, targets)
        print_row(name, *(f"{figure:.3g}" for figure in figures))

    model = load_marian(marian)
    add("load_marian", model, Transformers(marian))
    fine_tune(model, seen)
    model.export(written, format="marian")
    add('fit, export(format="marian")', model, Transformers(written))
    model.export(exported, format="ctranslate2")
    add('fit, export(format="ctranslate2")', model, CTranslate2(exported, written))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TransformersConverter(str(marian)).convert(str(converted))
    tokenizers = load_marian(marian)
    again = load_ctranslate2(
        converted, tokenizers.source_tokenizer, tokenizers.target_tokenizer
    )
    add("load_ctranslate2", again, CTranslate2(converted, marian))


class Transformers:
    """Marian in transformers."""

    def __init__(self, folder: pathlib.Path):
        self.tokenizer = marian_tokenizer(folder)
        self.model = transformers.MarianMTModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def token_scores(self, sources: list[str], targets: list[str]) -> list[np.ndarray]:
        """Returns the log-probability of each token of the targets."""
        found = []
        for source, target in zip(sources, targets, strict=True):
            batch = self.tokenizer(source, text_target=target, return_tensors="pt")
            logits = self.model(**batch).logits
            tokens = logits.log_softmax(-1).gather(-1, batch["labels"][..., None])
            found.append(tokens[0, :, 0].numpy())
        return found

    def hypotheses(self, sources: list[str], length_penalty: float) -> Hypotheses:
        """Returns the best hypothesis of each text and its score."""
        found = self.model.generate(
            **self.tokenizer(sources, return_tensors="pt", padding=True),
            num_beams=NUM_BEAMS,
            length_penalty=length_penalty,
            max_length=MAX_LENGTH,
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = self.tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
        return texts, found.sequences_scores.numpy()


class CTranslate2:
    """CTranslate2, with the tokenizer of transformers."""

    def __init__(self, folder: pathlib.Path, tokenizer_folder: pathlib.Path):
        self.translator = ctranslate2.Translator(str(folder))
        self.tokenizer = marian_tokenizer(tokenizer_folder)
        config = json.loads((folder / "config.json").read_text())
        self.end = [] if config["add_source_eos"] else [self.tokenizer.eos_token]

    def token_scores(self, sources: list[str], targets: list[str]) -> list[np.ndarray]:
        """Returns the log-probability of each token of the targets."""
        ids = self.tokenizer(text_target=targets)["input_ids"]  # with their end
        rows = [self.tokenizer.convert_ids_to_tokens(row[:-1]) for row in ids]
        results = self.translator.score_batch(self._tokens(sources), rows)
        return [np.array(result.log_probs) for result in results]

    def hypotheses(self, sources: list[str], length_penalty: float) -> Hypotheses:
        """Returns the best hypothesis of each text and its score."""
        results = self.translator.translate_batch(
            self._tokens(sources),
            beam_size=NUM_BEAMS,
            length_penalty=length_penalty,
            min_decoding_length=0,
            max_decoding_length=MAX_LENGTH,
            return_scores=True,
        )
        decode = self.tokenizer.convert_tokens_to_string
        texts = [decode(found.hypotheses[0]) for found in results]
        return texts, np.array([found.scores[0] for found in results])

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        return [self.tokenizer.tokenize(text) + self.end for text in texts]


def difference(
    ours: Seq2Seq, theirs: Any, sources: list[str], targets: list[str]
) -> tuple[float, ...]:
    """Returns the figures of a row."""
    own_tokens = ours.score(sources, targets).token_scores
    tokens = [
        np.abs(np.array(own[: len(other)]) - other).max()
        for own, other in zip(
            own_tokens, theirs.token_scores(sources, targets), strict=True
        )
    ]

    def search(length_penalty: float) -> tuple[Hypotheses, Hypotheses]:
        search = BeamSearch(NUM_BEAMS, PowerLengthPenalty(length_penalty))
        own = ours.generate(sources, search, MAX_LENGTH, return_scores=True)
        return own, theirs.hypotheses(sources, length_penalty)

    (texts, scores), (their_texts, their_scores) = search(0.0)
    (divided, _), (their_divided, _) = search(1.0)
    return (
        max(tokens),
        share(texts, their_texts),
        np.abs(scores - their_scores).max(),
        share(divided, their_divided),
    )


def share(ours: list[str], theirs: list[str]) -> float:
    """Returns the percentage of equal texts."""
    pairs = zip(ours, theirs, strict=True)
    return 100 * float(np.mean([one == other for one, other in pairs]))


def sentences(number: int) -> list[tuple[str, str]]:
    """Returns different sentences of the grammar, in random order."""
    chance = random.Random(1)
    words = [
        [word.split(":") for word in kind.split()]
        for kind in (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS, PLACES)
    ]
    found = {}
    while len(found) < number:
        one, subject, verb, other, item, place = map(chance.choice, words)
        source = f"the {one[0]} {subject[0]} {verb[0]} the {other[0]} {item[0]}"
        target = f"dass das {one[1]} {subject[1]} das {other[1]} {item[1]}"
        if chance.random() < 0.5:
            source, target = f"{source} {place[0]}", f"{target} {place[1]}"
        found[source] = f"{target} {verb[1]}"
    return list(found.items())


def train_marian(
    folder: pathlib.Path, pairs: list[tuple[str, str]], steps: int
) -> None:
    """Trains a model of transformers and writes its folder."""
    size = write_tokenizers(folder, pairs)
    tokenizer = marian_tokenizer(folder)
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        vocab_size=size,
        decoder_vocab_size=size,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=100,
        activation_function="swish",
        scale_embedding=True,
        dropout=0.1,
    )
    model = transformers.MarianMTModel(config)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for step in range(steps):
        start = step * 64 % (len(pairs) - 64)
        sources, targets = map(list, zip(*pairs[start : start + 64], strict=True))
        batch = tokenizer(
            sources, text_target=targets, return_tensors="pt", padding=True
        )
        labels = batch["labels"]
        labels[labels == tokenizer.pad_token_id] = -100
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"transformers trained {steps} steps, the loss of the last is {loss:.3f}")
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    model.save_pretrained(folder)


def write_tokenizers(folder: pathlib.Path, pairs: list[tuple[str, str]]) -> int:
    """Writes the files of a `MarianTokenizer`; returns the size of its vocabulary."""
    folder.mkdir()
    tokens = ["</s>", "<unk>"]
    for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        proto = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=proto,
            vocab_size=200,
            hard_vocab_limit=False,
            unk_id=1,
            eos_id=0,
            bos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(proto.getvalue())
        pieces = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
        tokens += pieces.id_to_piece(list(range(pieces.get_piece_size())))
    ids = {token: i for i, token in enumerate([*dict.fromkeys(tokens), "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    return len(ids)


def marian_tokenizer(folder: pathlib.Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.MarianTokenizer.from_pretrained(folder)


def fine_tune(model: Seq2Seq, pairs: list[tuple[str, str]]) -> None:
    """Trains the model for one epoch."""
    data = parallel_dataset(
        pairs=pairs,
        source_tokenizer=model.source_tokenizer,
        target_tokenizer=model.target_tokenizer,
    )
    model.compile(
        keras.optimizers.Adam(1e-3),
        LabelSmoothedCrossEntropy(0.1, pad_token_id=model.pad_token_id),
    )
    model.fit(data.dataset, shuffle=False, verbose=0)


if __name__ == "__main__":
    main()
