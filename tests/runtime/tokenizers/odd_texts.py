"""Random texts of characters that tokenizers treat in a special way."""

import random

INVISIBLE = "\x00\x01\x7f\x85\xad\u034f\u061c\u17b4\u180e\u200b\u200d\u2028\u2060\ufeff"
SPACES = " \t\n\v\f\r\u00a0\u1680\u2003\u2009\u202f\u3000"
PARTS = [
    *"aabcXYZéÉßſİIıΣσςΑ0129-<>.,'/▁₁६Ĵ½™ﬁ，ǅ\u0301\u0307\u2585\ufffd\U0010ffff",
    *(INVISIBLE + SPACES),
    *("</s>", "<s>", "<pad>", "<unk>", "<|endoftext|>", "<0xE2>", "<name>"),
    *(">>deu<<", ">>xyz<<", ">>", "<<", "\r\n", "  ", "   ", " 12", "don't", "we'll"),
    *("the cat", " sat", "a dog", "ab", "ĴA", "中文", "ไทย", "😀", "👨‍👩‍👧", "☃\ufe0f"),
    "🏴\U000e0067\U000e0062\U000e007f",
]


def odd_texts(count, seed):
    """Returns texts of up to 60 parts, and one that is long."""
    generator = random.Random(seed)
    sizes = [0, 1, 2, 3, 5, 7, 19, 60]
    texts = [odd_text(generator, generator.choice(sizes)) for _ in range(count - 1)]
    return [*texts, odd_text(generator, 300)]


def odd_text(generator, size):
    parts = []
    for _ in range(size):
        kind = generator.random()
        if kind < 0.8:
            parts.append(generator.choice(PARTS))
        else:
            last = 0x3000 if kind < 0.9 else 0x10FFFF
            point = generator.randint(0, last)
            parts.append("x" if 0xD800 <= point < 0xE000 else chr(point))
    return "".join(parts)


def odd_rows(count, size, seed):
    """Returns rows of ids, those outside a vocabulary of a size included."""
    generator = random.Random(seed)
    return [
        [
            generator.choice(
                [generator.randrange(-2, size + 3), generator.randrange(6)]
            )
            if generator.random() < 0.3
            else generator.randrange(size)
            for _ in range(generator.choice([0, 1, 2, 5, 17]))
        ]
        for _ in range(count)
    ]
