import importlib

import keras
import pytest

MODULE = "keras_transformer.layers.attention.scaled_dot_product_attention"
ON_TORCH = {"fused": 0, "products": 16}
KINDS = ON_TORCH if keras.backend.backend() == "torch" else {"products": 16}


@pytest.fixture(autouse=True, params=KINDS.values(), ids=KINDS)
def few_queries(request, monkeypatch):
    """The number of queries up to which PyTorch does not use its fused kernel."""
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "FEW_QUERIES", request.param)
    return request.param
