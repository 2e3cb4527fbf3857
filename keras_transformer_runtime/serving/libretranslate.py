"""The endpoints of LibreTranslate's API, and their bodies.

https://docs.libretranslate.com/
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple
from urllib.parse import parse_qs

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.serving.endpoints import Endpoints
from keras_transformer_runtime.serving.protection import NO_KEY, bearer, is_key
from keras_transformer_runtime.serving.requests import (
    Generation,
    RequestError,
    SearchFields,
    Texts,
    check_count,
    check_text,
    generation_options,
    json_object,
)
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ServerOptions

AUTO = "auto"
MAX_FIELDS = 1_000

_NAMES = (
    "ar Arabic,az Azerbaijani,be Belarusian,bg Bulgarian,bn Bengali,ca Catalan,"
    "cs Czech,cy Welsh,da Danish,de German,el Greek,en English,eo Esperanto,es Spanish,"
    "et Estonian,eu Basque,fa Persian,fi Finnish,fr French,ga Irish,gl Galician,"
    "he Hebrew,hi Hindi,hr Croatian,hu Hungarian,hy Armenian,id Indonesian,"
    "is Icelandic,it Italian,ja Japanese,ka Georgian,kk Kazakh,ko Korean,lt Lithuanian,"
    "lv Latvian,"
    "mk Macedonian,ms Malay,nb Norwegian,nl Dutch,pl Polish,pt Portuguese,ro Romanian,"
    "ru Russian,sk Slovak,sl Slovenian,sq Albanian,sr Serbian,sv Swedish,sw Swahili,"
    "ta Tamil,th Thai,tl Tagalog,tr Turkish,uk Ukrainian,ur Urdu,uz Uzbek,"
    "vi Vietnamese,zh Chinese"
)
NAMES = dict(entry.split(" ", 1) for entry in _NAMES.split(","))


class Direction(NamedTuple):
    """The languages of a model."""

    source: str
    target: str


class TranslateRequest(SearchFields):
    """The body of `/translate`."""

    q: str | Texts
    source: str
    target: str
    format: Literal["text"] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    api_key: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.q] if isinstance(self.q, str) else self.q

    def check(self, limits: ServerOptions) -> None:
        """Checks the texts."""
        check_count(len(self.texts), limits)
        for text in self.texts:
            check_text(text, "q", limits)

    def options(self) -> dict[str, object]:
        """Returns the options of generation by our names."""
        fields = {name: getattr(self, name) for name in SearchFields.model_fields}
        count = self.alternatives + 1 if self.alternatives else None
        return {**fields, "num_hypotheses": count}

    def model(self, directions: Mapping[str, Direction]) -> str:
        """Returns the name of the model that translates the request."""
        for name, direction in directions.items():
            is_source = self.source in (AUTO, direction.source)
            if is_source and self.target == direction.target:
                return name
        known = ", ".join(sorted({f"{s} to {t}" for s, t in directions.values()}))
        raise RequestError(
            400,
            f"there is no model from {self.source!r:.20} to {self.target!r:.20}; the "
            f"server translates {known or 'nothing: set `languages` of a model'}",
        )

    def body(self, found: Sequence[Sequence[Hypothesis]]) -> dict[str, object]:
        """Returns the body of the response."""
        texts = [hypotheses[0].text for hypotheses in found]
        others = [  # without those that the search has not found
            [each.text for each in hypotheses[1:] if each.score > -math.inf]
            for hypotheses in found
        ]
        is_list = isinstance(self.q, list)
        body: dict[str, object] = {"translatedText": texts if is_list else texts[0]}
        if self.alternatives:
            body["alternatives"] = others if is_list else others[0]
        return body


def form_values(body: bytes) -> dict[str, object]:
    """Returns the values of a form, with the types of those of JSON."""
    try:
        text = body.decode("utf-8")
        form = parse_qs(
            text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body must be UTF-8: {error}") from None
    except ValueError:
        raise RequestError(
            400, f"a form must have at most {MAX_FIELDS} fields; send JSON"
        ) from None
    values: dict[str, object] = {
        name: found[0] if len(found) == 1 else found for name, found in form.items()
    }
    number = values.get("alternatives")
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:
        values["alternatives"] = int(number)
    return values


def languages_body(directions: Iterable[Direction]) -> list[dict[str, object]]:
    """Returns the body of `/languages`."""
    targets: dict[str, set[str]] = {}
    for source, target in directions:
        targets.setdefault(source, set()).add(target)
    return [
        {"code": code, "name": NAMES.get(code, code), "targets": sorted(targets[code])}
        for code in sorted(targets)
    ]


class LibreTranslate(Endpoints):
    """The endpoints of LibreTranslate's API."""

    async def translate(self, request: Request) -> Response:
        """Translates texts, as LibreTranslate does."""
        body = await self.body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind == "application/x-www-form-urlencoded" and not body.startswith(b"{"):
            values = form_values(body)
        else:
            values = json_object(body)
        asked = TranslateRequest.read(values)
        key = self.options.api_key
        given = bearer(request.headers) or asked.api_key or ""
        if key is not None and not is_key(given, key):
            raise RequestError(401, f"{NO_KEY}, or `api_key` in its body")
        asked.check(self.options)
        model = self._translator(asked)
        return await self.measured(request, model, self._translate(asked, model))

    async def _translate(self, asked: TranslateRequest, model: ServedModel) -> Response:
        loaded = model.available().loaded
        engine = loaded.model.generating.engine
        options = generation_options(asked.options(), engine, self.options)
        found = await model.generate(loaded, asked.texts, Generation(options))
        self.metrics.texts.labels(model.name).inc(len(found))
        return JSONResponse(asked.body(found))

    async def languages(self, request: Request) -> Response:
        """Returns the languages of the models."""
        return JSONResponse(languages_body(self._directions().values()))

    def _directions(self) -> Mapping[str, Direction]:
        """Returns the languages of the models that have them, by name."""
        found = {name: model.languages for name, model in self.models.items()}
        return {name: Direction(*pair) for name, pair in found.items() if pair}

    def _translator(self, asked: TranslateRequest) -> ServedModel:
        """Returns the model that translates a request."""
        try:
            return self.models[asked.model(self._directions())]
        except RequestError:
            for model in self.models.values():
                if model.loading:
                    model.available()  # raises an error that says so
            raise
