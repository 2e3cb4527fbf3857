"""Invisible characters of Unicode, and what replaces them."""

# Ranges of code points, both ends included. SentencePiece's "nmt_nfkc" decides on all
# other characters. `docs/data.md` shows the table with its reasons.
REMOVED = (
    (0x0001, 0x0008),  # control characters without a function in text
    (0x000E, 0x001F),
    (0x007F, 0x0084),
    (0x0086, 0x009F),
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark, of the bidirectional algorithm
    (0x17B4, 0x17B5),  # Khmer inherent vowels, which Unicode discourages
    (0x200E, 0x200F),  # left-to-right and right-to-left marks
    (0x202A, 0x202E),  # bidirectional embeddings and overrides
    (0x2060, 0x2064),  # word joiner, invisible operators of formulas
    (0x2066, 0x206F),  # bidirectional isolates, deprecated format characters
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xE0001, 0xE0001),  # deprecated language tag
)
SPACES = (
    (0x0009, 0x000D),  # tab, line feed, vertical tab, form feed, carriage return
    (0x0085, 0x0085),  # next line
    (0x200B, 0x200B),  # zero width space, which separates words of Khmer and Thai
    (0x2028, 0x2029),  # line and paragraph separators
    (0xFFF9, 0xFFFB),  # interlinear annotations, between a text and its gloss
)
KEPT = (
    (0x180B, 0x180F),  # Mongolian variation selectors and vowel separator
    (0x200C, 0x200D),  # zero width non-joiner and joiner
    (0xFE00, 0xFE0F),  # variation selectors, such as those of emoji
    (0xE0020, 0xE007F),  # tags in emoji of flags
    (0xE0100, 0xE01EF),  # variation selectors of ideographs
)

_WHITE_SPACE = (
    *((0x0020, 0x0020), (0x00A0, 0x00A0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_FILLERS = ((0x115F, 0x1160), (0x2800, 0x2800), (0x3164, 0x3164), (0xFFA0, 0xFFA0))
# Regular expression (of Python and RE2) of white space and invisible characters.
BLANK = r"[\x00{}]*".format(
    "".join(
        f"{chr(first)}-{chr(last)}"
        for ranges in (REMOVED, SPACES, KEPT, _WHITE_SPACE, _FILLERS)
        for first, last in ranges
    )
)


def replacements(lacking: frozenset[str] = frozenset()) -> dict[str, str]:
    """Returns the replacement of each invisible character: `""`, `" "` or itself.

    Characters that a vocabulary lacks are removed, as they would become `<unk>`.
    """
    table = {}
    for ranges, replacement in ((REMOVED, ""), (SPACES, " "), (KEPT, None)):
        for first, last in ranges:
            for character in map(chr, range(first, last + 1)):
                kept = "" if character in lacking else character
                table[character] = kept if replacement is None else replacement
    return table
