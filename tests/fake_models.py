"""Models of the server that compute without weights."""

import math
import threading

from starlette.testclient import TestClient

from keras_transformer_runtime.engines.engine import Engine, Hypothesis
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.loaded_model import GENERATING, GeneratingModel
from keras_transformer_runtime.serving.served_model import (
    LoadedVersion,
    ModelVersion,
    ServedModel,
)

URL = "http://127.0.0.1"


class FakeEngine(Engine):
    """Translates to upper case, or continues prompts with their letters in reverse.

    Some texts fail: `refuse` is invalid, `broken` gives NaN, `fail` raises another
    error, and `sleep` waits for the event `awake`.
    """

    name = "fake"
    options = GenerationOptions()
    max_source_length = 40
    max_target_length = None

    def __init__(self, is_language_model=False):
        self.is_language_model = is_language_model
        self.awake = threading.Event()
        self.calls = []  # the texts of each batch and its options

    def measure(self, texts, side, first=1):
        if "unmeasured" in texts:
            raise ValueError("`source` must have a language token; received none")
        return [len(text) + (not self.is_language_model) for text in texts]

    def refusal(self, options, prefix=False):
        return "`top_k` must be None" if options.top_k else None

    def generate(
        self,
        texts,
        options,
        *,
        prefixes=None,
        include_prompt=False,
        batch_size=64,
        on_text=None,
    ):
        self.calls.append((texts, options))
        if "refuse" in texts:
            raise ValueError("`text` must be nice")
        if "broken" in texts:
            raise FloatingPointError("the model computes NaN")
        if "fail" in texts:
            raise OSError("a secret of the server")
        if "sleep" in texts:
            assert self.awake.wait(60)
        found = []
        for place, text in enumerate(texts):
            output = text[::-1] if self.is_language_model else text.upper()
            prefix = "" if prefixes is None else prefixes[place]
            for end in range(2, len(output), 2) if on_text else ():
                if on_text(place, output[:end]):
                    output = output[:end]
                    break
            whole = (text if include_prompt else prefix) + output
            scores = [-1.0, *[-math.inf] * (options.num_hypotheses - 1)]
            is_long = len(output) > 20
            found.append([Hypothesis(whole, each, is_long, 7) for each in scores])
        return found

    def stream(self, text, options, prefix=""):
        raise NotImplementedError

    def score(self, sources, targets, batch_size=64):
        raise NotImplementedError

    def digest(self):
        raise NotImplementedError


class FakeModel(GeneratingModel):
    """A version of a model with a `FakeEngine`."""

    max_texts = 4

    def __init__(self, is_language_model=False, signatures=GENERATING):
        self.engine = FakeEngine(is_language_model)
        self.signatures = {**signatures}
        self.closed = False
        self.states = []  # what `progress` returns, then its default

    @property
    def progress(self):
        return self.states.pop(0) if self.states else super().progress

    def metadata(self):
        return {"signature_def": {"signature_def": {}}}

    def close(self):
        self.closed = True

    def call(self, name, rows):
        if name == "check_constraints":
            return [{"spelled": row["constraints"] != "漢字"} for row in rows]
        assert name == "constrained"
        return [
            {
                "text": [f"{row['text'].upper()}+{row['constraints']}", ""],
                "score": [-2.0, None],
                "truncated": [False, False],
                "length": [5, 0],
            }
            for row in rows
        ]


def served(name, options, model):
    """Returns a `ServedModel` with a version 3."""
    found = ServedModel(name, options, threads=1)
    batcher = Batcher(model.compute, model, options.max_tokens, options.max_waiting)
    found.versions[3] = ModelVersion(3)
    found.versions[3].set_loaded(LoadedVersion(model, batcher))
    return found


def client_of(models, options):
    """Returns a client of the server of some models."""
    application = Application(models, options)
    return TestClient(application.asgi, URL, raise_server_exceptions=False)
