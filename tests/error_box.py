"""The box that the command line draws around the error of wrong usage."""


def unwrapped(output):
    """Returns the text in the box as one line, whatever the width of the terminal."""
    return " ".join(output.replace("│", " ").split())
