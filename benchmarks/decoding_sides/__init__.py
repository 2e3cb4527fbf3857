"""The sides of `decoding.py`. Each builds its model and a function that decodes."""
