"""What a model can do once its steps are there, one model or several together."""

from typing import Any

from keras_transformer.decoding import Search
from keras_transformer.export import export_model
from keras_transformer.inference import (
    alignment,
    generation,
    scoring,
    search_tree,
    streaming,
)
from keras_transformer.models import preset_folders, saving, searching


class DecodingMethods:
    """The methods that `Seq2Seq` and `Ensemble` share.

    They stand on `start_decoding`, `decode_step`, `reorder_state`, `prepare_state`,
    `extend_state` and `take_state`, on the call and `cross_attention`, and on
    tokenizers, vocabularies, special tokens and limits of the length.
    """

    step_model = searching.step_model
    max_steps = searching.max_steps
    begin_search = searching.begin_search
    search = searching.search
    stream = streaming.stream
    search_tree = search_tree.search_tree
    generate = generation.generate
    score = scoring.score
    align = alignment.align
    save = saving.save
    save_to_preset = preset_folders.save_to_preset

    def _keep_what_is_compiled(self) -> None:
        self._generator = generation.Generator(self)
        self._stepper = streaming.Stepper(self)
        self._scorer = scoring.Scorer(self)
        self._aligner = alignment.Aligner(self)

    def export(
        self,
        filepath: Any,
        search: Search | None = None,
        format: str = "saved_model",
        **options: Any,
    ) -> None:
        """Writes the model in a format that runs without this library.

        Args:
            filepath: folder to write. It must not exist or be empty. TensorFlow
                Serving requires `<name>/<version>`.
            search: the search; `BeamSearch()` if `None`.
            format: `"saved_model"`, for TensorFlow, `"ctranslate2"`, `"onnx"`, or
                `"marian"`, for Hugging Face's transformers.
            **options: further arguments of `keras_transformer.export.export_model`,
                which documents all of them.

        Raises:
            ValueError: if `format` or an option is unknown, or the format does not
                support the model.
        """
        export_model(self, filepath, search, format, **options)
