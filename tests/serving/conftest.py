"""Small models for the engine CTranslate2, which one backend is enough to make."""

import numpy as np
import pytest
from ctranslate2_designs import causal_model_of, model_of

from keras_transformer import BeamSearch, GreedySearch


def find_ends(model, bias):
    """Lets the outputs of a model end often, and have no other special tokens."""
    values = np.zeros(model.logits_bias.shape, "float32")
    values[:3], values[3] = -100, bias
    model.logits_bias.assign(values)
    return model


@pytest.fixture(scope="session")
def translator():
    design = {"normalize_first": True, "tie_embeddings": "none"}
    model = model_of(seed=5, max_source_length=37, max_target_length=17, **design)
    return find_ends(model, 2)


@pytest.fixture(scope="session")
def translator_folder(translator, tmp_path_factory):
    """The translator for CTranslate2, with three beams and no length penalty."""
    folder = tmp_path_factory.mktemp("translator") / "1"
    checks = {"check_texts": ["abc", "deadbeef"]}
    translator.export(folder, BeamSearch(3, 0.0), format="ctranslate2", **checks)
    return folder


@pytest.fixture(scope="session")
def language_model():
    return find_ends(causal_model_of(seed=21, max_length=23, tie_embeddings=False), 1)


@pytest.fixture(scope="session")
def language_model_folder(language_model, tmp_path_factory):
    """The language model for CTranslate2, with greedy search."""
    folder = tmp_path_factory.mktemp("language_model") / "1"
    checks = {"check_texts": ["abc", ""]}
    language_model.export(folder, GreedySearch(), format="ctranslate2", **checks)
    return folder
