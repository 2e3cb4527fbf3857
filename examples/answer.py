"""Answers questions about a text: question and text in, answer out.

A `Seq2Seq` reads a question and a text as one source, and writes the answer. The texts
are generated: each says of three people where they live and what they play. It takes
about 3 minutes on two cores:

    python examples/answer.py

No text of the test is a training text. The exact match is the share of the answers that
are right word for word. For comparison, it is printed for the answer that is the first
one of its kind in the text: the first person, town or instrument.
"""

import argparse

import keras
import numpy as np

import keras_transformer as kt

WORDS = (
    ("Anna", "Ben", "Carla", "David", "Eva", "Felix", "Greta", "Henry", "Ida", "Leo"),
    ("Athens", "Berlin", "Cairo", "Dublin", "Lima", "London", "Oslo", "Paris", "Rome"),
    ("cello", "drum", "flute", "guitar", "harp", "horn", "oboe", "piano", "violin"),
)
QUESTIONS = (
    ("Where does {name} live ?", "{town}"),
    ("What does {name} play ?", "the {instrument}"),
    ("Who lives in {town} ?", "{name}"),
    ("Who plays the {instrument} ?", "{name}"),
    ("Where does somebody play the {instrument} ?", "{town}"),
    ("What does somebody play in {town} ?", "the {instrument}"),
)


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the exact match on the test texts in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    random = np.random.default_rng(options.seed)
    pairs = list(dict(make_pair(random) for _ in range(options.texts)).items())
    end = len(pairs) // 10
    train, test = pairs[end:], pairs[:end]
    print(f"{len(train):,} training texts, {len(test):,} test texts")
    print(f"  {train[0][0]} → {train[0][1]}")

    tokenizer = kt.WordTokenizer.train(lines=[text for pair in train for text in pair])
    data = kt.parallel_dataset(
        pairs=train,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=2048,
        seed=options.seed,
    )
    model = kt.Seq2Seq(
        num_layers=2,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=4,
        dropout=0.0,
        positions=kt.RotaryEmbedding(),
        tie_embeddings="all",
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
    )
    updates = options.epochs * data.batches_per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 20
    )
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        kt.LabelSmoothedCrossEntropy(0.0),
    )
    model.fit(
        data.dataset,
        epochs=options.epochs,
        shuffle=False,
        callbacks=[kt.TrainingProgress(data.tokens_per_epoch)],
    )
    sources, answers = (list(texts) for texts in zip(*test, strict=True))
    written = model.generate(sources, kt.GreedySearch())
    for source, answer, text in list(zip(sources, answers, written, strict=True))[:5]:
        print(f"  {source}\n    → {text} (correct: {answer})")
    firsts = [first_of_kind(*pair) for pair in test]
    print(f"exact match of the first of its kind: {exact_match(firsts, answers):.2f} %")
    exact = exact_match(written, answers)
    print(f"exact match of the model: {exact:.2f} %")
    return exact


def make_pair(random: np.random.Generator) -> tuple[str, str]:
    """Returns a question with a text, and the answer."""
    names, towns, instruments = (random.permutation(words)[:3] for words in WORDS)
    people = [
        {"name": name, "town": town, "instrument": instrument}
        for name, town, instrument in zip(names, towns, instruments, strict=True)
    ]
    sentence = "{name} lives in {town} and plays the {instrument} ."
    text = " ".join(sentence.format(**person) for person in people)
    question, answer = QUESTIONS[random.integers(len(QUESTIONS))]
    person = people[random.integers(3)]
    return f"{question.format(**person)} {text}", answer.format(**person)


def first_of_kind(source: str, answer: str) -> str:
    """Returns the first answer of the kind of `answer` in the text."""
    text = source.split("?")[1]
    word = answer.split()[-1]
    (kind,) = (words for words in WORDS if word in words)
    first = next(w for w in text.split() if w in kind)
    return answer.replace(word, first)


def exact_match(outputs: list[str], answers: list[str]) -> float:
    """Returns how many outputs are equal to the answer, in percent."""
    return 100 * float(np.mean([o == a for o, a in zip(outputs, answers, strict=True)]))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5, help="number of epochs")
    parser.add_argument("--texts", type=int, default=100_000, help="to generate")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
