"""A model of the server: loads and unloads its versions."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.phrase_dictionary import PhraseDictionary, check_spelled
from keras_transformer_runtime.serving import sentences
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.loaded_model import CTranslate2Model, LoadedModel
from keras_transformer_runtime.serving.requests import (
    Generation,
    RequestError,
    SignatureCall,
    Text,
)
from keras_transformer_runtime.serving.rest import Row
from keras_transformer_runtime.serving.server_options import ModelOptions
from keras_transformer_runtime.serving.versions import (
    VersionFolder,
    check_encoder_options,
    selected_versions,
)
from keras_transformer_runtime.tensorflow_import import import_tensorflow_quietly

logger = logging.getLogger(__name__)

RETRY_LOADING_SECONDS = 5.0  # doubled after each failure
MAX_DOUBLINGS = 9
DRAIN_POLL_SECONDS = 0.05
PROGRESS_POLL_SECONDS = 0.5
CONSTRAINED = "constrained"  # the signature that a dictionary requires

Load: TypeAlias = Callable[[VersionFolder, ModelOptions, int], LoadedModel]


class LoadedVersion(NamedTuple):
    """What computes the requests of a version."""

    model: LoadedModel
    batcher: Batcher

    async def generate(
        self, texts: Sequence[Text], generation: Generation
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of texts."""
        measure = self.model.generating.measure
        lengths = await asyncio.to_thread(measure, [text.text for text in texts])
        found = await self.batcher.submit(generation, texts, lengths)
        return cast(list[list[Hypothesis]], found)

    async def call(self, signature: str, rows: Sequence[Row]) -> list[Row]:
        """Returns the outputs of a signature of the SavedModel."""
        values = rows[0].values()
        widths = tuple(len(value) for value in values if isinstance(value, list))
        call = SignatureCall(signature, widths)
        found = await self.batcher.submit(call, rows, self.model.sizes(rows))
        return cast(list[Row], found)


@dataclass
class ModelVersion:
    """One version of a model."""

    number: int
    state: str = "LOADING"  # then AVAILABLE, UNLOADING, END
    error: str = ""
    failed_at: float = field(default=0.0, repr=False)
    failures: int = 0
    compilation: "asyncio.Task[None] | None" = field(default=None, repr=False)
    _loaded: LoadedVersion | None = field(default=None, repr=False)

    @property
    def loaded(self) -> LoadedVersion:
        """The `LoadedVersion`, if the version is available or unloading."""
        assert self._loaded is not None, f"version {self.number} is {self.state}"
        return self._loaded

    def set_loaded(self, loaded: LoadedVersion) -> None:
        """Makes the version available."""
        self._loaded = loaded
        self.state, self.error, self.failures = "AVAILABLE", "", 0

    def set_unloaded(self) -> None:
        """Ends the version; its memory is freed after the requests that use it."""
        self.loaded.model.close()
        self._loaded, self.compilation, self.state = None, None, "END"


class ServedModel:
    """A model with its versions.

    Args:
        name: str, the name in the paths of requests.
        options: `ModelOptions`.
        threads: int, number of threads of the engine.
        load: function that loads a version.
    """

    def __init__(
        self, name: str, options: ModelOptions, threads: int, load: Load | None = None
    ):
        self.name = name
        self.options = options
        self.versions: dict[int, ModelVersion] = {}
        self.created = int(time.time())
        path = options.dictionary
        self.dictionary = None if path is None else PhraseDictionary.from_file(path)
        self._threads = threads
        self._load_version = load or load_version
        self._selected: dict[int, VersionFolder] | None = None

    @property
    def ready(self) -> bool:
        """Whether a version is available."""
        return bool(self.active())

    @property
    def loading(self) -> bool:
        """Whether the first version is being loaded."""
        states = [version.state for version in self.versions.values()]
        return "LOADING" in states and "AVAILABLE" not in states

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of the source and the target language, if they are known."""
        if not self.ready:
            return None
        model = self.available().loaded.model
        if model.task != "generate" or model.generating.engine.is_language_model:
            return None
        return self.options.languages or model.generating.engine.languages

    @property
    def compiling(self) -> int:
        """The number of shapes that are still to be compiled."""
        return sum(each.loaded.model.progress.remaining for each in self.active())

    def active(self) -> list[ModelVersion]:
        """Returns the available versions."""
        return [v for v in self.versions.values() if v.state == "AVAILABLE"]

    def available(self, number: int | None = None) -> ModelVersion:
        """Returns the version that processes a request."""
        ready = [v for v in self.active() if number in (None, v.number)]
        if ready:
            return max(ready, key=lambda version: version.number)
        name = self.name if number is None else f"{self.name}, version {number},"
        loading = [v for v in self.versions.values() if v.state == "LOADING"]
        if any(number in (None, version.number) for version in loading):
            raise RequestError(503, f"{name} is loading; try again later")
        raise RequestError(404, f"{name} is not available")

    async def generate(
        self, loaded: LoadedVersion, texts: Sequence[str], generation: Generation
    ) -> list[list[Hypothesis]]:
        """Generates the outputs of texts, by sentences and with a dictionary.

        Args:
            loaded: the `LoadedVersion`.
            texts: list of str.
            generation: the `Generation`.

        Returns:
            The hypotheses of each text; one if it has several sentences.
        """
        language = self.options.split_sentences
        if language is None:
            return await self._generate(loaded, texts, generation)
        parts, places = await asyncio.to_thread(sentences.split, texts, language)
        if len(parts) > self.options.max_waiting:
            raise RequestError(
                400,
                f"the texts must have at most {self.options.max_waiting} sentences; "
                f"received {len(parts)}",
            )
        found = await self._generate(loaded, parts, generation) if parts else []
        return sentences.join(found, places)

    async def _generate(
        self, loaded: LoadedVersion, texts: Sequence[str], generation: Generation
    ) -> list[list[Hypothesis]]:
        if self.dictionary is None:
            return await loaded.generate([*map(Text, texts)], generation)
        phrases = await asyncio.to_thread(self.dictionary.constraints, texts)
        plain = [place for place, found in enumerate(phrases) if not found]
        others = [place for place, found in enumerate(phrases) if found]
        rows = [
            {
                "text": texts[place],
                "prefix": "",
                "constraints": "\t".join(phrases[place]),
            }
            for place in others
        ]
        outputs: list[list[Hypothesis]] = [[] for _ in texts]
        if plain:
            found = await loaded.generate([Text(texts[i]) for i in plain], generation)
            for place, hypotheses in zip(plain, found, strict=True):
                outputs[place] = hypotheses
        if rows:
            called = await loaded.call(CONSTRAINED, rows)
            for place, row in zip(others, called, strict=True):
                columns = row["text"], row["score"], row["truncated"]
                outputs[place] = [
                    Hypothesis(text, math.nan if score is None else score, truncated)
                    for text, score, truncated in zip(*columns, strict=True)
                ]
        return outputs

    async def refresh(self) -> None:
        """Loads the selected versions, then unloads the others.

        A version that replaces another receives requests when all its shapes are
        compiled, and the old one finishes its requests before it is unloaded. If no
        selected version can be loaded, the old versions stay.
        """
        selected = await asyncio.to_thread(selected_versions, self.options)
        if not selected and selected != self._selected:
            logger.warning(
                "%s: %s has no version to serve (versions=%s, engine=%s). It must "
                "contain models in folders named 1, 2, …",
                self.name,
                self.options.folder,
                self.options.versions,
                self.options.chosen_engine,
            )
        self._selected = selected
        for number, version in list(self.versions.items()):
            if number not in selected and version.failures:
                del self.versions[number]  # a new folder of this number is retried now
        due = [number for number in selected if self._is_due(number)]
        for number in due:
            before = self.versions.get(number, ModelVersion(number))
            self.versions[number] = ModelVersion(
                number, error=before.error, failures=before.failures
            )
        for number in due:
            await self._load(self.versions[number], selected[number])
        if any(self.versions[number].state == "AVAILABLE" for number in selected):
            for number, version in list(self.versions.items()):
                if number not in selected and version.state == "AVAILABLE":
                    await self._unload(version)

    async def unload_all(self) -> None:
        """Unloads every version after it has finished its requests."""
        for version in list(self.versions.values()):
            if version.state in ("AVAILABLE", "UNLOADING"):
                await self._unload(version)

    def _is_due(self, number: int) -> bool:
        version = self.versions.get(number)
        if version is None:
            return True
        waited = time.monotonic() - version.failed_at
        pause = RETRY_LOADING_SECONDS * 2 ** min(version.failures, MAX_DOUBLINGS)
        return version.state == "END" and waited > pause

    async def _load(self, version: ModelVersion, folder: VersionFolder) -> None:
        name = f"{self.name}, version {version.number}"
        logger.info("%s: loading, engine %s", name, folder.engine)
        started = time.monotonic()
        model: LoadedModel | None = None
        try:
            model = await asyncio.to_thread(
                self._load_version, folder, self.options, self._threads
            )
            if self.dictionary is not None:
                await asyncio.to_thread(_check_dictionary, model, self.dictionary)
            if self.active():
                await self._until_compiled(name, model)
                if model.progress.error:
                    raise ValueError(model.progress.error)
        except Exception as error:
            if model is not None:
                model.close()
            version.state, version.error = "END", _public_message(error, folder)
            version.failed_at, version.failures = time.monotonic(), version.failures + 1
            logger.error("%s: %s", name, error)
            return
        batcher = Batcher(
            model.compute,
            model,
            self.options.max_tokens,
            self.options.max_waiting,
            model.batches,
        )
        version.set_loaded(LoadedVersion(model, batcher))
        remaining = model.progress.remaining
        compiling = f"; {remaining} shapes are still compiled" if remaining else ""
        seconds = time.monotonic() - started
        logger.info("%s: ready in %.1f s%s", name, seconds, compiling)
        if remaining:
            waiting = self._until_compiled(name, model)
            version.compilation = asyncio.create_task(waiting)

    async def _until_compiled(self, name: str, model: LoadedModel) -> None:
        """Waits until all shapes are compiled, and logs when they are."""
        started = time.monotonic()
        while model.progress.remaining:
            await asyncio.sleep(PROGRESS_POLL_SECONDS)
        seconds = time.monotonic() - started
        if model.progress.error:
            logger.error("%s: %s", name, model.progress.error)
        else:
            logger.info("%s: compiled all shapes in %.0f s", name, seconds)

    async def _unload(self, version: ModelVersion) -> None:
        version.state = "UNLOADING"
        if version.compilation is not None:
            version.compilation.cancel()
        while not version.loaded.batcher.idle:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        version.set_unloaded()
        logger.info("%s, version %d: unloaded", self.name, version.number)


def load_version(
    version: VersionFolder, options: ModelOptions, threads: int
) -> LoadedModel:
    """Loads a version with its engine."""
    if version.engine == "ctranslate2":
        return CTranslate2Model(version.folder, threads)
    encoder = EncoderDescription.read(version.folder)
    if encoder is not None:
        check_encoder_options(options, encoder)
    import_tensorflow_quietly()
    if encoder is not None:
        from keras_transformer_runtime.serving.saved_model_encoder import ServedEncoder

        most = options.batch_sizes[-1]
        return ServedEncoder(version.folder, encoder, most, threads)
    from keras_transformer_runtime.serving.saved_model import ServedSavedModel

    return ServedSavedModel(version.folder, options.batch_sizes, threads)


def _check_dictionary(model: LoadedModel, dictionary: PhraseDictionary) -> None:
    """Checks that a model can be forced to output the phrases of a dictionary."""
    if CONSTRAINED not in model.signatures:
        raise ValueError(
            f"`dictionary` requires the signature {CONSTRAINED!r}. Export a SavedModel "
            "with `--constraints`, and serve it with `--engine saved_model`"
        )
    targets = dictionary.targets
    rows: list[Row] = [{"constraints": target} for target in targets]
    found = model.call("check_constraints", rows)
    check_spelled(targets, [row["spelled"] for row in found])


def _public_message(error: Exception, version: VersionFolder) -> str:
    """Returns the message of an error, without paths, which clients must not see."""
    if isinstance(error, ValueError):
        return str(error).replace(f"{version.folder}", version.folder.name)
    return f"it cannot be loaded ({type(error).__name__}); see the log of the server"
