"""What `training.py` compares: each side builds its model and a loop to train it."""
