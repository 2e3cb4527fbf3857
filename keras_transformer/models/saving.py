"""The base class of models that are saved: files, presets and exports."""

import io
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Self

import keras

from keras_transformer.backend.processes import written_by_first_process
from keras_transformer.layers.quantized_layers import QuantizedLayers
from keras_transformer.models import preset_folders
from keras_transformer_runtime.files import written_whole

if TYPE_CHECKING:
    from keras_transformer.decoding import Search


class PresetModel(QuantizedLayers, keras.Model):
    """Base class of models with named sizes, preset folders and exports.

    Attributes:
        presets: dictionary of the constructor's arguments of each named size.
        tokenizer_arguments: dictionary of the constructor's arguments for the files of
            tokenizers in a preset folder.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    tokenizer_arguments: ClassVar[Mapping[str, str]] = {
        "tokenizer.json": "source_tokenizer",
        "source_tokenizer.json": "source_tokenizer",
        "target_tokenizer.json": "target_tokenizer",
    }

    def rematerialized_call(
        self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        """Returns the call under `keras.RematScope`.

        Raises:
            ValueError: when it is called, if Keras cannot compute it. On TensorFlow and
                JAX this is so for all modes but `"activations"`.
        """
        rematerialized = super().rematerialized_call  # type: ignore[misc]

        def explained_call(*args: Any, **kwargs: Any) -> Any:
            try:
                return rematerialized(layer_call, *args, **kwargs)(*args, **kwargs)
            except Exception as error:
                raise ValueError(
                    "`mode` of `keras.RematScope` must be 'activations' or None on "
                    f"{keras.backend.backend()}, unless the model itself fails; Keras "
                    f"received: {error}\nCreate the model outside of the scope with "
                    "`rematerialize=True`, which recomputes the activations of each "
                    "block."
                ) from error

        return explained_call

    @written_by_first_process
    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the model as `keras.Model.save` does, atomically.

        The weights are written to memory first, so a full disk raises an `OSError`.

        Args:
            filepath: a path that ends in `.keras`.
            overwrite: bool, whether to replace an existing file without asking.
            **kwargs: further arguments of `keras.Model.save`.

        Raises:
            OSError: if the file cannot be written, such as on a full disk.
            ValueError: if a layer is quantized by a mode other than `"int8"`, `"int4"`
                and `"float8"`.
        """
        path = pathlib.Path(filepath)
        remote = "://" in str(filepath)
        if remote or path.suffix != ".keras" or (path.exists() and not overwrite):
            super().save(filepath, overwrite=overwrite, **kwargs)
            return
        with written_whole(path) as file:
            super().save(_NamelessFile(file), **kwargs)

    @written_by_first_process
    def save_weights(
        self, filepath: Any, overwrite: bool = True, max_shard_size: Any = None
    ) -> None:
        """Saves the weights as `keras.Model.save_weights` does, atomically.

        The weights are written to memory first, so a full disk raises an `OSError`.
        HDF5 would end the process. Shards are written by Keras, without this
        protection.

        Args:
            filepath: a path that ends in `.weights.h5`.
            overwrite: bool, whether to replace an existing file without asking.
            max_shard_size: maximum size of a shard in GB; `None` = one file.

        Raises:
            OSError: if the file cannot be written, such as on a full disk.
        """
        path = str(filepath)
        if "://" in path or max_shard_size is not None:
            super().save_weights(filepath, overwrite, max_shard_size)
            return
        weights = _FileInMemory(path)
        super().save_weights(weights, overwrite)
        if weights.getbuffer().nbytes:  # It is empty if the user keeps the old file.
            with written_whole(path) as file:
                file.write(weights.getbuffer())

    @written_by_first_process
    def save_to_preset(self, preset_dir: Any) -> None:
        """Writes the model to a folder for `from_preset`, atomically.

        The folder has `config.json` (the configuration), `model.weights.h5`,
        `metadata.json` (versions, date, number of parameters, names of the tokenizers'
        files) and the tokenizers: `tokenizer.json`, or `source_tokenizer.json` and
        `target_tokenizer.json`, and beside each a SentencePiece model in `.model`, if
        it has one. The optimizer is not saved.

        Args:
            preset_dir: path of the folder; it must be new or empty.

        Raises:
            FileExistsError: if the folder exists and is not empty.
            TypeError: if the class of the model has no presets, such as `Ensemble`.
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
            load_weights: bool, whether to load the weights of a trained model; without
                them the model has its configuration and its tokenizers.
            **overrides: any constructor argument. A size always needs the vocabulary (a
                number or tokenizers). A trained model with its weights accepts
                arguments that keep the shapes of the weights, such as `dropout`,
                `dtype` or `max_source_length`.

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

    @written_by_first_process
    def export(
        self,
        filepath: Any,
        search: "Search | None" = None,
        format: str = "saved_model",
        **options: Any,
    ) -> None:
        """Writes a folder with which other software decodes, without this library.

        Args:
            filepath: folder to write; it must be new or empty. TensorFlow
                Serving requires `<name>/<version>`.
            search: the search; `BeamSearch()` if `None`, or `Sampling(top_p=0.9)` for a
                SavedModel of a language model. Not part of `"marian"`.
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


class _FileInMemory(io.BytesIO):
    """A file in memory that has a path for Keras, which checks its ending.

    HDF5 ends the process if it cannot write to a disk.
    """

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def __fspath__(self) -> str:
        return os.path.abspath(self._path)

    def __str__(self) -> str:
        return self._path


class _NamelessFile(io.RawIOBase):
    """An open `.keras` file without a name.

    If Keras knows the name and memory is scarce, it lets HDF5 write a file next to it.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file

    def __str__(self) -> str:
        return "model.keras"

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        if not self._file.closed:  # Python also flushes it when it is deleted.
            self._file.flush()
