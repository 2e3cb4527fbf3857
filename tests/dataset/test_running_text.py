"""`text_dataset`: windows of running text."""

import gzip
import json

import keras
import numpy as np
import pytest

import keras_transformer as kt

pytestmark = pytest.mark.once("torch")

LETTERS = np.random.default_rng(0).choice([*"a of line text\n"], 700)
TEXT = "".join(LETTERS).strip() + "\n"


@pytest.fixture(scope="module")
def letters():
    return kt.CharacterTokenizer.train(lines=[TEXT])


def dataset(tokenizer, **options):
    defaults = {"texts": [TEXT], "tokenizer": tokenizer, "length": 7}
    return kt.text_dataset(**{**defaults, "tokens_per_batch": 35, **options})


def batches(data):
    return [
        keras.tree.map_structure(lambda x: x.numpy(), batch) for batch in data.dataset
    ]


def whole(letters, text=TEXT):
    (row,) = letters.tokenize([text], add_start=True, add_end=True).to_list()
    return row


def test_windows_in_order_cover_the_text(letters):
    data = dataset(letters, shuffle=False)
    found = batches(data)
    inputs = np.concatenate([x for x, _ in found])
    targets = np.concatenate([y for _, y in found])
    assert all(x.shape == y.shape == (5, 7) for x, y in found)
    assert len(found) == data.batches_per_epoch
    tokens = whole(letters)
    assert inputs.ravel()[: len(tokens) - 1].tolist() == tokens[:-1]
    assert targets.ravel()[: len(tokens) - 1].tolist() == tokens[1:]
    assert not targets.ravel()[len(tokens) - 1 :].any()
    assert data.tokens_per_epoch == len(tokens) - 1
    assert (data.num_tokens, data.num_unknown) == (len(tokens), 0)
    assert (data.num_characters, data.num_bytes) == (len(TEXT), len(TEXT))


def test_an_epoch_contains_each_window_once_at_another_offset(letters):
    data, tokens = dataset(letters, seed=3), whole(letters)
    text, offsets = np.array(tokens), set()
    for _ in range(3):
        inputs = np.concatenate([x for x, _ in batches(data)])
        rows = [row for row in inputs.tolist() if any(row)]
        places = sorted(
            place
            for row in rows
            for place in range(len(tokens) - 7)
            if text[place : place + 7].tolist() == row
        )
        first = places[0]
        assert places == list(range(first, first + 7 * len(rows), 7))
        assert len(tokens) - 7 * len(rows) < 2 * 7
        offsets.add(first)
    assert len(offsets) > 1


def test_epochs_depend_on_seed_and_number_alone(letters):
    first, second = dataset(letters, seed=1), dataset(letters, seed=1)
    other = dataset(letters, seed=2)
    epochs = [batches(first) for _ in range(2)]
    second.start_epoch(1)
    np.testing.assert_array_equal(epochs[1][0][0], batches(second)[0][0])
    assert (epochs[0][0][0] != epochs[1][0][0]).any()
    assert (batches(other)[0][0] != epochs[0][0][0]).any()


def test_a_restored_dataset_continues_at_its_batch(letters):
    data, again = dataset(letters), dataset(letters)
    epoch = batches(data)
    again.restore(data.state(4))
    rest = batches(again)
    assert len(rest) == len(epoch) - 4
    for (x, _), (expected, _) in zip(rest, epoch[4:], strict=True):
        np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(again.batch(data.state(2))[0], epoch[2][0])


def test_weights_are_shares_of_the_windows(letters, tmp_path):
    # Consecutive numbers tell where in which file a window begins.
    tokens = kt.WordTokenizer.train(lines=[" ".join(f"a{i} b{i}" for i in range(200))])
    sizes = {"a": 60, "b": 200}
    for name, size in sizes.items():
        text = " ".join(f"{name}{i}" for i in range(size))
        (tmp_path / name).write_text(text, "utf-8")
    files = [tmp_path / name for name in sizes]
    options = {"tokenizer": tokens, "length": 3, "documents": None, "weights": [3, 1]}
    data = kt.text_dataset(files, tokens_per_batch=15, **options)
    begins, epochs = {"a": [], "b": []}, []
    for _ in range(7):
        epoch = batches(data)
        epochs.append(epoch)
        assert len(epoch) == data.batches_per_epoch
        windows = [
            row for x, y in epoch for row in np.hstack([x, y[:, -1:]]) if any(row)
        ]
        words = [[tokens.id_to_token(int(id)) for id in row] for row in windows]
        for row in words:
            first = int(row[0][1:])
            assert row == [f"{row[0][0]}{first + i}" for i in range(4)]
            begins[row[0][0]].append(first)
    counts = {name: len(found) / 7 for name, found in begins.items()}
    total = (60 - 3) // 3 + (200 - 3) // 3
    assert counts["a"] == pytest.approx(total * 3 / 4, abs=1)
    assert counts["b"] == pytest.approx(total / 4, abs=1)
    # A pass over the larger file takes several epochs, and repeats no window.
    passed = begins["b"][: (200 - 3) // 3]
    assert len(set(passed)) > 0.97 * len(passed)
    again = kt.text_dataset(files, tokens_per_batch=15, **options)
    again.restore({"epoch": 5, "batch": 2})
    for (x, _), (expected, _) in zip(batches(again), epochs[5][2:], strict=True):
        np.testing.assert_array_equal(x, expected)
    parts = [
        kt.text_dataset(f, tokens_per_batch=15, **{**options, "weights": None})
        for f in files
    ]
    assert data.num_tokens == sum(part.num_tokens for part in parts)
    assert (
        data.checksums
        != kt.text_dataset(
            files, tokens_per_batch=15, **{**options, "weights": [1, 1]}
        ).checksums
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"weights": [1.0]}, "`weights` must be one number above 0 for each file"),
        ({"weights": [1, 0]}, "`weights` must be one number above 0 for each file"),
        ({"weights": [1, 1], "shuffle": False}, "`weights` must be `None` without"),
        ({"weights": [1, 1], "documents": "line"}, "Each file must have at least two"),
        ({"column": "b"}, "must name one column of .*'a'"),
    ],
)
def test_bad_weights_and_columns(letters, tmp_path, options, message):
    files = [tmp_path / "a.csv", tmp_path / "b.txt"]
    files[0].write_text("a\nof\n")
    files[1].write_text("\n")
    with pytest.raises(ValueError, match=message):
        kt.text_dataset(files, tokenizer=letters, length=7, **options)


@pytest.mark.parametrize("documents", ["file", "line", "paragraph", None])
def test_a_row_is_read_as_a_file(letters, tmp_path, documents):
    texts = ["of\n\na line\n", "text", "a text\nof\nlines"]
    files = []
    for number, text in enumerate(texts):
        # One text without documents has the rows one below the other.
        ending = "\n" if documents is None and number else ""
        files.append(tmp_path / str(number))
        files[-1].write_text(text + ending, "utf-8")
    path = tmp_path / "rows.jsonl.gz"
    lines = [json.dumps({"id": 7, "text": text}) for text in texts]
    path.write_bytes(gzip.compress("\n\n".join(lines).encode()))
    table = tmp_path / "rows.csv"
    table.write_text("text\n" + "\n".join(f'"{text}"' for text in texts), "utf-8")
    options = {"tokenizer": letters, "length": 7, "shuffle": False}
    expected = kt.text_dataset(files, documents=documents, **options)
    for rows in (
        kt.text_dataset(path, column="text", documents=documents, **options),
        kt.text_dataset([table], documents=documents, **options),
    ):
        assert rows.num_documents == expected.num_documents
        found = [x.tolist() for batch in batches(rows) for x in batch]
        wanted = [x.tolist() for batch in batches(expected) for x in batch]
        assert found == wanted


def test_workers_share_the_batches(letters):
    whole_epoch = {x.tobytes() for x, _ in batches(dataset(letters))}
    shares = [batches(dataset(letters, shard=(i, 2))) for i in range(2)]
    assert len(shares[0]) == len(shares[1])
    assert {x.tobytes() for share in shares for x, _ in share} == whole_epoch


def test_documents_of_files(letters, tmp_path):
    (tmp_path / "a.txt").write_text("of\na\n\n\ntext")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("line\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    expected = {
        "file": ["of\na\n\n\ntext", "line\n"],
        "paragraph": ["of\na\n", "text", "line\n"],
        "line": ["of", "a", "text", "line"],
    }
    for documents, texts in expected.items():
        data = dataset(
            letters, texts=None, files=files, documents=documents, shuffle=False
        )
        tokens = [token for text in texts for token in whole(letters, text)]
        inputs = np.concatenate([x for x, _ in batches(data)]).ravel()
        assert inputs[: len(tokens) - 1].tolist() == tokens[:-1]
        assert data.num_documents == len(texts)
    options = {"texts": None, "files": files, "documents": None}
    with pytest.raises(ValueError, match="`separate_documents` requires documents"):
        dataset(letters, **options, separate_documents=True)
    data = dataset(letters, **options, shuffle=False)
    inputs = np.concatenate([x for x, _ in batches(data)]).ravel()
    text = "of\na\n\n\ntextline\n"
    assert inputs[: len(text)].tolist() == letters.tokenize([text]).to_list()[0]


def test_unknown_line_endings_are_said(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes("a\u2028b\r\nc\x85\n\nd".encode())
    lines = kt.CharacterTokenizer.train(file)
    with pytest.warns(UserWarning, match=r"converts all 3 line endings to the unknown"):
        data = dataset(lines, texts=None, files=file)
    assert data.num_unknown == 3
    for options in ({"files": file, "documents": "line"}, {"texts": ["a\u2028b\x85"]}):
        data = dataset(lines, **{"texts": None, **options})
        assert data.num_unknown == 0
    with open(file, encoding="utf-8") as opened:
        with_endings = kt.CharacterTokenizer.train(lines=opened)
    assert dataset(with_endings, texts=None, files=file).num_unknown == 0


def test_nothing_follows_from_the_end_of_a_document(letters):
    data = dataset(letters, texts=["a", "of"], shuffle=False)
    ((x, y),) = batches(data)
    assert x[0].tolist() == [*whole(letters, "a"), *whole(letters, "of")]
    assert y[0, 2] == 0 != y[0, 1]


def test_separate_documents_have_segments(letters):
    data = dataset(letters, texts=["a", "of"], shuffle=False, separate_documents=True)
    ((inputs, _),) = batches(data)
    assert inputs["segment_ids"][0].tolist() == [1, 1, 1, 2, 2, 2, 2]
    model = kt.CausalLM.from_preset("transformer_tiny", tokenizer=letters)
    model.compile("adam", kt.LabelSmoothedCrossEntropy(0.0))
    loss = model.evaluate(data.dataset, verbose=0)
    scored = model.score([[2], [2]], [whole(letters, t)[1:] for t in ("a", "of")])
    assert loss == pytest.approx(-scored.scores.sum() / 5, rel=1e-4)


@pytest.mark.once  # where other tests import KerasNLP too
def test_one_token_is_start_and_end():
    import keras_nlp

    tokens = ["<|endoftext|>", *"abc", "bc"]
    gpt2 = keras_nlp.tokenizers.GPT2Tokenizer(
        vocabulary={token: n for n, token in enumerate(tokens)}, merges=["b c"]
    )
    tokenizer = kt.KerasHubTokenizer(gpt2)
    assert tokenizer.start_token_id == tokenizer.end_token_id
    data = dataset(tokenizer, texts=["ab", "c"], shuffle=False)
    ((x, y),) = batches(data)
    assert x[0, :4].tolist() == [0, 1, 2, 0]
    assert y[0, :5].tolist() == [1, 2, 0, 3, 0]


def test_it_tells_what_it_has_read(letters):
    data = dataset(letters, texts=[TEXT, "Q"])
    assert str(data).startswith(
        f"{len(TEXT) + 5:,} tokens in 2 documents (0.14% unknown)"
    )
    assert data.batch_shape == (5, 7)
    assert str(dataset(letters, texts=np.array([TEXT, "Q"]))) == str(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": None}, "Either `files` or `texts`"),
        ({"documents": "word"}, "`documents` must be 'file'; received"),
        ({"documents": "line"}, "Each of `texts` is a document"),
        ({"length": 0}, "`length`"),
        ({"texts": []}, "at least two tokens"),
        ({"texts": TEXT}, "one per document; received `texts='"),
        ({"texts": [TEXT, b"a"]}, "received b'a' as document 1"),
        ({"texts": [TEXT, "a\ud800"]}, "lone surrogate .* in document 1"),
        ({"shard": (2, 2)}, "`shard`"),
    ],
)
def test_bad_arguments(letters, options, message):
    with pytest.raises(ValueError, match=message):
        dataset(letters, **options)


def test_a_run_is_resumed_at_its_batch(letters, tmp_path):
    def trained(folder, epochs, stop=None):
        keras.utils.set_random_seed(5)
        model = kt.CausalLM(
            num_layers=1,
            hidden_dim=8,
            intermediate_dim=16,
            num_heads=2,
            tokenizer=letters,
        )
        model.compile(keras.optimizers.Adam(0.01), kt.LabelSmoothedCrossEntropy(0.0))
        data = dataset(letters, tokens_per_batch=140)
        checkpoints = kt.Checkpoints(folder, data=data, save_every=2)
        callbacks = [checkpoints, *([stop] if stop else [])]
        model.fit(
            data.dataset, epochs=epochs, shuffle=False, callbacks=callbacks, verbose=0
        )
        return model

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", 2, Stop())
    resumed = trained(tmp_path / "run", 2)
    straight = trained(tmp_path / "straight", 2)
    for ours, expected in zip(
        resumed.get_weights(), straight.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)
