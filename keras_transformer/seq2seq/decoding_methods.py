"""What a model can do once its steps are there, one model or several together."""

from typing import Any

from keras_transformer.decoding import BeamSearch, Search
from keras_transformer.inference import generation, scoring, search_tree, streaming
from keras_transformer.seq2seq import saving, stepping


class DecodingMethods:
    """The methods that `Seq2Seq` and `Ensemble` share.

    They stand on `start_decoding`, `decode_step`, `reorder_state`, `prepare_state` and
    `extend_state`, on the call, and on tokenizers, vocabularies, special tokens and
    limits of the length.
    """

    known_to_searches = stepping.known_to_searches
    most_steps = stepping.most_steps
    begin_search = stepping.begin_search
    search = stepping.search
    stream = streaming.stream
    search_tree = search_tree.search_tree
    generate = generation.generate
    score = scoring.score
    save = saving.save

    def _keep_what_is_compiled(self) -> None:
        self._generator = generation.Generator(self)
        self._stepper = streaming.Stepper(self)
        self._scorer = scoring.Scorer(self)

    def export(
        self,
        filepath: Any,
        search: Search | None = None,
        format: str = "saved_model",
        **options: Any,
    ) -> None:
        """Writes a folder that takes texts and returns texts without this library.

        Args:
            filepath: folder to write; it must not exist or be empty. TensorFlow
                Serving wants `<name>/<version>`.
            search: how to search; `BeamSearch()` if `None`.
            format: `"saved_model"`, for TensorFlow, or `"ctranslate2"`.
            **options: further arguments of
                `keras_transformer.export.export_saved_model` or
                `keras_transformer.export.export_ctranslate2`, which say more.

        Raises:
            ValueError: if `format` is neither.
        """
        from keras_transformer import export

        if format not in ("saved_model", "ctranslate2"):
            raise ValueError(
                "`format` must be 'saved_model' or 'ctranslate2'; received "
                f"`format={format!r}`."
            )
        write = getattr(export, f"export_{format}")
        write(self, filepath, search or BeamSearch(), **options)
