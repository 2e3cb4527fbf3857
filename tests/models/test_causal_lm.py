"""`CausalLM`: calls, steps, searches and scores of a decoder-only model."""

import keras
import numpy as np
import pytest
from designs import DESIGNS
from keras import ops

import keras_transformer as kt
from keras_transformer import BeamSearch, CausalLM, GreedySearch, Sampling

SIZES = {"num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24, "num_heads": 2}
PROMPTS = [[2, 5, 6, 7, 8], [2, 9], [2, 4, 4, 10, 3, 5, 6, 7]]


def model_of(name="sinusoidal", **options):
    design = {**DESIGNS[name](), "dropout": 0.0}
    model = CausalLM(**{**SIZES, "vocabulary_size": 11, **design, **options})
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def all_log_probs(model, rows):
    """Log-probabilities of the token after each one of rows of one length."""
    logits = ops.convert_to_numpy(model(np.array(rows, "int32"))).astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def log_probs(model, row):
    return all_log_probs(model, [row])[0]


def continuations(model, prompt, length):
    """Returns all continuations of at most `length` tokens, with their scores."""
    unfinished, finished = {(): 0.0}, {}
    for step in range(length):
        longer = {}
        rows = [[*prompt, *tokens] for tokens in unfinished]
        step_scores = all_log_probs(model, rows)[:, -1]
        for (tokens, score), row in zip(unfinished.items(), step_scores, strict=True):
            for token in range(1, 11):
                ended = token == 3 or step == length - 1
                found = finished if ended else longer
                found[*tokens, token] = score + row[token]
        unfinished = longer
    return finished


def rows_of(result):
    return [
        row[0, : lengths[0]].tolist()
        for row, lengths in zip(result.token_ids, result.lengths, strict=True)
    ]


@pytest.mark.parametrize("name", DESIGNS)
def test_greedy_search_takes_the_best_token_of_whole_calls(name):
    model = model_of(name)
    result = model.generate(PROMPTS, GreedySearch(), max_length=4)
    rows = [[*prompt] for prompt in PROMPTS]
    for _ in range(4):
        # One shape for every call: under JAX, each new one is compiled.
        padded = keras.utils.pad_sequences(rows, maxlen=12, padding="post")
        for row, prompt, scores in zip(
            rows, PROMPTS, all_log_probs(model, padded), strict=True
        ):
            if len(row) == len(prompt) or row[-1] != 3:
                row.append(1 + int(scores[len(row) - 1, 1:].argmax()))
    for row, prompt, found in zip(rows, PROMPTS, rows_of(result), strict=True):
        assert found == row[len(prompt) :]


@pytest.mark.parametrize("name", ["sinusoidal", "modern"])
def test_a_beam_as_wide_as_the_tree_finds_the_best_continuation(name):
    model, prompts = model_of(name), [[2, 5, 6], [2, 9, 3, 8, 7, 7, 4]]
    search = BeamSearch(num_beams=100, num_hypotheses=5, length_penalty=0.0)
    result = model.generate(prompts, search, max_length=3)
    for number, prompt in enumerate(prompts):
        scores = continuations(model, prompt, 3)
        best = sorted(scores, key=scores.get, reverse=True)[:5]
        found = [
            tuple(row[:length].tolist())
            for row, length in zip(
                result.token_ids[number], result.lengths[number], strict=True
            )
        ]
        assert found == best
        np.testing.assert_allclose(
            result.scores[number], [scores[row] for row in best], atol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "search"),
    [
        *zip(
            DESIGNS,
            [Sampling(num_samples=2, top_p=0.9), BeamSearch(3)] * 4,
            strict=True,
        )
    ],
)
def test_a_prompt_alone_gives_the_output_it_has_in_company(name, search):
    model = model_of(name, num_layers=1)
    together = model.generate(PROMPTS, search, max_length=5, seed=7)
    for number, prompt in enumerate(PROMPTS[:2]):
        alone = model.generate([prompt], search, max_length=5, seed=7)
        longest = alone.token_ids.shape[2]
        np.testing.assert_array_equal(
            together.token_ids[number, :, :longest], alone.token_ids[0]
        )
        np.testing.assert_allclose(together.scores[number], alone.scores[0], atol=1e-4)


@pytest.mark.parametrize("name", DESIGNS)
def test_scores_are_those_of_whole_calls(name):
    model = model_of(name)
    targets = [[5, 5, 3], [4, 9, 8, 3], [7]]
    result = model.score(PROMPTS, targets)
    for prompt, target, found in zip(
        PROMPTS, targets, result.token_scores, strict=True
    ):
        expected = log_probs(model, [*prompt, *target])[len(prompt) - 1 : -1]
        np.testing.assert_allclose(
            found, expected[range(len(target)), target], atol=1e-5
        )


def test_scores_of_generate_are_those_of_score():
    model = model_of("rotary")
    search = BeamSearch(num_beams=3, length_penalty=0.0)
    result = model.generate(PROMPTS, search, max_length=5)
    scored = model.score(PROMPTS, rows_of(result))
    np.testing.assert_allclose(scored.scores, result.scores[:, 0], atol=1e-5)


def test_prefixes_are_parts_of_continuations():
    model = model_of()
    prefixes = [[9, 9], [], [4]]
    result = model.generate(PROMPTS, BeamSearch(3), max_length=5, prefix=prefixes)
    for row, prefix in zip(rows_of(result), prefixes, strict=True):
        assert row[: len(prefix)] == prefix
    joined = [[*prompt, 9, 9] for prompt in PROMPTS[:1]]
    rest = model.generate(joined, GreedySearch(), max_length=3)
    whole = model.generate(
        PROMPTS[:1], GreedySearch(), max_length=5, prefix=prefixes[:1]
    )
    assert rows_of(whole)[0] == [9, 9, *rows_of(rest)[0]]


def test_many_prompts_and_many_steps_continue_in_smaller_batches():
    """The last rows of a batch move into a smaller one with longer caches."""
    model = model_of("rotary", num_layers=1)
    rng = np.random.default_rng(5)
    prompts = [[2, *rng.integers(4, 11, size=n % 9)] for n in range(16)]
    together = model.generate(prompts, GreedySearch(), max_length=40, min_length=1)
    for number in (0, 7, 15):
        alone = model.generate([prompts[number]], GreedySearch(), max_length=40)
        assert rows_of(together)[number] == rows_of(alone)[0]


def test_an_empty_prompt_begins_at_the_start_token():
    model = model_of()
    found = model.generate([[], [2]], BeamSearch(2), max_length=4)
    np.testing.assert_array_equal(found.token_ids[0], found.token_ids[1])
    scored = model.score([[], [2]], [[5, 3], [5, 3]])
    assert scored.scores[0] == scored.scores[1]


def test_stream_yields_the_tokens_of_generate():
    model = model_of("rotary")
    for prompt, search in ((PROMPTS[0], GreedySearch()), ([], BeamSearch(3))):
        found = [*model.stream(prompt, search, max_length=5)]
        assert found == rows_of(model.generate([prompt], search, max_length=5))[0]


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


@pytest.mark.parametrize("name", DESIGNS)
def test_packed_texts_do_not_attend_to_each_other(name):
    model = model_of(name)
    texts = [[2, 5, 6, 3], [2, 9, 9, 8, 3]]
    packed = {
        "token_ids": np.array([[*texts[0], *texts[1]]]),
        "segment_ids": np.array([[0] * 4 + [4] * 5]),
    }
    logits = ops.convert_to_numpy(model(packed))[0]
    alone = [ops.convert_to_numpy(model(np.array([text])))[0] for text in texts]
    np.testing.assert_allclose(logits, np.concatenate(alone), atol=1e-5)


def test_attention_scores_are_of_earlier_tokens():
    model = model_of()
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


def test_a_model_of_running_text_scores_all_tokens_but_the_first():
    model = model_of()
    found = model.score_texts([[5, 6, 7]], context=8)
    expected = log_probs(model, [5, 6, 7])
    np.testing.assert_allclose(
        found.token_scores[0], [expected[0, 6], expected[1, 7]], atol=1e-5
    )


@pytest.mark.parametrize("name", DESIGNS)
def test_config_and_file_restore_the_model(name, tmp_path):
    model = model_of(name, tie_embeddings=name == "rotary", max_length=12)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.get_config() == model.get_config()
    ids = np.array(PROMPTS[:1])
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(m(ids)) for m in (model, reloaded))
    )


def texts_model(**options):
    tokenizer = kt.CharacterTokenizer.train(lines=["a man sees two dogs."])
    return CausalLM(**SIZES, tokenizer=tokenizer, dropout=0.0, **options)


def test_texts_and_files_of_a_preset(tmp_path):
    model = texts_model()
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
    found = model.generate(
        ["a man"],
        GreedySearch(),
        max_length=len(after) + 1,
        prefix=[after[:]][:1],
        include_prompt=True,
    )
    assert found[0].startswith("a man sees two")


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


@pytest.mark.once("torch")
def test_it_learns_answers_to_prompts():
    model = CausalLM(
        **{**SIZES, "hidden_dim": 32, "num_heads": 4}, vocabulary_size=11, dropout=0.0
    )
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
    scored = model.score(prompts, answers)
    assert found == pytest.approx(-scored.scores.sum() / scored.lengths.sum(), rel=1e-4)


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


def test_what_needs_a_source_is_refused_by_name():
    model = model_of()
    with pytest.raises(ValueError, match="`align` requires a model with cross"):
        model.align([[2]], [[3]])
    with pytest.raises(ValueError, match="`return_alignments` requires"):
        model.generate([[2]], return_alignments=True)
    with pytest.raises(ValueError, match="`coverage_penalty`.*no source"):
        model.generate([[2]], BeamSearch(2, coverage_penalty=0.2))
    with pytest.raises(ValueError, match="`start_token_id` must not be `pad"):
        CausalLM(**SIZES, vocabulary_size=11, start_token_id=0)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_types(dtype):
    model = model_of("rotary", dtype=dtype)
    exact = model_of("rotary")
    model.set_weights(exact.get_weights())
    found = model.score(PROMPTS, [[5, 5, 3], [4, 3], [7, 3]])
    expected = exact.score(PROMPTS, [[5, 5, 3], [4, 3], [7, 3]])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0.05)
    assert model.generate(PROMPTS, BeamSearch(2), max_length=3).token_ids.shape[0] == 3


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


def test_sampling_is_the_default():
    model = model_of("rotary")
    found = model.generate(PROMPTS, max_length=5, seed=3)
    sampled = model.generate(PROMPTS, Sampling(top_p=0.9), max_length=5, seed=3)
    np.testing.assert_array_equal(found.token_ids, sampled.token_ids)
    tokens = [*model.stream(PROMPTS[0], max_length=5, seed=3)]
    assert tokens == rows_of(sampled)[0]


@pytest.mark.once("torch")
def test_normalized_embeddings_are_saved():
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
    options = {"vocabulary_size": 11, "normalize_embeddings": True, "dropout": 0.0}
    model = CausalLM(**sizes, **options)
    embedded = ops.convert_to_numpy(model.embed_target(np.array([[2, 5, 6]])))
    np.testing.assert_allclose(embedded.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(embedded.std(axis=-1), 1, atol=1e-3)
    again = CausalLM.from_config(model.get_config())
    assert len(again.weights) == len(model.weights)
    plain = CausalLM(**sizes, vocabulary_size=11)
    assert len(plain.weights) == len(model.weights) - 2
    assert "normalize_embeddings" not in plain.get_config()
