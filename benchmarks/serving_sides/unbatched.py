"""A minimal FastAPI endpoint of a SavedModel, with one text per call."""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers its operations)
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Request(BaseModel):
    text: str


def main(folder: str, port: str) -> None:
    """Serves a SavedModel's `serving_default` at `/translate`."""
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    app = FastAPI()

    @app.post("/translate")
    def translate(request: Request) -> dict[str, str]:
        outputs = serve(text=tf.constant([request.text]))
        return {"text": outputs["text"].numpy()[0].decode()}

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
