"""Reads and writes folders in the form of Hugging Face's transformers."""

import math
import os
import pathlib
import re
import warnings
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.export.checking import check_weights
from keras_transformer.interoperability.families import FAMILIES, AnyFamily
from keras_transformer.interoperability.families.bert import SENTENCE_CONFIG
from keras_transformer.interoperability.files import find_folder
from keras_transformer.interoperability.marian_npz import (
    DECODER_FILE,
    read_own_files,
)
from keras_transformer.interoperability.parameters import (
    Parameter,
    find_layer,
    layer_paths,
)
from keras_transformer.interoperability.settings import (
    PublishedModel,
    complete_arguments,
    differences,
    model_arguments,
)
from keras_transformer.interoperability.tensors import (
    INDEX,
    LOGIT_OF_ADDED_TOKENS,
    PICKLED_WEIGHTS,
    WEIGHTS_FILE,
    Tensors,
    checkpoint_files,
    open_checkpoint,
)
from keras_transformer.interoperability.tokenizer_files import (
    FILES as TOKENIZER_FILES,
)
from keras_transformer.interoperability.vocabulary import Languages, stored_tokens
from keras_transformer.layers.positions.scheme import DType
from keras_transformer.models import GenerativeModel, Seq2Seq, TextEncoder, file_checks
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_one_of
from keras_transformer_runtime.files import (
    checked_file,
    new_folder,
    read_json,
    write_json,
)
from keras_transformer_runtime.packages import require_extra

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
MARIAN_FILES = ("source.spm", "target.spm", "target_vocab.json")
FILES = (
    *(CONFIG, GENERATION_CONFIG, SENTENCE_CONFIG, *TOKENIZER_FILES, *MARIAN_FILES),
    *checkpoint_files(WEIGHTS_FILE),
)
# A repository often has its weights in several formats. Only one is downloaded.
FALLBACKS = dict.fromkeys(
    checkpoint_files(PICKLED_WEIGHTS),
    ("model.bin", WEIGHTS_FILE, INDEX.format(WEIGHTS_FILE)),
)
# Bytes of a file of weights, as transformers writes them.
SHARD_SIZE = 5 * 10**9


def load_pretrained(
    folder: str | os.PathLike,
    revision: str | None = None,
    dtype: DType = None,
    source_language: str | None = None,
    target_language: str | None = None,
    model_type: str | None = None,
) -> PublishedModel:
    """Loads a published model from a folder in the form of Hugging Face.

    The model computes the logits (or, of an encoder, the hidden states) of Hugging
    Face's transformers. It can be used like any other model of its class: to generate,
    to train further, to save and to export. `model_type` in `config.json` selects the
    family:

    - `CausalLM`: `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3`;
    - `Seq2Seq`: `marian`, `bart`, `mbart`, `m2m_100`, `t5`;
    - `TextEncoder`: `bert`, `roberta`, `distilbert`.

    A folder with `decoder.yml` and without `config.json` has Marian's own files. From
    these, the `Seq2Seq` computes what CTranslate2 computes after its
    `OpusMTConverter`.

    Files are read as data, and nothing in them is executed. Weights are read tensor by
    tensor from safetensors files (package safetensors). If there are none, they are
    read from `pytorch_model.bin` by the weights-only reader of PyTorch.

    A language model without a padding token gets one after its vocabulary. A bias of
    -100 that is not trained excludes it from the outputs. Settings of dropout are read;
    settings of the search and of training, such as `encoder_layerdrop`, are ignored.

    Args:
        folder: path of a folder. If there is no such folder, the name of a repository
            on the Hugging Face Hub, whose files the package huggingface_hub downloads
            and caches.
        revision: branch, tag or commit of the repository, such as `"refs/pr/7"`.
        dtype: dtype or policy of the model, such as `"bfloat16"`. `None` = Keras's
            global policy.
        source_language: str, language of the sources of a model of several languages,
            as its tokenizer names it: `"en_XX"` (mBART), `"eng_Latn"` (NLLB), `"en"`
            (M2M-100). Its token is added to each source.
        target_language: str, language of the outputs. Its token is the first one of
            every output (`forced_first_token_id`), or in mBART the start token.
        model_type: str, the family, if an old `config.json` does not name it.

    Returns:
        A `CausalLM`, a `Seq2Seq` or a `TextEncoder`.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ModuleNotFoundError: if a package that reads a file is missing.
        ValueError: if `config.json` has a setting that the model cannot represent, or
            the files contradict each other.

    Example:

    ```python
    model = load_pretrained("HuggingFaceTB/SmolLM2-135M")
    print(model.generate("A man", Sampling(top_p=0.9), include_prompt=True))
    translator = load_pretrained("Helsinki-NLP/opus-mt-en-de")
    print(translator.generate(["A man sees a dog."]))
    nllb = load_pretrained(
        "facebook/nllb-200-distilled-600M",
        source_language="eng_Latn",
        target_language="deu_Latn",
    )
    ```

    References:
        - [Hugging Face's transformers](https://github.com/huggingface/transformers)
    """
    path = find_folder(folder, FILES, revision, FALLBACKS)
    if (path / DECODER_FILE).is_file() and not (path / CONFIG).exists():
        return _load_own_marian(path, dtype)
    raw = _read_settings(path)
    check_one_of(FAMILIES, optional=True, model_type=model_type)
    found = {"model_type in config.json": model_type or raw.get("model_type")}
    remedy = "Other families cannot be loaded. If there is none, pass `model_type`."
    check_one_of(FAMILIES, False, remedy, **found)
    [kind] = found.values()
    family = FAMILIES[str(kind)]
    config = family.complete(raw)
    languages = Languages(source_language, target_language)
    if languages != Languages() and not family.has_languages:
        raise ValueError(
            "`source_language` and `target_language` must be `None` for a model of "
            f"{kind!r}; received `source_language={source_language!r}`, "
            f"`target_language={target_language!r}`."
        )
    vocabulary = family.read_vocabulary(path, config, languages)
    arguments = {**family.arguments(config), **vocabulary}
    tensors = open_checkpoint(path)
    family.check_tensors(config, tensors)
    arguments |= family.options_of_tensors(tensors.names)
    arguments |= family.options_of_files(path, config)
    _check_sizes(arguments, tensors, config["vocab_size"])
    model = family.model_class(**arguments, dtype=dtype)
    _assign(model, family, config, tensors)
    return model


def _read_settings(folder: pathlib.Path) -> Config:
    """Reads `config.json`, and the special ids that it leaves to the generation."""
    config = read_json(checked_file(folder / CONFIG))
    generation: Config = {}
    if (folder / GENERATION_CONFIG).is_file():
        generation = read_json(folder / GENERATION_CONFIG)
    ids = {
        name: value
        for name, value in generation.items()
        if name.endswith("_token_id") and config.get(name) is None
    }
    return {**config, **ids}


def _load_own_marian(folder: pathlib.Path, dtype: DType) -> Seq2Seq:
    """Loads the files that Marian itself writes and reads."""
    arguments, sizes, tensors = read_own_files(folder)
    _check_sizes(arguments, tensors, sizes["vocab_size"])
    model = Seq2Seq(**arguments, dtype=dtype)
    _assign(model, FAMILIES["marian"], sizes, tensors)
    return model


def _check_sizes(arguments: Config, tensors: Tensors, rows: int) -> None:
    """Raises `ValueError` if the model would be larger than the file.

    `rows` is the number of tokens of the file.
    """
    shapes = [tensors.info(name).shape for name in tensors.names]
    sizes = file_checks.Sizes(sum(map(math.prod, shapes)), len(shapes))
    config = {
        name: keras.saving.serialize_keras_object(value)
        if isinstance(value, keras.layers.Layer)
        else value
        for name, value in arguments.items()
    }
    if arguments.get("output_bias") == "frozen":  # The file lacks the added tokens.
        config["vocabulary_size"] = rows
    try:
        file_checks.check_weights(config, sizes)
    except ValueError as error:
        raise ValueError(f"{tensors.path} must have all weights: {error}.") from error


def _assign(
    model: PublishedModel,
    family: AnyFamily,
    config: Config,
    tensors: Tensors,
) -> None:
    """Sets all weights; warns of tensors that belong to none."""
    parameters = list(family.parameters(model, config))
    own = {parameter.name for parameter in parameters}
    unread = set(tensors.names)
    for parameter in parameters:
        first, *others = family.names_of(parameter)
        names = [first, *(name for name in others if name not in own)]
        if first == family.bias and first not in tensors.names:
            continue
        tensor = tensors.read(names, parameter.stored_shape)
        _check_tied(names, tensor, tensors)
        parameter.assign(tensor)
        unread -= set(names)
    _exclude_added_tokens(model, config)
    unread = {name for name in unread if not re.fullmatch(family.unused, name)}
    heads = {name for name in unread if re.fullmatch(family.heads, name)}
    if heads:
        warnings.warn(
            f"{tensors.path.name} has the tensor {min(heads)!r} and {len(heads) - 1} "
            f"others of a head, which a `{type(model).__name__}` does not have.",
            stacklevel=3,
        )
    if unread - heads:
        raise ValueError(
            f"{tensors.path.name} must hold only tensors of {family.model_type!r}; it "
            f"holds {min(unread - heads)!r}, which no weight of config.json's "
            "architecture has. Correct config.json, or remove the tensor."
        )


def _check_tied(names: list[str], tensor: np.ndarray, tensors: Tensors) -> None:
    """Raises `ValueError` if two names of a tied matrix have different values."""
    first, *others = (name for name in names if name in tensors.names)
    for name in others:
        if not np.array_equal(tensor, tensors.read([name], tensor.shape)):
            raise ValueError(
                f"{name!r} in {tensors.path.name} must equal {first!r}, as config.json "
                "ties them; their values differ. Correct `tie_word_embeddings` in "
                "config.json, or remove the tensor."
            )


def _exclude_added_tokens(model: PublishedModel, config: Config) -> None:
    if isinstance(model, TextEncoder) or model.output_bias != "frozen":
        return
    assert model.logits_bias is not None
    values = np.zeros(model.target_vocabulary_size, "float32")
    values[config["vocab_size"] :] = LOGIT_OF_ADDED_TOKENS
    model.logits_bias.assign(values)


def save_pretrained(
    model: GenerativeModel | TextEncoder,
    folder: str | os.PathLike,
    model_type: str | None = None,
    max_shard_size: int = SHARD_SIZE,
) -> None:
    """Writes a model as a folder that Hugging Face's transformers loads.

    The folder has `config.json`, `generation_config.json`, the weights as safetensors
    in the dtype of the model, and the files of the tokenizer. It is written completely
    or not at all. The search is not part of the folder. The kernels of a model with
    LoRA contain the updates.

    Args:
        model: a `CausalLM`, `Seq2Seq` or `TextEncoder` with the design of a family of
            `load_pretrained`. It need not come from a folder.
        folder: folder to write. It must be new or empty.
        model_type: the family, such as `"llama"`. `None` = the first family with the
            design of the model.
        max_shard_size: int, maximum size of a file of weights in bytes; larger weights
            have several files. A single tensor may be larger.

    Raises:
        ValueError: if no family has the design of the model. The message names the
            options in which the nearest family differs.
        FileExistsError: if `folder` exists and is not an empty folder.

    Example:

    ```python
    model = load_pretrained("HuggingFaceTB/SmolLM2-135M")
    model.compile("adam", loss, jit_compile=True)
    model.fit(dataset)
    save_pretrained(model, "my-smollm2")
    ```
    """
    require_extra("hub", "`save_pretrained`")
    if not isinstance(model, PublishedModel):
        raise ValueError(
            "`model` must be a `CausalLM`, `Seq2Seq` or `TextEncoder`; received a "
            f"`{type(model).__name__}`."
        )
    check_one_of(FAMILIES, optional=True, model_type=model_type)
    check_not_quantized(model)
    check_weights(model)
    family, config = _find_family(model, model_type)
    settings = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": keras.backend.standardize_dtype(model.variable_dtype),
    }
    ids = {name: value for name, value in config.items() if name.endswith("token_id")}
    with new_folder(folder) as new:
        new.mkdir()
        family.write_tokenizers(model, new)
        search = family.generation_settings(family.complete(config))
        write_json(new / GENERATION_CONFIG, {**ids, **search})
        write_json(new / CONFIG, {**settings, **config})
        _write_weights(new, model, family, config, max_shard_size)


class Module(NamedTuple):
    """A module of transformers that has the weights of a layer here.

    Attributes:
        name: its name.
        scale: the kernel here is that of the module times this factor.
    """

    name: str
    scale: float = 1.0


def modules_of(model: keras.Model) -> dict[str, Module]:
    """Returns the modules of transformers by the paths of layers, if they are a family.

    Several layers with one module are its parts, in their order.
    """
    if not isinstance(model, PublishedModel):
        return {}
    try:
        family, config = _find_family(model, None)
    except ValueError:
        return {}
    names = family.layer_names(model)
    complete = family.complete(config)
    scales = {each.name: each.scale for each in family.parameters(model, complete)}
    return {
        path: Module(name, scales.get(f"{name}.weight", 1.0))
        for name, paths in layer_paths(model, names)
        for path in paths
    }


def _find_family(
    model: PublishedModel, model_type: str | None
) -> tuple[AnyFamily, Config]:
    """Returns the first family with the design of a model, and the settings."""
    families = [
        family
        for family in FAMILIES.values()
        if isinstance(model, family.model_class)
        and model_type in (None, family.model_type)
    ]
    if not families:
        raise ValueError(
            f"`model_type` must be a family of a `{type(model).__name__}`; received "
            f"`model_type={model_type!r}`."
        )
    design = complete_arguments(type(model), model_arguments(model))
    found: list[tuple[AnyFamily, list[str]]] = []
    for family in families:
        config = {**family.config(design), **family.vocabulary_settings(model)}
        problems = _problems(model, design, family, config)
        if not problems:
            return family, config
        found.append((family, problems))
    family, problems = min(found, key=lambda each: len(each[1]))
    raise ValueError(
        "The model must have the design of a family of transformers. The nearest one "
        f"is {family.model_type!r}: {'; '.join(problems)}."
    )


def _problems(
    model: PublishedModel,
    design: Config,
    family: AnyFamily,
    config: Config,
) -> list[str]:
    """Returns why a family does not have the design of a model."""
    try:
        complete = family.complete(config)
    except ValueError as error:
        return [str(error)]
    found = differences(design, family.complete_arguments(complete))
    problems = [
        f"`{name}` must be {theirs!r}, received `{name}={ours!r}`"
        for name, (ours, theirs) in found.items()
    ]
    if problems:
        return problems
    layers = [
        find_layer(model, path)
        for _, paths in layer_paths(model, family.layer_names(model))
        for path in paths
    ]
    written = {id(weight) for layer in layers for weight in layer.weights}
    if not isinstance(model, TextEncoder) and model.logits_bias is not None:
        bias = np.asarray(ops.convert_to_numpy(model.logits_bias), "float32")
        if family.bias or not np.any(bias[: stored_tokens(model)]):
            written.add(id(model.logits_bias))
    return [
        f"it has no weight like `{weight.path}`"
        for weight in model.weights
        if id(weight) not in written
    ]


def _write_weights(
    folder: pathlib.Path,
    model: PublishedModel,
    family: AnyFamily,
    config: Config,
    most: int,
) -> None:
    from safetensors.numpy import save_file

    shards: list[list[Parameter]] = [[]]
    total = size = 0
    for parameter in family.parameters(model, family.complete(config)):
        num_bytes = math.prod(parameter.stored_shape) * parameter.itemsize
        if shards[-1] and size + num_bytes > most:
            shards.append([])
            size = 0
        shards[-1].append(parameter)
        size += num_bytes
        total += num_bytes
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = WEIGHTS_FILE
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {parameter.name: parameter.tensor() for parameter in shard}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_json(folder / INDEX.format(WEIGHTS_FILE), index)
