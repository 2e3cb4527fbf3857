import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def fresh_session():
    """Every test begins with the same seed, fresh layer names and default policies."""
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
