"""What a model can do once its steps are there, one model or several together."""

import inspect
from typing import Any

from keras_transformer.decoding import BeamSearch, Search
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
        """Writes a folder that others can decode with, without this library.

        Args:
            filepath: folder to write; it must not exist or be empty. TensorFlow
                Serving wants `<name>/<version>`.
            search: how to search; `BeamSearch()` if `None`. Not part of `"marian"`.
            format: `"saved_model"`, for TensorFlow, `"ctranslate2"`, `"onnx"`, or
                `"marian"`, for Hugging Face's transformers.
            **options: further arguments of
                `keras_transformer.export.export_saved_model`,
                `keras_transformer.export.export_ctranslate2` or
                `keras_transformer.export.export_onnx`, which say more, as
                `keras_transformer.interoperability.save_marian` does.

        Raises:
            ValueError: if `format` is none of them, or has no such option.
        """
        from keras_transformer import export, interoperability

        formats = (*export.FORMATS, "marian")
        if format not in formats:
            raise ValueError(
                f"`format` must be one of {', '.join(map(repr, formats))}; "
                f"received `format={format!r}`."
            )
        arguments: tuple[Any, ...] = ()
        if format == "marian":
            write = interoperability.save_marian
        else:
            write = getattr(export, f"export_{format}")
            arguments = (search or BeamSearch(),)
        known = inspect.signature(write).parameters
        for name in options.keys() - known.keys():
            raise ValueError(
                f"`{name}` must not be given for `format={format!r}`; received "
                f"`{name}={options[name]!r}`."
            )
        write(self, filepath, *arguments, **options)
