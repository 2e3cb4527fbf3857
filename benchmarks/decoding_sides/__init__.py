"""What `decoding.py` compares: each side builds its model and a function to decode."""
