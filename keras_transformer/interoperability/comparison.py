"""Compares a folder that `load_pretrained` loads with transformers."""

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding import GreedySearch
from keras_transformer.interoperability.families import FAMILIES
from keras_transformer.interoperability.pretrained import load_pretrained
from keras_transformer.interoperability.settings import PublishedModel
from keras_transformer.models import CausalLM, Seq2Seq, TextEncoder
from keras_transformer.text import Tokenizer
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.files import read_json
from keras_transformer_runtime.packages import require_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

REQUIREMENTS = {"torch": "torch>=2.13", "transformers": "transformers>=5.23"}
# Of logits and hidden states, relative to the largest value.
TOLERANCE = 1e-4
SEED = 1


class Check(NamedTuple):
    """A comparison.

    Attributes:
        name: what was compared.
        equal: whether both sides agree; `None` = transformers computes nothing.
        detail: the difference.
    """

    name: str
    equal: bool | None
    detail: str


def compare_with_transformers(
    folder: str | os.PathLike,
    texts: Sequence[str] = (),
    length: int = 16,
    max_length: int = 16,
    **options: str | None,
) -> list[Check]:
    """Compares a folder with transformers: outputs, greedy search and token ids.

    The inputs are random token ids and the given texts. The packages torch and
    transformers are required. transformers executes no code of the folder.

    Args:
        folder: path of a folder that `load_pretrained` loads.
        texts: texts whose token ids are compared, if the folder has a tokenizer.
        length: int, number of tokens of the inputs.
        max_length: int, maximum number of tokens of the greedy search.
        **options: further arguments of `load_pretrained`, such as `model_type`.

    Returns:
        A list of `Check`s.

    Raises:
        ModuleNotFoundError: if torch or transformers is not installed.
        ValueError: see `load_pretrained`.

    Example:

    ```python
    for check in compare_with_transformers("smollm2", ["A man sees a dog."]):
        print(check.name, check.equal, check.detail)
    ```
    """
    check_ints(1, length=length, max_length=max_length)
    require_modules(REQUIREMENTS, "`compare_with_transformers`", REQUIREMENTS)
    ours = load_pretrained(folder, **options)
    theirs = _load_theirs(pathlib.Path(folder), options.get("model_type"))
    limit = getattr(ours, "max_source_length", None) or getattr(
        ours, "max_length", None
    )
    if limit is not None:  # of a prompt and its continuation together
        length, max_length = min(length, limit // 2), min(max_length, limit // 2)
    random = np.random.default_rng(SEED)
    size = theirs.config.vocab_size
    rows = random.integers(0, size, (2, length))
    rows[rows == ours.pad_token_id] = (ours.pad_token_id + 1) % size
    checks = [_compare_outputs(ours, theirs, rows, random)]
    if not isinstance(ours, TextEncoder):
        checks.append(_compare_searches(ours, theirs, rows, max_length))
    tokenizer = getattr(ours, "source_tokenizer", None) or getattr(
        ours, "tokenizer", None
    )
    if tokenizer is not None and texts:
        checks.append(_compare_tokens(tokenizer, pathlib.Path(folder), texts))
    return checks


def _load_theirs(folder: pathlib.Path, model_type: str | None) -> "PreTrainedModel":
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model_type = model_type or read_json(folder / "config.json")["model_type"]
    kind = getattr(transformers, FAMILIES[str(model_type)].architecture)
    return kind.from_pretrained(folder, dtype="float32").eval()


def _compare_outputs(
    ours: PublishedModel,
    theirs: "PreTrainedModel",
    rows: np.ndarray,
    random: np.random.Generator,
) -> Check:
    import torch

    inputs: dict[str, torch.Tensor] = {"input_ids": torch.tensor(rows)}
    own: np.ndarray | dict[str, np.ndarray] = rows
    if isinstance(ours, Seq2Seq):
        targets = random.integers(0, theirs.config.vocab_size, rows.shape)
        targets[targets == ours.pad_token_id] = ours.end_token_id
        inputs["decoder_input_ids"] = torch.tensor(targets)
        own = {"encoder_token_ids": rows, "decoder_token_ids": targets}
    with torch.no_grad():
        outputs = theirs(**inputs)
    is_encoder = isinstance(ours, TextEncoder)
    expected = (outputs[0] if is_encoder else outputs.logits).numpy()
    found = np.asarray(ops.convert_to_numpy(ours(own)), "float32")
    error = float(np.abs(found[..., : expected.shape[-1]] - expected).max())
    largest = float(np.abs(expected).max())
    return Check(
        "hidden states" if is_encoder else "logits",
        error <= TOLERANCE * max(largest, 1.0),
        f"largest difference {error:.1e}, largest value {largest:.2g}",
    )


def _compare_searches(
    ours: CausalLM | Seq2Seq, theirs: Any, rows: np.ndarray, max_length: int
) -> Check:
    import torch

    theirs.generation_config = type(theirs.generation_config)(
        bos_token_id=ours.start_token_id,
        eos_token_id=ours.end_token_id,
        pad_token_id=ours.pad_token_id,
        decoder_start_token_id=ours.start_token_id,
    )
    result = ours.generate(rows, GreedySearch(), max_length=max_length)
    equal = 0
    for number, row in enumerate(rows):
        inputs = torch.tensor(row[None])
        [expected] = theirs.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=max_length,
        ).tolist()
        expected = expected[1 if isinstance(ours, Seq2Seq) else len(row) :]
        count = int(result.lengths[number, 0])
        found = result.token_ids[number, 0, :count].tolist()
        if found[-1] == ours.end_token_id:  # A limit ends a text here, too.
            found = found[:-1]
        equal += found == expected[: len(found)]
    return Check(
        "greedy search", equal == len(rows), f"{equal} of {len(rows)} outputs equal"
    )


def _compare_tokens(
    tokenizer: Tokenizer, folder: pathlib.Path, texts: Sequence[str]
) -> Check:
    import transformers

    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except ValueError:
        return Check("tokens", None, "transformers cannot load the tokenizer")
    special = {tokenizer.start_token_id, tokenizer.end_token_id}
    found = tokenizer.tokenize(list(texts)).to_list()
    expected = [theirs(text, add_special_tokens=False).input_ids for text in texts]
    equal = sum(
        [id for id in one if id not in special] == other
        for one, other in zip(found, expected, strict=True)
    )
    return Check("tokens", equal == len(texts), f"{equal} of {len(texts)} texts equal")
