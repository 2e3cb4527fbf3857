"""The sides of `training.py`. Each builds its model and a function that trains."""
