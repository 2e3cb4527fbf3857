"""Tiny tokenizers with the parts of known ones, and random texts of many scripts."""

import functools
import io
import json
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from keras_transformer.text.pipeline.pre_tokenizers import LLAMA3, QWEN2

# Letters of several scripts, white space, numbers, punctuation, letters that change in
# lower case, combining marks, emoji and their joiners, control characters.
ALPHABETS = (
    *("abc XYZ'sS don't we'LL ſ 'ſ", " \t\n\r\x85\xa0\u3000\u2003\x0b\x0c\u2028"),
    *("0123٣½²Ⅷ", "!?.,;:'\"#-_/()", "éüñÅßİIıΣςσάЖж", "\u0301\u0323\u0308\u094d"),
    *("猫日本語カナｶﾞ가각", "नमस्ते ไทย", "👩\u200d👩\u200d👧😀🇩🇪\ufe0f"),
    *("\x00\x01\x7f\u200b\ufeff\ufffd", "ﬁ①Ａ▁\U00010400\U0001e943"),
)
PIECES = (
    *("\n\n", "  ", "   ", "the", " the", "'s", "'LL", " cat", "aaaa", "....", "==="),
    *("<mask>", " <mask> ", "<|im_start|>", "<tool>", "<extra_id_0>", "[MASK]"),
)
LINES = [
    *("the cat sat on the mat 123", "don't we'll see cats ... !!!! ====", "aaa aaaa"),
    *("猫は日本語 नमस्ते ไทย", "éü ñ Å 😀👩\u200d👩 가각", "    indented   code\n\n\tx"),
    *("the cats saw the mats", "le chat s'est assis", "Ж ж Σς ß ﬁ ½"),
]


def random_texts(count, seed=0):
    rng = random.Random(seed)

    def part():
        if rng.random() < 0.6:
            return rng.choice(rng.choice(ALPHABETS))
        return rng.choice(PIECES)

    texts = ["".join(part() for _ in range(rng.randrange(30))) for _ in range(count)]
    return [*texts, "", " ", "a", "  a", "\ufeffa", "the" * 50, "猫" * 60, "a" * 101]


TRAINING = [*LINES * 3, *random_texts(100, seed=1)]


def byte_level(pre_tokenizer, normalizer=None, special=("<|endoftext|>",), **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def split_by(pattern):
    parts = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(parts)


def framed(tokenizer, before, after):
    names = [*before, *after]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1"],
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )
    return tokenizer


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3():
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>"]
    tokenizer = byte_level(split_by(LLAMA3), None, special, ignore_merges=True)
    return framed(tokenizer, ["<|begin_of_text|>"], [])


def qwen2():
    tokenizer = byte_level(split_by(QWEN2), normalizers.NFC())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def smollm2():
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = pre_tokenizers.Sequence([digits, bytes_of_words])
    return byte_level(parts, None, ["<|endoftext|>", "<|im_start|>"])


def roberta():
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=False), None, special
    )
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    tokenizer.add_special_tokens([mask])
    return framed(tokenizer, ["<s>"], ["</s>"])


def bert(lowercase=True):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return framed(tokenizer, ["[CLS]"], ["[SEP]"])


@functools.cache
def piece_model(model_type, **options):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in TRAINING if line.strip()]),
        model_writer=written,
        model_type=model_type,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


def parsed(proto):
    return sentencepiece_model_pb2.ModelProto.FromString(proto)


def merges_of(model):
    """All pairs of pieces that are a piece, those with a high score first."""
    normal = {p.piece: (-p.score, i) for i, p in enumerate(model.pieces) if p.type == 1}
    merges = [
        (*rank, token[:end], token[end:])
        for token, rank in normal.items()
        for end in range(1, len(token))
        if token[:end] in normal and token[end:] in normal
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


LLAMA2 = {
    "vocab_size": 600,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
}


def llama2(prepend="normalizer"):
    model = parsed(piece_model("bpe", **LLAMA2))
    vocabulary = {piece.piece: id for id, piece in enumerate(model.pieces)}
    merges, options = merges_of(model), {"unk_token": "<unk>", "fuse_unk": True}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, **options))
    if prepend == "normalizer":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            *(decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return framed(tokenizer, ["<s>"], [])


def rules(name):
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=name)
    model = parsed(normalizer.serialized_model_proto())
    return normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)


def unigram(special):
    model = parsed(piece_model("unigram", vocab_size=400))
    pieces = [(piece.piece, piece.score) for piece in model.pieces[3:]]
    vocabulary = [*((token, 0.0) for token in special), *pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, special.index("<unk>")))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(special)
    return tokenizer


def t5():
    tokenizer = unigram(["<pad>", "</s>", "<unk>"])
    tokenizer.normalizer = rules("nmt_nfkc")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.add_special_tokens(["<extra_id_0>"])
    return framed(tokenizer, [], ["</s>"])


def mbart():
    tokenizer = unigram(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.normalizer = normalizers.Sequence(
        [
            *(rules("nmt_nfkc_cf"), normalizers.Strip(False, True)),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    mask = AddedToken("<mask>", lstrip=True, special=True)
    tokenizer.add_special_tokens(["en_XX", "ro_RO", mask])
    return framed(tokenizer, [], ["</s>", "en_XX"])


def nllb():
    content = json.loads(llama2().to_str())
    model = content["model"] | {"byte_fallback": False}
    content |= {"model": model, "normalizer": None, "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.normalizer = normalizers.Sequence(
        [rules("nmt_nfkc"), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "eng_Latn", "fra_Latn"])
    return framed(tokenizer, ["eng_Latn"], ["</s>"])


KINDS = {
    "gpt2": gpt2,
    "llama3": llama3,
    "qwen2": qwen2,
    "smollm2": smollm2,
    "roberta": roberta,
    "bert": bert,
    "bert-cased": lambda: bert(lowercase=False),
    "llama2": llama2,
    "llama2-first": lambda: llama2("first"),
    "t5": t5,
    "mbart": mbart,
    "nllb": nllb,
}
# Padding, unknown text, start and end, as in the models of these names.
TOKENS = {
    "gpt2": (None, None, "<|endoftext|>", "<|endoftext|>"),
    "llama3": (None, None, "<|begin_of_text|>", "<|end_of_text|>"),
    "qwen2": ("<|endoftext|>", None, "<|im_end|>", "<|im_end|>"),
    "smollm2": (None, None, "<|endoftext|>", "<|endoftext|>"),
    "roberta": ("<pad>", "<unk>", "<s>", "</s>"),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "bert-cased": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "llama2": (None, "<unk>", "<s>", "</s>"),
    "llama2-first": (None, "<unk>", "<s>", "</s>"),
    "t5": ("<pad>", "<unk>", "<pad>", "</s>"),
    "mbart": ("<pad>", "<unk>", "<s>", "</s>"),
    "nllb": ("<pad>", "<unk>", "</s>", "</s>"),
}
