"""Models of the server that compute without weights."""

import math
import threading

from starlette.testclient import TestClient

from keras_transformer_runtime.engines.engine import Engine, Hypothesis
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.loaded_model import (
    GENERATING,
    GeneratingModel,
    LoadedModel,
)
from keras_transformer_runtime.serving.rest import Signature, TensorSpec
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


class FakeEncoder(LoadedModel):
    """A classifier, a tagger or an encoder.

    The probability of a class is 0.9 if the text contains its name, and otherwise 0.1.
    A word `Anna/B-PER` has the tag `B-PER`, and one without a slash the first of the
    tags. The vector of a text has the numbers of the letters a, b and c.
    """

    max_texts = 4

    def __init__(self, task, class_names=(), multi_label=False):
        self.task = task
        self.class_names = class_names
        self.multi_label = multi_label
        text = {"text": TensorSpec("string")}
        self.signatures = {"serving_default": Signature(text, {})}
        self.calls = []  # the texts of each batch

    def facts(self, limits):
        return {
            "engine": "saved_model",
            "class_names": self.class_names,
            "multi_label": self.multi_label,
            "max_length": 12,
        }

    def metadata(self):
        return {"signature_def": {"signature_def": {}}}

    def close(self):
        pass

    def call(self, name, rows):
        self.calls.append([row["text"] for row in rows])
        compute = {"classify": self._classes, "tag": self._tags, "embed": self._vector}
        return [
            {**compute[self.task](row["text"]), "truncated": "cut" in row["text"]}
            for row in rows
        ]

    def _classes(self, text):
        if text == "refuse":
            raise ValueError("`text` must be nice")
        found = [0.9 if name in text else 0.1 for name in self.class_names]
        is_label = [value > 0.5 for value in found]
        labels = [
            name if chosen else ""
            for name, chosen in zip(self.class_names, is_label, strict=True)
        ]
        best = found.index(max(found))
        return {
            "label": labels if self.multi_label else self.class_names[best],
            "score": found if self.multi_label else found[best],
            "classes": [*self.class_names],
            "probabilities": found,
        }

    def _tags(self, text):
        pairs = [word.partition("/")[::2] for word in text.split()]
        return {
            "word": [word for word, _ in pairs],
            "tag": [tag or self.class_names[0] for _, tag in pairs],
            "score": [0.5 + 0.1 * (place % 4) for place in range(len(pairs))],
        }

    def _vector(self, text):
        return {"vector": [float(text.count(letter)) for letter in "abc"]}


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
