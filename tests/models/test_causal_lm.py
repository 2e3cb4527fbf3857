"""`CausalLM`: calls, steps, searches and scores of a decoder-only model."""

import keras
import numpy as np
import pytest
from designs import DESIGNS
from keras import ops

import keras_transformer as kt
from keras_transformer import BeamSearch, CausalLM, GreedySearch, Sampling

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
PROMPTS = [[2, 5, 6, 7, 8], [2, 9], [2, 4, 4, 10, 3, 5, 6, 7]]


def on_torch(*values):
    """A case in which the backend makes no difference: it runs with PyTorch."""
    return pytest.param(*values, marks=pytest.mark.once("torch"))


def model_of(name="sinusoidal", **options):
    design = {**DESIGNS[name](), "dropout": 0.0}
    model = CausalLM(**{**SIZES, "vocabulary_size": 11, **design, **options})
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def log_probs(model, row, length=16):
    """Log-probabilities of the token after each one of a row.

    The calls have one shape: with JAX, each new one is compiled.
    """
    length = min(length, model.max_length or length)
    padded = np.array([[*row, *[0] * (length - len(row))]], "int32")
    logits = ops.convert_to_numpy(model(padded))[0, : len(row)].astype("float64")
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def rows_of(result):
    return [
        row[0, : lengths[0]].tolist()
        for row, lengths in zip(result.token_ids, result.lengths, strict=True)
    ]


@pytest.mark.parametrize("name", [on_torch("learned"), "modern"])
def test_greedy_search_takes_the_best_token_of_whole_calls(name):
    model = model_of(name, num_layers=2)
    result = model.generate(PROMPTS, GreedySearch(), max_length=4)
    for prompt, found in zip(PROMPTS, rows_of(result), strict=True):
        row = [*prompt]
        while len(row) - len(prompt) < 4 and (len(row) == len(prompt) or row[-1] != 3):
            row.append(1 + int(log_probs(model, row)[-1, 1:].argmax()))
        assert found == row[len(prompt) :]


def test_beams_have_the_scores_of_whole_calls_and_do_not_depend_on_the_batch():
    model = model_of("relative")
    search = BeamSearch(3, length_penalty=0.0, num_hypotheses=2)
    result = model.generate(PROMPTS, search, max_length=5)
    for prompt, ids, lengths, scores in zip(PROMPTS, *result[:3], strict=True):
        for row, length, score in zip(ids, lengths, scores, strict=True):
            target = row[:length].tolist()
            every = log_probs(model, [*prompt, *target])[len(prompt) - 1 : -1]
            expected = every[range(length), target].sum()
            np.testing.assert_allclose(score, expected, atol=1e-4)
    alone = model.generate(PROMPTS[1:2], search, max_length=5)
    longest = alone.token_ids.shape[2]
    np.testing.assert_array_equal(result.token_ids[1, :, :longest], alone.token_ids[0])


def test_scores_are_those_of_whole_calls():
    model = model_of("global")
    targets = [[5, 5, 3], [4, 9, 8, 3], [7]]
    result = model.score(PROMPTS, targets)
    for prompt, target, found in zip(
        PROMPTS, targets, result.token_scores, strict=True
    ):
        expected = log_probs(model, [*prompt, *target])[len(prompt) - 1 : -1]
        np.testing.assert_allclose(
            found, expected[range(len(target)), target], atol=1e-5
        )


@pytest.mark.once("torch")
def test_prefixes_are_parts_of_continuations():
    model = model_of()
    prefixes = [[9, 9], [], [4]]
    result = model.generate(PROMPTS, BeamSearch(3), max_length=5, prefix=prefixes)
    for row, prefix in zip(rows_of(result), prefixes, strict=True):
        assert row[: len(prefix)] == prefix
    rest = model.generate([[*PROMPTS[0], 9, 9]], GreedySearch(), max_length=3)
    options = {"max_length": 5, "prefix": prefixes[:1]}
    whole = model.generate(PROMPTS[:1], GreedySearch(), **options)
    assert rows_of(whole)[0] == [9, 9, *rows_of(rest)[0]]


@pytest.mark.once("torch")
def test_many_prompts_and_many_steps_continue_in_smaller_batches():
    """The last rows of a batch move into a smaller one with longer caches."""
    model = model_of("rotary")
    rng = np.random.default_rng(5)
    prompts = [[2, *rng.integers(4, 11, size=n % 9)] for n in range(16)]
    together = model.generate(prompts, GreedySearch(), max_length=24, min_length=1)
    for number in (0, 7, 15):
        alone = model.generate([prompts[number]], GreedySearch(), max_length=24)
        assert rows_of(together)[number] == rows_of(alone)[0]


@pytest.mark.once("torch")
def test_empty_prompts_streams_and_samples():
    model = model_of()
    found = model.generate([[], [2]], BeamSearch(2), max_length=4)
    np.testing.assert_array_equal(found.token_ids[0], found.token_ids[1])
    scored = model.score([[], [2]], [[5, 3], [5, 3]])
    assert scored.scores[0] == scored.scores[1]
    assert [*model.stream([], BeamSearch(2), max_length=4)] == rows_of(found)[0]
    # Sampling is the default.
    found = model.generate(PROMPTS, max_length=5, seed=3)
    sampled = model.generate(PROMPTS, Sampling(top_p=0.9), max_length=5, seed=3)
    np.testing.assert_array_equal(found.token_ids, sampled.token_ids)
    tokens = [*model.stream(PROMPTS[0], max_length=5, seed=3)]
    assert tokens == rows_of(sampled)[0]


@pytest.mark.once("torch")
def test_the_context_limits_prompt_and_continuation_together():
    model = model_of("learned")  # 13 positions
    search, prompts = GreedySearch(), [[2, 5], [2, *range(4, 11), *range(4, 9)]]
    result = model.generate(prompts, search, min_length=99)
    assert result.lengths[:, 0].tolist() == [12, 1]
    assert np.isfinite(result.scores).all()
    with pytest.raises(ValueError, match="at most `max_length=13` tokens.*received 14"):
        model.generate([[2, *range(4, 11), *range(4, 10)]], search)
    with pytest.raises(ValueError, match="at most 1 tokens after a source of 13"):
        model.score(prompts[1:], [[5, 3]])


@pytest.mark.parametrize("name", [on_torch("learned"), "relative", "modern"])
def test_packed_texts_do_not_attend_to_each_other(name):
    model = model_of(name)
    texts = [[2, 5, 6, 3], [2, 9, 9, 3]]
    packed = {
        "token_ids": np.array([[*texts[0], *texts[1]]]),
        "segment_ids": np.array([[0] * 4 + [4] * 4]),
    }
    logits = ops.convert_to_numpy(model(packed))[0]
    alone = [ops.convert_to_numpy(model(np.array([text])))[0] for text in texts]
    np.testing.assert_allclose(logits, np.concatenate(alone), atol=1e-5)


@pytest.mark.once("torch")
def test_attention_scores_are_of_earlier_tokens():
    model = model_of(num_layers=2)
    logits, scores = model(np.array(PROMPTS[:1]), return_attention_scores=True)
    assert logits.shape == (1, 5, 11)
    assert len(scores) == 2
    for block in scores:
        weights = ops.convert_to_numpy(block)
        assert weights.shape == (1, 2, 5, 5)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        assert not np.triu(weights, 1).any()


@pytest.mark.once("torch")
def test_windows_of_a_long_text_have_the_context_they_can_have():
    model = model_of("learned", add_start_token=True)  # 13 positions
    text = np.random.default_rng(2).integers(4, 11, 40).tolist()
    whole = [2, *text, 3]
    for stride in (1, 5, 13):
        found = model.score_texts([text, text[:3]], stride=stride)
        expected, end = [], 14  # the first window predicts tokens 1 to 13
        for number in range(1, len(whole)):
            end += stride * (number == end)
            row = log_probs(model, whole[end - 14 : number])[-1]
            expected.append(row[whole[number]])
        np.testing.assert_allclose(found.token_scores[0], expected, atol=1e-5)
        assert found.lengths.tolist() == [41, 4]
    with pytest.raises(ValueError, match="`context` must be.*at most `max_length=13`"):
        model.score_texts([text], context=14)
    with pytest.raises(ValueError, match="`context` must be.*was trained on"):
        model_of().score_texts([text])
    for stride in (14, 2.5):
        with pytest.raises(ValueError, match="`stride` must be an int from 1 to 13"):
            model.score_texts([text], stride=stride)
    with pytest.raises(ValueError, match="`context` must be an int"):
        model.score_texts([text], context=8.0)


@pytest.mark.once("torch")
def test_a_model_of_running_text_scores_all_tokens_but_the_first():
    model = model_of()
    found = model.score_texts([[5, 6, 7]], context=8)
    expected = log_probs(model, [5, 6, 7])
    np.testing.assert_allclose(
        found.token_scores[0], [expected[0, 6], expected[1, 7]], atol=1e-5
    )


def test_config_and_file_restore_the_model(tmp_path):
    model = model_of("modern", tie_embeddings=True, max_length=12)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.get_config() == model.get_config()
    ids = np.array(PROMPTS[:1])
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(m(ids)) for m in (model, reloaded))
    )


@pytest.mark.once("torch")
def test_texts_and_files_of_a_preset(tmp_path):
    tokenizer = kt.CharacterTokenizer.train(lines=["a man sees two dogs."])
    model = CausalLM(**SIZES, tokenizer=tokenizer, dropout=0.0)
    prompts = ["a man", "", "two"]
    texts = model.generate(prompts, GreedySearch(), max_length=6)
    whole = model.generate(prompts, GreedySearch(), max_length=6, include_prompt=True)
    assert whole == [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    one = model.generate("two", GreedySearch(), max_length=6)
    assert one == texts[2]
    assert "".join(model.stream("two", GreedySearch(), max_length=6)) == one
    model.save_to_preset(tmp_path / "lm")
    loaded = CausalLM.from_preset(str(tmp_path / "lm"))
    assert loaded.get_config() == model.get_config()
    assert loaded.generate(prompts, GreedySearch(), max_length=6) == texts
    with pytest.raises(ValueError, match="must describe a Seq2Seq"):
        kt.Seq2Seq.from_preset(str(tmp_path / "lm"))


@pytest.mark.once("torch")
def test_prompts_of_subwords_keep_the_space():
    pieces = kt.SentencePieceTokenizer.train(
        lines=["a man sees two dogs"] * 9, vocabulary_size=24
    )
    model = CausalLM(**SIZES, tokenizer=pieces, dropout=0.0)
    dogs = pieces.tokenize(["a man sees two"]).to_list()[0]
    prompt = pieces.tokenize(["a man"]).to_list()[0]
    assert dogs[: len(prompt)] == prompt
    after = [*dogs[len(prompt) :]]
    options = {"max_length": len(after) + 1, "prefix": [after], "include_prompt": True}
    found = model.generate(["a man"], GreedySearch(), **options)
    assert found[0].startswith("a man sees two")


@pytest.mark.once("torch")
def test_sizes_by_name():
    model = CausalLM.from_preset("transformer_tiny", vocabulary_size=11)
    assert (model.num_layers, model.hidden_dim) == (4, 128)


def pairs_data():
    """Prompts of digits; the answer is the prompt in reverse."""
    rng = np.random.default_rng(1)
    prompts, answers = [], []
    for length in rng.integers(1, 5, size=64):
        row = rng.integers(4, 11, size=length).tolist()
        prompts.append([2, *row])
        answers.append([*row[::-1], 3])
    padded = keras.utils.pad_sequences
    targets = padded(answers, padding="post")
    inputs = {
        "encoder_token_ids": padded(prompts, padding="post"),
        "decoder_token_ids": padded([[2, *a[:-1]] for a in answers], padding="post"),
    }
    return inputs, targets, prompts, answers


@pytest.mark.slow
@pytest.mark.once("torch")
def test_it_learns_answers_to_prompts():
    sizes = {**SIZES, "num_layers": 2, "hidden_dim": 32, "num_heads": 4}
    model = CausalLM(**sizes, vocabulary_size=11, dropout=0.0)
    inputs, targets, prompts, answers = pairs_data()
    model.compile(keras.optimizers.Adam(0.005), kt.LabelSmoothedCrossEntropy(0.0))
    losses = model.fit(inputs, targets, epochs=60, batch_size=32, verbose=0)
    assert losses.history["loss"][-1] < 0.2
    found = rows_of(model.generate(prompts, GreedySearch()))
    right = np.mean([a == b for a, b in zip(found, answers, strict=True)])
    assert right > 0.9


def test_the_loss_of_pairs_is_that_of_the_answers():
    model = model_of()
    inputs, targets, prompts, answers = pairs_data()
    model.compile("sgd", kt.LabelSmoothedCrossEntropy(0.0))
    found = model.evaluate(inputs, targets, batch_size=64, verbose=0)
    scores = []
    for prompt, answer in zip(prompts, answers, strict=True):
        row = log_probs(model, [*prompt, *answer])[len(prompt) - 1 : -1]
        scores += row[range(len(answer)), answer].tolist()
    assert found == pytest.approx(-np.mean(scores), rel=1e-4)


@pytest.mark.once("torch")
def test_pairs_that_exceed_the_context_have_no_logits():
    """Not those of another token, which a loss would take for those of the answer."""
    model = model_of(max_length=5)
    inputs = {
        "encoder_token_ids": np.array([[4, 5, 6, 7], [4, 5, 0, 0]]),
        "decoder_token_ids": np.array([[2, 8, 9, 0], [2, 8, 9, 10]]),
    }
    logits = ops.convert_to_numpy(model(inputs))
    known = np.isfinite(logits).all(axis=2).tolist()
    assert known == [[True, True, False, True], [True] * 4]


@pytest.mark.once("torch")
def test_it_trains_on_whole_texts():
    model = model_of(add_start_token=True)
    rows = np.array([[2, 5, 6, 7, 8, 3], [2, 9, 4, 3, 0, 0]])
    model.compile("sgd", kt.LabelSmoothedCrossEntropy(0.0), metrics=[kt.Perplexity()])
    loss, perplexity = model.evaluate(rows[:, :-1], rows[:, 1:], verbose=0)
    scored = model.score_texts([[5, 6, 7, 8], [9, 4]], context=8)
    expected = -scored.scores.sum() / scored.lengths.sum()
    assert loss == pytest.approx(expected, rel=1e-4)
    assert perplexity == pytest.approx(np.exp(expected), rel=1e-4)
    history = model.fit(rows[:, :-1], rows[:, 1:], epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.once("torch")
def test_what_needs_a_source_is_refused_by_name():
    model = model_of()
    with pytest.raises(ValueError, match="`align` requires a model with cross"):
        model.align([[2]], [[3]])
    with pytest.raises(ValueError, match="`cross_attention` requires a model with c"):
        model.cross_attention([[2]], [[3]])
    for each in (model, kt.Ensemble([model])):
        with pytest.raises(ValueError, match="`return_alignments` requires"):
            each.generate([[2]], return_alignments=True)
    with pytest.raises(ValueError, match="`coverage_penalty`.*no source"):
        model.generate([[2]], BeamSearch(2, coverage_penalty=0.2))
    with pytest.raises(ValueError, match="`start_token_id` must not be `pad"):
        CausalLM(**SIZES, vocabulary_size=11, start_token_id=0)


@pytest.mark.parametrize("dtype", ["mixed_float16", on_torch("mixed_bfloat16")])
def test_half_types(dtype):
    model, exact = model_of("rotary", dtype=dtype), model_of("rotary")
    model.set_weights(exact.get_weights())
    found = [log_probs(m, PROMPTS[0]) for m in (model, exact)]
    np.testing.assert_allclose(*found, rtol=0.05, atol=0.05)


@pytest.mark.once("torch")
def test_an_ensemble_decodes_language_models():
    models = [model_of("rotary"), model_of("alibi")]
    ensemble = kt.Ensemble(models)
    found = ensemble.score(PROMPTS, [[5, 3], [4, 3], [7, 3]])
    for number, (prompt, target) in enumerate(
        zip(PROMPTS, [[5, 3], [4, 3], [7, 3]], strict=True)
    ):
        rows = [log_probs(m, [*prompt, *target])[len(prompt) - 1 : -1] for m in models]
        mean = np.log(np.mean(np.exp(rows), axis=0))
        expected = mean[range(2), target].sum()
        assert found.scores[number] == pytest.approx(expected, abs=1e-4)
    result = ensemble.generate(PROMPTS, BeamSearch(2, length_penalty=0.0), max_length=4)
    scored = ensemble.score(PROMPTS, rows_of(result))
    np.testing.assert_allclose(scored.scores, result.scores[:, 0], atol=1e-4)


@pytest.mark.once("torch")
def test_normalized_embeddings_are_saved():
    options = {**SIZES, "vocabulary_size": 11, "dropout": 0.0}
    model = CausalLM(**options, normalize_embeddings=True)
    embedded = ops.convert_to_numpy(model.embed_target(np.array([[2, 5, 6]])))
    np.testing.assert_allclose(embedded.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(embedded.std(axis=-1), 1, atol=1e-3)
    again = CausalLM.from_config(model.get_config())
    assert len(again.weights) == len(model.weights)
    plain = CausalLM(**options)
    assert len(plain.weights) == len(model.weights) - 2
    assert plain.get_config()["normalize_embeddings"] is False
