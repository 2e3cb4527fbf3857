"""The base class of models: generate, stream, score, align, save and export."""

import functools
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, BinaryIO, ClassVar, Self, Unpack

import keras

from keras_transformer.backend.processes import written_by_first_process
from keras_transformer.decoding import BeamSearch, OutputLength, Search
from keras_transformer.decoding.generation_options import chosen_search
from keras_transformer.inference.alignment import Aligner, Alignment
from keras_transformer.inference.constraints import Constraints
from keras_transformer.inference.generation import Generator
from keras_transformer.inference.request import Request
from keras_transformer.inference.scoring import Scorer, ScoreResult
from keras_transformer.inference.sequence_model import SequenceModel
from keras_transformer.inference.streaming import SearchTree, Stepper
from keras_transformer.inference.token_ids import Sequences
from keras_transformer.layers.quantized_layers import (
    load_quantized_layers,
    store_quantized_layers,
)
from keras_transformer.models import preset_folders
from keras_transformer.models.vocabularies import TOKENIZERS
from keras_transformer.types import Options, Path
from keras_transformer_runtime.engines.generation_options import SearchOptions
from keras_transformer_runtime.files import written_whole


class GenerativeModel(SequenceModel):
    """Base class of models from sequences to sequences of tokens.

    A subclass sets the attributes, defines the call and the steps of decoding
    (`start_decoding`, `decode_step`, …). It then follows the protocol
    `keras_transformer.decoding.DecodingModel`: every search decodes it, and every
    function of `keras_transformer.inference` and `keras_transformer.export` takes it.

    Attributes:
        source_tokenizer: tokenizer of the sources, or `None`.
        target_tokenizer: tokenizer of the targets, or `None`.
        source_vocabulary_size: int.
        target_vocabulary_size: int.
        max_source_length: int, maximum length of a source in tokens, or `None`.
        max_target_length: int, maximum length of a target in tokens, or `None`.
        pad_token_id: int.
        start_token_id: int.
        end_token_id: int.
        forces_end_token: bool; see `DecodingModel`.
        output_length_ratio: float, target tokens for each source token that outputs
            have room for if `max_length` is `None`.
        default_search: the search of `generate` and `stream`, and of the SavedModel, if
            none is given.
        has_cross_attention: bool, whether `cross_attention` is defined.
        returns_attention_scores: bool, whether the call takes
            `return_attention_scores` and returns a dictionary with the key `"cross"`.
        empty_source: tuple of ints, the token ids that take the place of a source
            without tokens.
        length_arguments: names of the arguments that limit the lengths of sources and
            targets, for error messages.
        presets: dictionary of the constructor's arguments of each named size.
        tokenizer_arguments: dictionary of the constructor's arguments for the files of
            tokenizers in a preset folder.
    """

    presets: ClassVar[Mapping[str, Options]] = {}
    tokenizer_arguments: ClassVar[Mapping[str, str]] = {
        "tokenizer.json": "source_tokenizer",
        "source_tokenizer.json": "source_tokenizer",
        "target_tokenizer.json": "target_tokenizer",
    }

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute. A tokenizer does not become a layer of the model."""
        if name in TOKENIZERS:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Returns the attributes among which Keras looks for layers to save."""
        return [name for name in super().__dir__() if name not in TOKENIZERS]

    @functools.cached_property
    def _generator(self) -> Generator:
        return Generator(self, self._aligner)

    @functools.cached_property
    def _stepper(self) -> Stepper:
        return Stepper(self, self._generator)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self)

    @functools.cached_property
    def _aligner(self) -> Aligner:
        return Aligner(self)

    def generate(
        self,
        inputs: Sequences,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        batch_size: int = 64,
        return_scores: bool = False,
        *,
        return_truncated: bool = False,
        return_alignments: bool = False,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Constraints | None = None,
        stop: Sequence[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Any:
        """Decodes texts or token ids with a compiled search.

        The result of one input does not depend on the others. A string is one text,
        also with line breaks. The output of a text without words, which is empty or has
        white space and invisible characters alone, is an empty text.

        Args:
            inputs: a text or a list of texts, if the model has tokenizers; or
                token ids, each with its end token: a list of lists of ints, or
                an int array `(batch, source_length)` with padding. Instead of a list,
                also an array, a tensor or a `tf.data.Dataset`, batched or not.
            search: the search; `None` = `default_search`, `BeamSearch()` with 4 beams
                and the length penalty 0.6, changed by `options`.
            max_length: int or `RelativeLength`, maximum output length in tokens,
                the end token included; `None` = the length of the source plus 50, or
                `output_length_ratio` times its length if this is more. Without
                `return_truncated`, a warning says how many texts reach the limit of
                `None`.
            batch_size: int, number of inputs decoded together.
            return_scores: bool, for texts: whether to return the scores as well.
            return_truncated: bool, for texts: whether to return as well which of them
                have reached the maximum length, so that their ends may be missing.
            return_alignments: bool, whether to return an `Alignment` of each hypothesis
                with its input; see `align`.
            min_length: int or `RelativeLength`, minimum output length in tokens, the
                end token included.
            prefix: the beginning of each output: a text for a text; or one entry
                for each input, texts or token ids without end token, which may be
                empty. The scores are those of the whole output.
            seed: int from -2**31 to 2**31 - 1, seed of `Sampling`; if `None`, NumPy
                draws it, so `keras.utils.set_random_seed` determines it.
            distinct_texts: bool, for texts: whether each text of an input is returned
                once, with its best hypothesis. Several hypotheses can be the same text
                in different subwords. The lists are then shorter, and the scores end
                with `-inf`. Search with more beams and hypotheses to get more texts.
            constraints: the phrases that must occur in each output: a list of texts
                for a text; or one list for each input, of texts or of lists of token
                ids, which may be empty. Requires a `BeamSearch`. A phrase occurs if its
                tokens follow each other, even if its last word continues; one that is
                given twice must occur twice. An output that contains its phrases
                without `constraints` stays the same.
            stop: list of texts, for texts. An output ends in front of the first of
                them, and does not count as truncated. The search continues after it,
                so the score is that of the whole hypothesis.
            **options: options of the search by name, which change `default_search`:
                `num_beams`, `length_penalty`, `num_hypotheses`, `num_beam_groups`,
                `diversity_penalty`, `repetition_penalty`, `no_repeat_ngram_size`,
                `temperature`, `top_k` and `top_p`; see `GenerationOptions`.

        Returns:
            For token ids a `SearchResult` of NumPy arrays. For texts a list of
            texts (for a single text, a text), or of lists of texts if the
            search returns several hypotheses. With `return_scores=True` a tuple with a
            float32 array of scores `(batch,)` or `(batch, num_hypotheses)`; with
            `return_truncated=True` also with a boolean array of this shape; with
            `return_alignments=True` a tuple with a list of `Alignment`s, or of lists
            of them, as the last entry.

        Raises:
            ValueError: if a token id is not in the vocabulary, a source is
                longer than `max_source_length`, the inputs are texts and the model has
                no tokenizers, a text has a lone surrogate or a language token that the
                vocabulary lacks, an argument is out of range, options are given
                together with a search, or an input to align has no tokens.
            TypeError: if there is no such option.
            FloatingPointError: if a hypothesis ends because the logits of a step have
                no probabilities: one is NaN or `inf`, or all are `-inf`.

        Example:

        ```python
        model.generate(["A man sleeps.", "Two dogs run."])
        model.generate("A man sleeps.", prefix="Ein Mann")
        model.generate("A man sleeps.", num_beams=5, num_hypotheses=3)
        model.generate([[17, 25, 3]], search=GreedySearch()).token_ids
        text, alignment = model.generate("A man sleeps.", return_alignments=True)
        ```
        """
        search = chosen_search("generate", search, self.default_search, options)
        request = Request(search, max_length, min_length)
        return self._generator.generate(
            inputs,
            request,
            batch_size=batch_size,
            return_scores=return_scores,
            return_truncated=return_truncated,
            return_alignments=return_alignments,
            prefix=prefix,
            seed=seed,
            distinct_texts=distinct_texts,
            constraints=constraints,
            stop=stop,
        )

    def stream(
        self,
        inputs: Sequences,
        search: Search | None = None,
        max_length: OutputLength | None = None,
        *,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Iterator[Any]:
        """Decodes one input and yields its output piece by piece.

        A token is yielded as soon as all hypotheses that can become the output agree
        on it: at once with `GreedySearch` and `Sampling`, a few steps later with
        `BeamSearch`. The pieces of a text, joined, are the output of `generate`, unless
        the logits processors ban all tokens of a greedy hypothesis: the output of
        `generate` is then empty. The search and its step are compiled once.

        Args:
            inputs: a text, if the model has tokenizers; or a list of token ids with
                its end token.
            search: the search; `BeamSearch()` if `None`, as in `generate`.
            max_length: see `generate`.
            min_length: see `generate`.
            prefix: a text, or a list of token ids, the beginning of the output.
            seed: see `generate`.
            stop: see `generate`. A piece is held back while it may be the beginning of
                one of these texts.
            **options: options of the search by name; see `generate`.

        Yields:
            For a text, texts; for token ids, ints, the last of which is the end token.

        Raises:
            ValueError: if an argument is out of range.
            FloatingPointError: at the end, if the logits of the model have no
                probabilities; see `generate`.

        Example:

        ```python
        for piece in model.stream("A man sleeps."):
            print(piece, end="", flush=True)
        ```
        """
        search = chosen_search("stream", search, self.default_search, options)
        request = Request(search, max_length, min_length)
        return self._stepper.stream(inputs, request, prefix, seed, stop)

    def search_tree(
        self,
        inputs: Sequences,
        search: BeamSearch | None = None,
        max_length: OutputLength | None = None,
        *,
        min_length: OutputLength = 0,
        prefix: Sequences | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchTree:
        """Decodes one input and returns all hypotheses of the beam search.

        The search is that of `generate`. The tree of an empty text is empty.

        Args:
            inputs: a text, if the model has tokenizers; or a list of token ids with
                its end token.
            search: a `BeamSearch`, `BeamSearch()` if `None`.
            max_length: see `generate`.
            min_length: see `generate`.
            prefix: a text, or a list of token ids, the beginning of the output.
            **options: options of the search by name; see `generate`.

        Returns:
            A `SearchTree`.

        Raises:
            ValueError: if the search is not a `BeamSearch`, or an argument is out of
                range.
            FloatingPointError: see `generate`.

        Example:

        ```python
        from keras_transformer import plotting

        tree = model.search_tree("A man sleeps.", BeamSearch(num_beams=3))
        plotting.plot_search_tree(*tree).savefig("search.png")
        ```
        """
        chosen = chosen_search("search_tree", search, BeamSearch(), options)
        request = Request(chosen, max_length, min_length)
        return self._stepper.search_tree(inputs, request, prefix)

    def score(
        self,
        sources: Sequences,
        targets: Sequences,
        batch_size: int = 64,
        *,
        add_end: bool = True,
    ) -> ScoreResult:
        """Computes the log-probability of each target, given its source.

        The score of one pair does not depend on the others. It has no label
        smoothing and no length penalty.

        Args:
            sources: a text or a list of texts, if the model has tokenizers; or token
                ids, each with its end token: a list of lists of ints, or an int array
                `(batch, source_length)` with padding.
            targets: as many texts or lists of token ids, likewise, without the start
                token. `generate(ids).token_ids[:, 0]` has this form.
            batch_size: int, number of pairs scored together.
            add_end: bool, whether targets that are texts end with the end token.
                `False` = targets are incomplete: the score is that of a beginning.
                Token ids are scored as they are.

        Returns:
            A `ScoreResult` of NumPy arrays, with the `perplexity` of the corpus.

        Raises:
            ValueError: if the numbers of sources and targets differ, a token id is not
                in the vocabulary, a row is longer than `max_source_length` or
                `max_target_length`, or the inputs are texts and the model has no
                tokenizers.

        Example:

        ```python
        result = model.score(["A man sleeps."], ["Ein Mann schläft."])
        print(result.scores.shape, result.perplexity > 1)  # (1,) True
        print(len(result.token_scores[0]) == result.lengths[0])  # True
        ```
        """
        return self._scorer.score(sources, targets, batch_size, add_end)

    def align(
        self,
        sources: Sequences,
        targets: Sequences,
        layer: int | None = None,
        batch_size: int = 64,
    ) -> list[Alignment]:
        """Aligns each target with its source by the cross-attention of one layer.

        The alignment of one pair does not depend on the others. An `Ensemble` aligns
        with the mean of the attention of its models.

        Args:
            sources: a text or a list of texts, if the model has tokenizers; or token
                ids, each with its end token: a list of lists of ints, or an int array
                `(batch, source_length)` with padding.
            targets: as many texts or lists of token ids, likewise, without the start
                token.
            layer: int, index of the decoder block, as in a list. `None` = the
                second-to-last (or the only) block, which agrees best with alignments by
                hand (Garg et al., 2019).
            batch_size: int, number of pairs aligned together.

        Returns:
            A list with one `Alignment` per pair.

        Raises:
            ValueError: if the numbers of sources and targets differ, the model does not
                accept one, a source has no tokens, or there is no such layer.

        Example:

        ```python
        (alignment,) = model.align(["A man sleeps."], ["Ein Mann schläft."])
        target_length, source_length = alignment.attention.shape
        print(len(alignment.positions) == target_length)  # True
        ```

        References:
            - [Garg et al., 2019](https://arxiv.org/abs/1909.02074)
        """
        return self._aligner.align(sources, targets, layer, batch_size)

    def save_own_variables(self, store: MutableMapping[str, object]) -> None:
        """Writes the own variables, and which layers are quantized."""
        super().save_own_variables(store)  # type: ignore[misc]
        store_quantized_layers(self, store)

    def load_own_variables(self, store: Mapping[str, object]) -> None:
        """Quantizes layers as in the file, and reads the own variables."""
        own = load_quantized_layers(self, store)
        super().load_own_variables(own)  # type: ignore[misc]

    def rematerialized_call(
        self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        """Returns the call under `keras.RematScope`.

        Raises:
            ValueError: when it is called, if Keras cannot compute it. On TensorFlow and
                JAX this is so for all modes but `"activations"`.
        """
        rematerialized = super().rematerialized_call  # type: ignore[misc]

        def explained_call(*inputs: Any, **options: Any) -> Any:
            try:
                return rematerialized(layer_call, *args, **kwargs)(*inputs, **options)
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
    def save(self, filepath: Path, overwrite: bool = True, **kwargs: Any) -> None:
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
            super().save(NamelessFile(file), **kwargs)

    @written_by_first_process
    def save_weights(
        self,
        filepath: Path,
        overwrite: bool = True,
        max_shard_size: float | None = None,
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
        weights = FileInMemory(path)
        super().save_weights(weights, overwrite)
        if weights.getbuffer().nbytes:  # It is empty if the user keeps the old file.
            with written_whole(path) as file:
                file.write(weights.getbuffer())

    @written_by_first_process
    def save_to_preset(self, preset_dir: Path) -> None:
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
        filepath: Path,
        search: "Search | None" = None,
        format: str = "saved_model",
        **options: Any,
    ) -> None:
        """Writes a folder with which other software decodes, without this library.

        Args:
            filepath: folder to write; it must be new or empty. TensorFlow
                Serving requires `<name>/<version>`.
            search: the search; `BeamSearch()` if `None`, or `Sampling(top_p=0.9)` for a
                SavedModel of a language model, changed by `options`.
            format: `"saved_model"`, for TensorFlow, `"ctranslate2"` or `"onnx"`.
            **options: options of the search by name, as in `generate`, and further
                arguments of the function that writes the format:
                `export_saved_model`, `export_ctranslate2` or `export_onnx` of
                `keras_transformer.export`.

        Raises:
            ValueError: if there is no such `format` or it has no such option.
        """
        from keras_transformer.export import export_model

        export_model(self, filepath, search, format, **options)

    @written_by_first_process
    def save_pretrained(
        self, folder: Path, model_type: str | None = None, **options: int
    ) -> None:
        """Writes a folder that Hugging Face's transformers and `load_pretrained` load.

        Args:
            folder: folder to write; it must be new or empty.
            model_type: the family, such as `"llama"`. `None` = the first family with
                the design of the model.
            **options: further arguments of
                `keras_transformer.interoperability.save_pretrained`.

        Raises:
            ValueError: if no family has the design of the model.
        """
        from keras_transformer.interoperability import save_pretrained

        save_pretrained(self, folder, model_type, **options)


class FileInMemory(io.BytesIO):
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


class NamelessFile(io.RawIOBase):
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
