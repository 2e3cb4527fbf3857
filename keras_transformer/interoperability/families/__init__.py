"""The families of published models that are read and written."""

from typing import Any, TypeAlias

from keras_transformer.interoperability.families.bart import M2M100, Bart, MBart
from keras_transformer.interoperability.families.bert import (
    Bert,
    DistilBert,
    Roberta,
)
from keras_transformer.interoperability.families.gpt2 import GPT2
from keras_transformer.interoperability.families.llama import (
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
)
from keras_transformer.interoperability.families.marian import Marian
from keras_transformer.interoperability.families.t5 import T5
from keras_transformer.interoperability.family import Family

AnyFamily: TypeAlias = Family[Any]

# A model is written as the first family whose design it has.
FAMILIES: dict[str, AnyFamily] = {
    kind.model_type: kind()
    for kind in (
        *(GPT2, Llama, Mistral, Qwen2, Qwen3),
        *(Marian, Bart, MBart, M2M100, T5),
        *(DistilBert, Roberta, Bert),
    )
}
