"""Base class of the families of published models."""

import abc
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from keras_transformer.interoperability.parameters import (
    LayerNames,
    Parameter,
    find_layer,
    layer_parameters,
    layer_paths,
)
from keras_transformer.interoperability.settings import (
    PublishedModel,
    Setting,
    arguments_of,
    complete_arguments,
    complete_config,
    config_of,
)
from keras_transformer.interoperability.tensors import Tensors
from keras_transformer.interoperability.tokenizer_files import (
    LoadedTokenizer,
    read_tokenizer,
)
from keras_transformer.interoperability.vocabulary import (
    Languages,
    causal_settings,
    causal_vocabulary,
    seq2seq_settings,
    seq2seq_vocabulary,
    write_model_tokenizer,
)
from keras_transformer.models import CausalLM, Seq2Seq
from keras_transformer.types import Config

Model = TypeVar("Model", bound=PublishedModel)

# Layers with a row for each token.
TOKEN_LAYERS = {
    "target_embedding",
    "source_embedding",
    "output_dense",
    "token_embedding",
}

KEY_DIM = "attention_options.key_dim"


class Family(abc.ABC, Generic[Model]):
    """A family of published models, with the names of transformers.

    A family is a table. The methods that a family overrides are the exceptions to it.

    Attributes:
        model_type: the value of `model_type` in `config.json`.
        architecture: the class of transformers that computes the logits.
        model_class: the class of this library.
        settings: dictionary of the settings that the model depends on.
        design: arguments that all models of the family have.
        layers: names of the layers with tensors.
        prefix: beginning of tensor names that some files have and others lack.
        aliases: further names that a tensor may have, for embeddings that are shared.
        bias: name of the bias of the logits, which a file may lack.
        unused: pattern of tensors that no layer has, such as tables of positions.
        heads: pattern of tensors of heads, which the model does not have.
        has_languages: whether texts have tokens of their languages.
        first_rows: number of rows in front that the model does not have, by layer.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    model_class: type[Model]
    settings: ClassVar[Mapping[str, Setting]]
    design: ClassVar[Config] = {}
    layers: ClassVar[LayerNames]
    prefix: ClassVar[str] = ""
    aliases: ClassVar[Mapping[str, Sequence[str]]] = {}
    bias: ClassVar[str | None] = None
    unused: ClassVar[str] = r"(?!)"
    heads: ClassVar[str] = r"(?!)"
    has_languages: ClassVar[bool] = False
    first_rows: ClassVar[Mapping[str, int]] = {}

    def complete(self, config: Config) -> Config:
        """Returns the settings of a file after checks, with the defaults."""
        complete = complete_config(self.settings, config)
        names = {each.argument: name for name, each in self.settings.items()}
        width, heads = names["hidden_dim"], names["num_heads"]
        if KEY_DIM not in names and complete[width] % complete[heads]:
            raise ValueError(
                f"`{width}` in config.json must be divisible by {complete[heads]}, "
                f"`{heads}`; received `{width}={complete[width]}`."
            )
        return complete

    def arguments(self, config: Config) -> Config:
        """Converts complete settings to arguments, without the vocabulary."""
        arguments = arguments_of(self.settings, config)
        for name, value in self.design.items():
            given = arguments.get(name)
            arguments[name] = {**value, **given} if isinstance(given, dict) else value
        return arguments

    def config(self, design: Config) -> Config:
        """Converts the complete arguments of a model to settings."""
        return config_of(self.settings, design)

    def check_tensors(self, config: Config, tensors: Tensors) -> None:  # noqa: B027
        """Raises `ValueError` for a tensor that the model computes differently."""

    @abc.abstractmethod
    def read_vocabulary(
        self, folder: pathlib.Path, config: Config, languages: Languages
    ) -> Config:
        """Reads the arguments of sizes, special ids and tokenizers."""

    def read_tokenizer(
        self, folder: pathlib.Path, config: Config
    ) -> LoadedTokenizer | None:
        """Reads the tokenizer of a folder; `None` = it has none."""
        return read_tokenizer(folder, {**config, "model_type": self.model_type})

    def write_tokenizers(self, model: Model, folder: pathlib.Path) -> None:
        """Writes the tokenizer of a model, if it has one that has a form there."""
        write_model_tokenizer(model, folder)

    def generation_settings(self, config: Config) -> Config:
        """Returns the settings of `generation_config.json` apart from special ids."""
        return {}

    @abc.abstractmethod
    def vocabulary_settings(self, model: Model) -> Config:
        """Returns the settings of special ids, which the tokenizers do not contain."""

    def options_of_tensors(self, names: Collection[str]) -> Config:
        """Returns arguments that depend on which tensors a file has."""
        return {}

    def options_of_files(self, folder: pathlib.Path, config: Config) -> Config:
        """Returns arguments that depend on further files of the folder."""
        return {}

    def complete_arguments(self, config: Config) -> Config:
        """Returns all arguments that complete settings determine."""
        return complete_arguments(self.model_class, self.arguments(config))

    def parameters(self, model: Model, config: Config) -> Iterator[Parameter]:
        """Yields the tensors of a model."""
        for name, paths in layer_paths(model, self.layer_names(model)):
            layers = [find_layer(model, path) for path in paths]
            is_transposed = self.stores_transposed_kernel(name)
            for parameter in layer_parameters(name, layers, is_transposed):
                yield self.adjust(parameter, name, config)
        bias = getattr(model, "logits_bias", None)
        if self.bias is not None and bias is not None:
            yield Parameter(self.bias, (bias,), (1, *bias.shape))

    def layer_names(self, model: Model) -> LayerNames:
        """Returns the names of the layers of a model."""
        return self.layers

    def stores_transposed_kernel(self, layer: str) -> bool:
        """Returns whether a dense kernel is stored as `(outputs, inputs)`."""
        return True

    def adjust(self, parameter: Parameter, layer: str, config: Config) -> Parameter:
        """Returns the tensor as it is stored."""
        rows = config["vocab_size"] if layer in self.token_layers() else None
        return parameter._replace(rows=rows, first_row=self.first_rows.get(layer, 0))

    def token_layers(self) -> list[str]:
        """Returns the layers whose rows are tokens."""
        return [name for name, path in self.layers.items() if path in TOKEN_LAYERS]

    def names_of(self, parameter: Parameter) -> list[str]:
        """Returns the names that a tensor may have; the first one is written."""
        layer, _, kind = parameter.name.rpartition(".")
        names = [parameter.name]
        names += [f"{alias}.{kind}" for alias in self.aliases.get(layer, ())]
        prefix = self.prefix
        others = [
            name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
            for name in names
        ]
        return [*names, *(name for name in others if name not in names)]


class CausalFamily(Family[CausalLM]):
    """A family of language models."""

    model_class = CausalLM

    def read_vocabulary(
        self, folder: pathlib.Path, config: Config, languages: Languages
    ) -> Config:
        return causal_vocabulary(config, self.read_tokenizer(folder, config))

    def vocabulary_settings(self, model: CausalLM) -> Config:
        return causal_settings(model)


class Seq2SeqFamily(Family[Seq2Seq]):
    """A family of encoder-decoder models with one vocabulary."""

    model_class = Seq2Seq

    def read_vocabulary(
        self, folder: pathlib.Path, config: Config, languages: Languages
    ) -> Config:
        loaded = self.read_tokenizer(folder, config)
        return seq2seq_vocabulary(config, loaded, languages)

    def vocabulary_settings(self, model: Seq2Seq) -> Config:
        return seq2seq_settings(model)


def block_names(
    prefix: str, stack: str, layers: LayerNames
) -> dict[str, str | tuple[str, ...]]:
    """Returns the names of the layers of all blocks, from those within a block."""

    def path(layer: str) -> str:
        return f"{stack}.blocks.{{}}.{layer}"

    return {
        f"{prefix}.{{}}.{name}": (
            path(layer) if isinstance(layer, str) else tuple(map(path, layer))
        )
        for name, layer in layers.items()
    }
