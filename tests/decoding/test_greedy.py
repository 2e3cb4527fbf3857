import numpy as np
from scripted_step import END, PAD, random_step, spell, written_step

from keras_transformer.decoding import GreedySearch


def test_takes_the_most_probable_token_of_each_step():
    step = written_step(
        {(): {3: 0.6, 4: 0.4}, (3,): {END: 0.3, 3: 0.4, 4: 0.3}, (4,): {END: 1.0}}
    )
    result = step.search(GreedySearch(), limits=4)
    assert result.token_ids.tolist() == [[[3, 3, END, PAD]]]
    assert result.lengths.tolist() == [[3]]
    np.testing.assert_allclose(result.scores, [[np.log(0.6 * 0.4)]], atol=1e-4)


def test_a_finished_sentence_does_not_change():
    step = spell([3], [4, 4, 4], otherwise=0.1)
    result = step.search(GreedySearch(), limits=4)
    assert result.token_ids[0].tolist() == [[3, END, PAD, PAD]]
    assert result.lengths.tolist() == [[2], [4]]
    certain = np.log(1.0 / 1.4)  # 1 against four others of 0.1
    np.testing.assert_allclose(result.scores, [[2 * certain], [4 * certain]], atol=1e-5)


def test_equal_logits_give_one_of_the_best():
    step = random_step(1)
    step.logits[:] = [0.0, 0.0, 0.0, 7.0, 7.0]
    result = step.search(GreedySearch(), limits=4)
    assert result.token_ids[0, 0, 0] in (3, 4)


def test_stops_when_every_sentence_has_ended():
    step = spell([3], [4, 4])
    result = step.search(GreedySearch(), limits=4)
    assert len(step.calls) == result.lengths.max() == 3
