"""Text that the tests of the tokenizers use for training."""

LINES = [
    "a man rides a red bicycle",
    "two dogs run over the grass",
    "a woman reads the red book",
    "Zwei Hunde laufen über die Straße",
]
