"""The endpoints of TensorFlow Serving's API: outputs, states and signatures."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer_runtime.serving import rest
from keras_transformer_runtime.serving.completions import model_object
from keras_transformer_runtime.serving.endpoints import Endpoints, is_number
from keras_transformer_runtime.serving.loaded_model import GENERATING, generated_row
from keras_transformer_runtime.serving.requests import (
    Generation,
    OptionFields,
    RequestError,
    Text,
    generation_options,
)
from keras_transformer_runtime.serving.served_model import (
    LoadedVersion,
    ModelVersion,
    ServedModel,
)


class TensorFlowServing(Endpoints):
    """The endpoints of TensorFlow Serving's API."""

    async def status(self, request: Request) -> Response:
        """Returns the states of the versions of a model."""
        model = self.model(request.path_params["name"])
        number = self._number(request)
        states = [
            _state(version)
            for _, version in sorted(model.versions.items(), reverse=True)
            if number in (None, version.number)
        ]
        if not states:
            raise RequestError(404, f"{model.name} does not have this version")
        return JSONResponse({**model_object(model), "model_version_status": states})

    async def metadata(self, request: Request) -> Response:
        """Returns the signatures of a version."""
        model = self.model(request.path_params["name"])
        version = model.available(self._number(request))
        spec = {
            "name": model.name,
            "signature_name": "",
            "version": str(version.number),
        }
        metadata = await asyncio.to_thread(version.loaded.model.metadata)
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def predict(self, request: Request) -> Response:
        """Computes a `:predict` request of TensorFlow Serving's API."""
        model = self.model(request.path_params["name"])
        # Before `measured`, which awaits the messages after the body.
        body = await self.body(request)
        return await self.measured(request, model, self._predict(request, model, body))

    async def _predict(
        self, request: Request, model: ServedModel, body: bytes
    ) -> Response:
        loaded = model.available(self._number(request)).loaded
        parsed = rest.parse(body, loaded.model.signatures, self.options)
        outputs = await self._outputs(model, loaded, parsed)
        self.metrics.texts.labels(model.name).inc(len(outputs))
        return JSONResponse(rest.format_response(outputs, parsed.by_rows))

    async def _outputs(
        self, model: ServedModel, loaded: LoadedVersion, parsed: rest.PredictRequest
    ) -> list[rest.Row]:
        """Computes the outputs of a signature."""
        name, rows = parsed.signature, parsed.rows
        takes_text = "text" in loaded.model.signatures[name].inputs
        generates = loaded.model.task == "generate" and name in GENERATING
        if not (generates and takes_text):
            if parsed.options is not None:
                raise RequestError(
                    400, f"the signature {name!r} has no 'options'; remove them"
                )
            return await loaded.call(name, rows)
        generating = loaded.model.generating
        is_default = name == rest.DEFAULT_SIGNATURE
        prefixes = [row.get("prefix", "") for row in rows]
        given = (parsed.options or OptionFields()).model_dump()
        if not is_default and parsed.options is None and generating.has_own_nbest:
            return await loaded.call(name, rows)  # with a seed for each text
        engine = generating.engine
        options = generation_options(given, engine, self.options, any(prefixes))
        seeds = {row["seed"] for row in rows if "seed" in row}
        if options.samples and options.seed is None and seeds:
            if len(seeds) > 1:
                raise RequestError(400, "each 'seed' must be the same with this engine")
            given["seed"] = seeds.pop()
            options = generation_options(given, engine, self.options, any(prefixes))
        texts = [row["text"] for row in rows]
        generation = Generation(options, has_prefix=any(prefixes))
        if is_default:
            found = await model.generate(loaded, texts, generation)
        else:
            pairs = zip(texts, prefixes, strict=True)
            found = await loaded.generate([Text(*pair) for pair in pairs], generation)
        return [generated_row(hypotheses, name) for hypotheses in found]

    def _number(self, request: Request) -> int | None:
        text = request.path_params.get("version")
        if text is None:
            return None
        if not is_number(text):
            raise RequestError(
                400, f"the version must be a number; received {text!r:.80}"
            )
        return int(text)


def _state(version: ModelVersion) -> dict[str, object]:
    code = "UNKNOWN" if version.error else "OK"
    return {
        "version": str(version.number),
        "state": version.state,
        "status": {"error_code": code, "error_message": version.error},
    }
