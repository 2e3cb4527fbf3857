"""The base class of models that are saved: files, presets and exports."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.files import written_aside
from keras_transformer.models import preset_folders

if TYPE_CHECKING:
    from keras_transformer.decoding import Search


class PresetModel(keras.Model):
    """Base class of models with named sizes, preset folders and exports.

    Attributes:
        presets: dictionary of the constructor's arguments of each named size.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the model as `keras.Model.save` does, the file whole or not at all.

        Args:
            filepath: a path that ends in `.keras`.
            overwrite: whether to replace an existing file without asking.
            **kwargs: further arguments of `keras.Model.save`.

        Raises:
            ValueError: if the model is quantized.
        """
        check_not_quantized(self)
        path = pathlib.Path(filepath)
        remote = "://" in str(filepath)
        if remote or path.suffix != ".keras" or (path.exists() and not overwrite):
            super().save(filepath, overwrite=overwrite, **kwargs)
            return
        with written_aside(path) as aside:
            super().save(aside, **kwargs)

    def save_to_preset(self, preset_dir: Any) -> None:
        """Writes the model to a folder for `from_preset`, whole or not at all.

        The folder has `config.json` (the configuration), `model.weights.h5`,
        `metadata.json` (versions, date, number of parameters, names of the tokenizers'
        files) and the tokenizers: `tokenizer.json`, or `source_tokenizer.json` and
        `target_tokenizer.json`, and beside each a SentencePiece model in `.model`, if
        it has one. The optimizer is not saved.

        Args:
            preset_dir: path of the folder; it must not exist or be empty.

        Raises:
            FileExistsError: if the folder exists and is not empty.
            TypeError: if the class of the model has no presets, as `Ensemble`.
            ValueError: if the model is quantized.
        """
        preset_folders.save_preset(self, preset_dir)

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **overrides: Any
    ) -> Self:
        """Builds a model of a named size, or loads one from `save_to_preset`.

        Args:
            preset: a size, for an untrained model: `"transformer_tiny"` (4 + 4
                blocks of width 128), `"transformer_small"` (3 + 3, 256),
                `"transformer_base"` (6 + 6, 512) or `"transformer_big"` (6 + 6, 1024);
                or a trained model: the path of a folder, or `"hf://user/name"` on the
                Hugging Face Hub (extra `hub`). No code in a folder is run.
            load_weights: whether to load the weights of a trained model; without them
                the model has its configuration and its tokenizers.
            **overrides: any constructor argument. A size always needs the vocabulary (a
                number or tokenizers). A trained model with its weights accepts those
                that keep the shapes of the weights, such as `dropout`, `dtype` or
                `max_source_length`.

        Returns:
            A model of this class, not compiled.

        Raises:
            ValueError: if there is no such preset; if a folder was written by a newer
                version, is damaged, or its files do not belong together; or if an
                override needs other weights.
            FileNotFoundError: if a folder lacks a file.

        Example:

        >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
        >>> model.num_layers, model.hidden_dim
        (4, 128)
        >>> model.save_to_preset("en-de")
        >>> loaded = Seq2Seq.from_preset("en-de", dropout=0.2)
        >>> loaded.dropout, loaded.count_params() == model.count_params()
        (0.2, True)

        References:
            - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), table 3
              (base and big)
        """
        if preset in cls.presets:
            return cls(**{**cls.presets[preset], **overrides})
        return preset_folders.load_preset(cls, preset, load_weights, overrides)

    def export(
        self,
        filepath: Any,
        search: "Search | None" = None,
        format: str = "saved_model",
        **options: Any,
    ) -> None:
        """Writes a folder that other software decodes with, without this library.

        Args:
            filepath: folder to write; it must not exist or be empty. TensorFlow
                Serving requires `<name>/<version>`.
            search: the search; `BeamSearch()` if `None`. Not part of `"marian"`.
            format: `"saved_model"`, for TensorFlow, `"ctranslate2"`, `"onnx"`, or
                `"marian"`, for Hugging Face transformers.
            **options: further arguments of the function that writes the format:
                `export_saved_model`, `export_ctranslate2`, `export_onnx` or
                `export_marian` of `keras_transformer.export`.

        Raises:
            ValueError: if there is no such `format` or it has no such option.
        """
        from keras_transformer.export import export_model

        export_model(self, filepath, search, format, **options)
