"""Transformers in Keras 3, from text to SavedModel.

The public names:

- **Top level** (`import keras_transformer as kt`): everything that a program needs to
  build, train, load and decode a model: layers, models, tokenizers, datasets, losses,
  metrics, callbacks, searches, and the functions that take a model. Methods of a model
  cover the rest: `model.generate`, `model.save`, `model.export`.
- **Documented modules**, which are attributes of the package: `kt.evaluation` (BLEU,
  chrF, error rates), `kt.plotting` (figures), `kt.recipe` (a whole training run, also
  the command `keras-transformer train`), `kt.export` (the functions behind
  `model.export`), `kt.interoperability`, `kt.decoding` (to decode a model of your own)
  and `kt.serving`. They require optional packages, or fewer programs need them.

The packages, in the order of imports. At its top, a module imports only from its own
package and from those after it:

- `recipe`: a training run, described by its options
- `interoperability`: models of Hugging Face's transformers and adapters of PEFT, read
  and written; models of CTranslate2, read
- `export`: writers of SavedModel, ONNX and CTranslate2
- `keras_engine`: a Keras model as an engine of the commands
- `file_translation`: whole files, decoded
- `models`: `Seq2Seq`, `CausalLM`, `TextEncoder`, `Ensemble` and their base classes
- `inference`: texts decoded with a compiled search; scores and alignments; the base
  class of the models
- `dataset`: parallel text and running text as `tf.data` batches
- `training`: schedule, loss, metrics and callbacks for `compile` and `fit`
- `decoding`: greedy search, beam search and sampling over the steps of a model
- `layers`: attention, positions, encoder and decoder blocks and stacks
- `text`: strings to token ids and back, inside the TensorFlow graph
- `distribution`: training on several devices
- `backend`: APIs of a single backend, and private APIs of dependencies
- `evaluation`, `plotting`, `serving`, `types`: modules that import none of the others
- `keras_transformer_runtime`, a package of its own that needs no Keras: the command
  `keras-transformer`, the options of a training run, files, checks of arguments, the
  required packages, named sizes of models

The import loads Keras, the layers, the models, training and decoding, which need Keras
and one of its backends. Names that need TensorFlow (texts on any backend, evaluation,
export) or other optional packages are imported at their first use; an error names the
packages that are missing and the command that installs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_transformer.decoding import (
    BannedSequences,
    BannedTexts,
    BeamSearch,
    GNMTLengthPenalty,
    GreedySearch,
    LengthPenalty,
    LogitsProcessor,
    NoRepeatNGram,
    PowerLengthPenalty,
    RelativeLength,
    RepetitionPenalty,
    Sampling,
    SearchResult,
    SuppressTokens,
)
from keras_transformer.distribution import distribute
from keras_transformer.inference.alignment import Alignment
from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.streaming import SearchTree
from keras_transformer.layers import (
    AlibiBias,
    AttentionPattern,
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GlobalLocal,
    LearnedPositionalEncoding,
    LocalWindow,
    MultiHeadAttention,
    PositionalEncoding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
    Strided,
    scaled_dot_product_attention,
)
from keras_transformer.models import (
    CausalLM,
    Ensemble,
    Seq2Seq,
    TextClassifier,
    TextEncoder,
    TokenClassifier,
)
from keras_transformer.training import (
    Checkpoints,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    NonFiniteLoss,
    Perplexity,
    Pipeline,
    SavedCheckpoint,
    SkipNonFinite,
    TrainingProgress,
    TranslationQuality,
    WarmupDecay,
    WarmupInverseSquareRoot,
    average_checkpoints,
    enable_lora,
    freeze,
    list_checkpoints,
    load_checkpoint,
    merge_lora,
)
from keras_transformer_runtime import __version__ as __version__
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.dataset import parallel_dataset, text_dataset
    from keras_transformer.file_translation import (
        PhraseDictionary,
        translate_file,
    )
    from keras_transformer.inference.bayes_risk import minimum_bayes_risk
    from keras_transformer.inference.unknown_words import replace_unknowns
    from keras_transformer.interoperability import (
        load_adapter,
        load_ctranslate2,
        load_pretrained,
        save_adapter,
    )
    from keras_transformer.text import (
        ByteTokenizer,
        CharacterTokenizer,
        HuggingFaceTokenizer,
        KerasHubTokenizer,
        MarianTokenizer,
        SentencePieceTokenizer,
        Tokenizer,
        WordTokenizer,
    )

# Names that need TensorFlow or an optional package, with their modules.
_LAZY = {
    "ByteTokenizer": "text",
    "CharacterTokenizer": "text",
    "HuggingFaceTokenizer": "text",
    "KerasHubTokenizer": "text",
    "MarianTokenizer": "text",
    "PhraseDictionary": "file_translation",
    "SentencePieceTokenizer": "text",
    "Tokenizer": "text",
    "WordTokenizer": "text",
    "load_adapter": "interoperability",
    "load_ctranslate2": "interoperability",
    "load_pretrained": "interoperability",
    "minimum_bayes_risk": "inference.bayes_risk",
    "parallel_dataset": "dataset",
    "replace_unknowns": "inference.unknown_words",
    "save_adapter": "interoperability",
    "text_dataset": "dataset",
    "translate_file": "file_translation",
}
# Documented modules.
_SUBMODULES = (
    "dataset",
    "decoding",
    "evaluation",
    "export",
    "file_translation",
    "inference",
    "interoperability",
    "layers",
    "models",
    "plotting",
    "recipe",
    "serving",
    "text",
    "training",
)
__all__ = [
    "AlibiBias",
    "Alignment",
    "AttentionPattern",
    "BannedSequences",
    "BannedTexts",
    "BeamSearch",
    "ByteTokenizer",
    "CausalLM",
    "CharacterTokenizer",
    "Checkpoints",
    "DecoderBlock",
    "DecoderStack",
    "EncoderBlock",
    "EncoderStack",
    "Ensemble",
    "FeedForward",
    "GNMTLengthPenalty",
    "GlobalLocal",
    "GreedySearch",
    "HuggingFaceTokenizer",
    "KerasHubTokenizer",
    "LabelSmoothedCrossEntropy",
    "LearnedPositionalEncoding",
    "LengthPenalty",
    "LocalWindow",
    "LogitsProcessor",
    "MarianTokenizer",
    "MaskedTokenAccuracy",
    "MultiHeadAttention",
    "NoRepeatNGram",
    "NonFiniteLoss",
    "Perplexity",
    "PhraseDictionary",
    "Pipeline",
    "PositionScheme",
    "PositionalEncoding",
    "PowerLengthPenalty",
    "RelativeLength",
    "RelativePositionBias",
    "RepetitionPenalty",
    "RotaryEmbedding",
    "Sampling",
    "SavedCheckpoint",
    "ScoreResult",
    "SearchResult",
    "SearchTree",
    "SentencePieceTokenizer",
    "Seq2Seq",
    "SkipNonFinite",
    "Strided",
    "SuppressTokens",
    "TextClassifier",
    "TextEncoder",
    "TokenClassifier",
    "Tokenizer",
    "TrainingProgress",
    "TranslationQuality",
    "WarmupDecay",
    "WarmupInverseSquareRoot",
    "WordTokenizer",
    "average_checkpoints",
    "distribute",
    "enable_lora",
    "freeze",
    "list_checkpoints",
    "load_adapter",
    "load_checkpoint",
    "load_ctranslate2",
    "load_pretrained",
    "merge_lora",
    "minimum_bayes_risk",
    "parallel_dataset",
    "replace_unknowns",
    "save_adapter",
    "scaled_dot_product_attention",
    "text_dataset",
    "translate_file",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        require_extra("tensorflow", f"`{name}`")
        return getattr(import_module(f"keras_transformer.{_LAZY[name]}"), name)
    if name in _SUBMODULES:
        return import_module(f"keras_transformer.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
