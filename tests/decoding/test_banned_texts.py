"""Texts that are banned in every segmentation; `detokenize` is the reference."""

import io
import pickle
import re

import marian_folders
import numpy as np
import pytest
import sentencepiece
from keras import ops
from layer_contract import with_random_weights

from keras_transformer import BannedTexts, BeamSearch, GreedySearch, Seq2Seq
from keras_transformer.decoding.logits_processors import History
from keras_transformer.text import (
    CharacterTokenizer,
    MarianTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordTokenizer,
)

LINES = ["new york yorkshire", "York or New York", "no orc in yo york", "é ü"]


def sentence_pieces(**options):
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 2),
        model_writer=proto,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, **options},
    )
    return proto.getvalue()


def marian():
    proto = marian_folders.pieces(LINES * 2, 41)
    return MarianTokenizer(proto, list(marian_folders.vocabulary([proto] * 2)))


TOKENIZERS = {
    "bpe": lambda: SentencePieceTokenizer.train(lines=LINES * 2, vocabulary_size=45),
    "bytes": lambda: SentencePieceTokenizer(
        sentence_pieces(vocab_size=300, byte_fallback=True, character_coverage=0.98)
    ),
    "characters": lambda: CharacterTokenizer.train(lines=LINES),
    "words": lambda: WordTokenizer.train(lines=LINES),
    "marian": marian,
}
BANNED = ["York", "or", "yo y", "é", "ü ", "new york", "☃"]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def banned_tokens(processor, tokens, size):
    """Which tokens the processor bans after a hypothesis of these tokens."""
    room = np.zeros((1, 1, len(tokens) + 3), "int32")
    room[0, 0, : len(tokens)] = tokens
    history = History(
        ops.convert_to_tensor(room),
        ops.convert_to_tensor(len(tokens), "int32"),
        ops.zeros((1, 1, 1)),
    )
    logits = ops.convert_to_numpy(processor(ops.zeros((1, 1, size)), history))
    return np.isneginf(logits[0, 0])


@pytest.mark.once("torch")
def test_the_tokens_that_complete_a_text_are_banned(tokenizer):
    processor = BannedTexts(BANNED, tokenizer)
    size = tokenizer.vocabulary_size
    ids = tokenizer.tokenize([text.strip() for text in BANNED])
    texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    rows = zip(texts, ids.to_list(), strict=True)
    texts = [text for text, row in rows if tokenizer.unknown_token_id not in row]
    assert texts
    random, found, tokens = np.random.default_rng(3), 0, []
    for _ in range(60):
        every = [[*tokens, token] for token in range(size)]
        outputs = [text.decode() for text in tokenizer.detokenize(every).numpy()]
        expected = [any(text in output for text in texts) for output in outputs]
        assert banned_tokens(processor, tokens, size).tolist() == expected
        found += any(expected[4:])
        # Spells a banned text as far as it is allowed, in random segmentations.
        begun = [
            token
            for token in range(4, size)
            if not expected[token]
            and any(text.startswith(outputs[token][-2:]) for text in texts)
        ]
        allowed = begun if begun and random.random() < 0.7 else range(4, size)
        token = int(random.choice(list(allowed)))
        tokens = [] if expected[token] or len(tokens) > 12 else [*tokens, token]
    assert found > 3


@pytest.mark.once("torch")
def test_the_texts_of_tokens_are_those_of_an_output(tokenizer):
    texts = tokenizer.token_texts()
    random = np.random.default_rng(4)
    for _ in range(20):
        row = random.integers(4, tokenizer.vocabulary_size, 7).tolist()
        joined = b"".join(texts[token] for token in row).decode("utf-8", "replace")
        (output,) = tokenizer.detokenize([row]).numpy()
        # A byte that is not UTF-8 is replaced alone or with its neighbours.
        found = [re.sub("\ufffd+", "\ufffd", t) for t in (joined, output.decode())]
        assert found[0].strip() == found[1].strip()


@pytest.mark.once("torch")
def test_no_output_has_a_banned_text():
    kind, options = BeamSearch, {"num_beams": 3, "num_hypotheses": 3}
    tokenizer = TOKENIZERS["bpe"]()
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        vocabulary_size=47,  # rounded up
        max_target_length=9,
        source_tokenizer=tokenizer,
    )
    with_random_weights(model)
    texts = ["york", "new", "no"]
    free = model.generate(texts, kind(**options), seed=1)
    letters = sorted({letter for row in free for text in row for letter in text[1:]})
    banned = [letter for letter in letters if letter.isalpha()][:2]
    assert banned
    search = kind(logits_processors=[BannedTexts(banned, tokenizer)], **options)
    outputs = [text for row in model.generate(texts, search, seed=1) for text in row]
    assert any(outputs) and not any(text in o for o in outputs for text in banned)


@pytest.mark.once("torch")
def test_a_processor_is_hashable_and_can_be_pickled():
    tokenizer = TOKENIZERS["bpe"]()
    processor = BannedTexts(["York"], tokenizer)
    assert processor == BannedTexts(("York",), tokenizer)
    assert hash(GreedySearch([processor])) == hash(GreedySearch([processor]))
    assert repr(processor) == "BannedTexts(texts=('York',))"
    again = pickle.loads(pickle.dumps(processor))
    tokens = tokenizer.tokenize(["Yor"]).to_list()[0]
    expected = banned_tokens(processor, tokens, tokenizer.vocabulary_size)
    assert expected.any()
    found = banned_tokens(again, tokens, tokenizer.vocabulary_size)
    assert (found == expected).all()


class Reversed(Tokenizer):
    """Its outputs are not the texts of the tokens in their order."""

    def __init__(self):
        super().__init__([*self.special_tokens, *"abc"])
        self._letters = CharacterTokenizer(self.get_vocabulary())

    def _encode(self, texts):
        return self._letters._encode(texts)[:, ::-1]

    def _decode(self, token_ids):
        return self._letters._decode(token_ids[:, ::-1])

    def get_config(self):
        return {}


@pytest.mark.once("torch")
def test_errors():
    letters = CharacterTokenizer.train(lines=["abc"])
    for texts in ([], ["a", " "], "abc"):
        with pytest.raises(ValueError, match="`texts` must be a list of at least one"):
            BannedTexts(texts, letters)
    with pytest.raises(ValueError, match="`Reversed` does not. Implement its method"):
        BannedTexts(["ab"], Reversed())
    with pytest.raises(ValueError, match="`tokenizer` must be the target tokenizer"):
        banned_tokens(BannedTexts(["ab"], letters), [4], 5)
