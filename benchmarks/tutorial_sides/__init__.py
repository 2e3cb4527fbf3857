"""The sides of `tutorials.py`. Each is a whole program of the design of a tutorial."""
