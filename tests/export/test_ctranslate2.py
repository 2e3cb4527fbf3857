import ctranslate2
import keras_nlp
import numpy as np
import pytest
import sentencepiece
from ctranslate2_designs import (
    DESIGNS,
    SIZES,
    SOURCE,
    SPECIAL,
    TARGET,
    WRITTEN_DESIGNS,
    log_probabilities,
    model_of,
)
from keras import ops
from processor import has_vnni

from keras_transformer import (
    BeamSearch,
    GreedySearch,
    KerasHubTokenizer,
    Seq2Seq,
    SuppressTokens,
)
from keras_transformer.export import ctranslate2 as exporting
from keras_transformer.export.model_support import embedding_vocabulary
from keras_transformer.layers import AlibiBias, LocalWindow
from keras_transformer.text import SentencePieceTokenizer, WordTokenizer

pytestmark = pytest.mark.once("torch")

TEXTS = ["abc", "", "deadbeef"]
GREEDY = GreedySearch()


def export(model, folder, **options):
    options = {"search": GREEDY, "check_texts": TEXTS, **options}
    model.export(folder, format="ctranslate2", **options)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def tokens(tokenizer, rows):
    return [[tokenizer.id_to_token(token_id) for token_id in row] for row in rows]


@pytest.fixture(scope="module")
def model():
    """A model whose outputs end before the limit."""
    design = {"normalize_first": True, "tie_embeddings": "none"}
    model = model_of(seed=5, max_target_length=17, **design)
    bias = np.zeros(11, "float32")
    bias[0], bias[3] = -100, 3  # no pad token, and an early end token
    model.logits_bias.assign(bias)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters") / "1"
    export(model, folder)
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    return ctranslate2.Translator(str(folder), intra_threads=1)


# The outputs of the model.


@pytest.mark.parametrize("name", [*DESIGNS, *WRITTEN_DESIGNS])
def test_every_design_has_the_log_probabilities_of_the_model(name, tmp_path):
    model = model_of(**{**DESIGNS, **WRITTEN_DESIGNS}[name]())
    exporting._write(model, tmp_path / "1", None)
    translator = ctranslate2.Translator(str(tmp_path / "1"), intra_threads=1)
    rng = np.random.default_rng(3)
    sources = [rng.integers(4, 10, length).tolist() for length in (7, 5)]
    targets = [rng.integers(4, 10, length).tolist() for length in (3, 4)]
    texts = tokens(model.source_tokenizer, sources)
    results = translator.score_batch(texts, tokens(model.target_tokenizer, targets))
    sources, targets = ([[*row, 3] for row in rows] for rows in (sources, targets))
    expected = [
        sum(table[range(len(row)), row])
        for table, row in zip(
            log_probabilities(model, sources, targets), targets, strict=True
        )
    ]
    scores = [sum(result.log_probs) for result in results]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    # Greedy search chooses the token with the greatest log-probability.
    results = translator.translate_batch(
        texts,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=4,
        suppress_sequences=[["<pad>"]],
    )
    size = model.target_vocabulary_size
    names = embedding_vocabulary(model.target_tokenizer, size)
    outputs = [[names.index(token) for token in r.hypotheses[0]] for r in results]
    tables = log_probabilities(model, sources, [[*row, 3] for row in outputs])
    for table, row in zip(tables, outputs, strict=True):
        table[:, model.pad_token_id] = -np.inf
        best = table.argmax(axis=1).tolist()
        assert best[: len(row)] == row
        assert len(row) == 4 or best[len(row)] == 3


def test_beam_search_finds_the_hypotheses_of_generate(model, translator):
    rng = np.random.default_rng(3)
    sources = [rng.integers(4, 10, 1 + i % 10).tolist() for i in range(23)]
    found = model.generate([[*row, 3] for row in sources], BeamSearch(3, 0.0))
    results = translator.translate_batch(
        tokens(SOURCE, sources),
        beam_size=3,
        length_penalty=0,
        min_decoding_length=0,
        return_scores=True,
    )
    ended = np.flatnonzero(found.lengths[:, 0] < 17)
    best = [found.token_ids[i, 0, : found.lengths[i, 0] - 1] for i in ended]
    wanted = tokens(TARGET, best)
    assert len(set(map(tuple, wanted))) > 7
    assert [results[i].hypotheses[0] for i in ended] == wanted
    scores = [results[i].scores[0] for i in ended]
    np.testing.assert_allclose(scores, found.scores[ended, 0], atol=1e-4)


# The folder.


def test_strings_with_sentence_pieces(tmp_path):
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=29)
    model = model_of(source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    texts = ["the mat", "a ☃ sat"]
    translator = export(model, tmp_path / "1", check_texts=texts)
    names = {"source.model", "target.model", "shared_vocabulary.json"}
    names |= {"model.bin", "config.json", "keras_transformer.json"}
    assert {file.name for file in (tmp_path / "1").iterdir()} == names
    source, target = (
        sentencepiece.SentencePieceProcessor(str(tmp_path / f"1/{side}.model"))
        for side in ("source", "target")
    )
    results = translator.translate_batch(
        source.encode(texts, out_type=str),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=4,
        suppress_sequences=[["<pad>"]],
    )
    outputs = [target.decode(result.hypotheses[0]) for result in results]
    assert outputs == model.generate(texts, GREEDY, max_length=5)  # as the check
    assert any(outputs)


def test_words_have_no_sentence_pieces(tmp_path):
    words = WordTokenizer([*SPECIAL, "one", "two"])
    exporting._write(model_of(source_tokenizer=words), tmp_path / "1", None)
    names = {"source_vocabulary.json", "target_vocabulary.json"}
    names |= {"model.bin", "config.json"}
    assert {file.name for file in (tmp_path / "1").iterdir()} == names


def test_special_tokens_with_other_names(tmp_path):
    """The end token of BERT is [SEP], and its start token is [CLS]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat"]
    tokenizer = KerasHubTokenizer(keras_nlp.tokenizers.BertTokenizer(words))
    model = Seq2Seq(
        **{**SIZES, "tie_embeddings": "none", "max_target_length": 7},
        normalize_first=True,
        source_tokenizer=tokenizer,
    )
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    bias = [-100, 0, 0, 3, *[0] * 5]  # no padding, and an early end
    model.logits_bias.assign(np.array(bias, "float32"))
    texts = ["the cats sat", "dog", "the"]
    with pytest.warns(UserWarning, match="the commands cannot: .*BertTokenizer"):
        translator = export(model, tmp_path / "1", check_texts=texts)
    rows = tokens(tokenizer, tokenizer.tokenize(texts).to_list())
    lengths = {"min_decoding_length": 0, "max_decoding_length": 6}
    results = translator.translate_batch(rows, beam_size=1, **lengths)
    found = [[*map(tokenizer.token_to_id, r.hypotheses[0])] for r in results]
    outputs = [tokenizer.detokenize([row]).numpy()[0].decode() for row in found]
    assert outputs == model.generate(texts, GREEDY) and len({*outputs}) > 1


@pytest.mark.skipif(not has_vnni(), reason="products of int8 saturate")
def test_quantized_weights(model, folder, tmp_path):
    quantized = export(model, tmp_path / "1", quantization="int8")
    assert quantized.compute_type.startswith("int8")
    sizes = [path / "model.bin" for path in (tmp_path / "1", folder)]
    assert sizes[0].stat().st_size < sizes[1].stat().st_size


# Differences to `generate`.


def test_empty_and_long_sources(translator, folder):
    assert list(folder.parent.iterdir()) == [folder]
    [result] = translator.translate_batch([[]])
    assert result.hypotheses == [[]]
    with pytest.raises(RuntimeError, match="No position encodings .* >= 11"):
        translator.translate_batch([["a"] * 11])


# The check.


def test_other_tokens_are_an_error(model, tmp_path, monkeypatch):
    spec = exporting.make_spec(model_of(seed=2))
    monkeypatch.setattr(exporting, "make_spec", lambda _: spec)
    message = r"CTranslate2 gives the token ids \[.*, but the model chooses .* nothing"
    with pytest.raises(RuntimeError, match=message):
        export(model, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_other_scores_are_an_error(model, tmp_path, monkeypatch):
    spec = exporting.make_spec(model)
    spec.decoder.projection.weight = 1.1 * spec.decoder.projection.weight
    monkeypatch.setattr(exporting, "make_spec", lambda _: spec)
    message = "a log-probability of .*, but the model gives .* nothing was written"
    with pytest.raises(RuntimeError, match=message):
        export(model, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_ties_are_counted(tmp_path, monkeypatch):
    model = model_of(tie_embeddings="none")
    embeddings = np.array(ops.convert_to_numpy(model.target_embedding.embeddings))
    kernel, bias = model.output_dense.get_weights()[0], np.zeros(11, "float32")
    embeddings[4:] = embeddings[4]
    kernel[:, 4:], bias[4:] = kernel[:, 4:5], 9
    model.target_embedding.embeddings.assign(embeddings)
    model.output_dense.set_weights([kernel])
    model.logits_bias.assign(bias)
    monkeypatch.setattr(exporting._Translator, "decode", lambda *_: [[5, 6, 3]] * 2)
    exact = exporting._log_probabilities

    def rounded(*arguments):
        tables = exact(*arguments)
        for table in tables:
            table[0, 4] = table[0, 5] + 1e-5
            table[2] = table[2, 3]
        return tables

    monkeypatch.setattr(exporting, "_log_probabilities", rounded)
    for name in ("_check_scores", "_check_texts"):
        monkeypatch.setattr(exporting, name, lambda *_: None)
    with pytest.warns(UserWarning, match="2 of 2 texts may differ from those of"):
        export(model, tmp_path / "1")
    assert (tmp_path / "1").is_dir()


def test_other_texts_of_a_new_process_are_an_error(model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "run_python", lambda *_: '["U", "V"]')
    message = "A new process gives 'U' for 'abc', but the tokenizer gives .*; nothing"
    with pytest.raises(RuntimeError, match=message):
        export(model, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


# Errors.

REFUSED = {
    "positions": (
        {"positions": AlibiBias()},
        "an encoding, `RotaryEmbedding`, .*'AlibiBias'`. Use `format",
    ),
    "pattern": ({"attention_options": {"pattern": LocalWindow(1)}}, "`None`"),
    "sliding_window": (
        {"attention_options": {"sliding_window": 3}},
        "`None` .*`sliding_window=3`",
    ),
    "query_key_normalization": (
        {"attention_options": {"query_key_normalization": "rms"}},
        "`None` in a model with cross-attention for CTranslate2; .*'rms'",
    ),
    "use_gate": ({"attention_options": {"use_gate": True}}, "`False`"),
    "activation": ({"activation": "elu"}, "one of 'relu', 'gelu', .*'elu'"),
    "normalization": (
        {"residual_options": {"normalization": None}},
        "'layer' or 'rms'",
    ),
    "layer_norm_epsilon": (
        {"residual_options": {"layer_norm_epsilon": 0.1}},
        "the same in the model and `residual_options`",
    ),
    "dtype": ({"dtype": "mixed_bfloat16"}, "'float32' .*'mixed_bfloat16'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused(name, tmp_path):
    design, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"`{name.split()[0]}` must be {message}"):
        export(model_of(**design), tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_invalid_arguments(model, tmp_path):
    message = "`quantization` must be .*'int8', .* received `quantization='int7'`"
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "1", quantization="int7")
    with pytest.raises(ValueError, match="`check_texts` must hold a text that is not"):
        export(model, tmp_path / "1", check_texts=[""])
    plain = Seq2Seq(**SIZES, vocabulary_size=11)
    with pytest.raises(ValueError, match="`model` must have tokenizers to be exported"):
        export(plain, tmp_path / "1")


def test_a_search_without_options(model, tmp_path):
    everything = SuppressTokens(range(model.target_vocabulary_size))
    search = GreedySearch(logits_processors=[everything])
    with pytest.raises(ValueError, match="must be one that options describe"):
        export(model, tmp_path / "1", search=search)
