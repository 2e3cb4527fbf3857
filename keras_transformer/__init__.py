"""Sequence-to-sequence Transformers in Keras 3, from text to SavedModel.

The package in the order in which data passes through it:

- `text`: strings to token ids and back, inside the TensorFlow graph
- `dataset`: parallel lines to bucketed, shifted `tf.data` batches
- `layers`: attention, positions, encoder and decoder blocks
- `models`: the model
- `training`: schedule, loss, metrics for `compile` and `fit`
- `decoding`: greedy and beam search and sampling over a step function, with rules
- `inference`: from texts to a compiled search and back: one or a whole file, scores,
  alignments, a choice among candidates
- `evaluation`: BLEU, chrF, error rates
- `export`: the SavedModel and the CTranslate2 model, strings in, strings out; ONNX
- `interoperability`: models of Marian (OPUS-MT) and CTranslate2, read and written
- `recipe`: all of this as one run, by its options
- `serving`: a server of SavedModels, and a page to try them
- `command_line`: the command `keras-transformer`
- `plotting`: pictures of attention, positions and schedules
- `backend`: what only a backend's own API can do

Layers, model, training and decoding are here at once, on every backend. What
needs TensorFlow, sacreBLEU or Matplotlib is imported when it is first used.
"""

import pathlib
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# The command answers `--help` and finds wrong arguments before Keras is there.
_IS_COMMAND = pathlib.PurePath(sys.argv[0]).stem == "keras-transformer" or (
    sys.orig_argv[1:3] == ["-m", "keras_transformer"]
)

if TYPE_CHECKING or not _IS_COMMAND:
    from keras_transformer.decoding import (
        BannedSequences,
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
    from keras_transformer.models import Ensemble, Seq2Seq
    from keras_transformer.training import (
        Checkpoints,
        LabelSmoothedCrossEntropy,
        MaskedTokenAccuracy,
        NonFiniteLoss,
        Perplexity,
        SkipNonFinite,
        TrainingProgress,
        TranslationQuality,
        WarmupInverseSquareRoot,
        average_checkpoints,
        freeze,
    )

__version__ = "0.1.0"

_LAZY = {
    "CharacterTokenizer": "text",
    "MarianTokenizer": "text",
    "SentencePieceTokenizer": "text",
    "WordTokenizer": "text",
    "Tokenizer": "text",
    "parallel_dataset": "dataset",
    "export_saved_model": "export",
    "load_ctranslate2": "interoperability",
    "load_marian": "interoperability",
    "save_marian": "interoperability",
    "minimum_bayes_risk": "inference.bayes_risk",
    "replace_unknowns": "inference.unknown_words",
    "translate_file": "inference.file_translation",
}

__all__ = [
    "AlibiBias",
    "Alignment",
    "AttentionPattern",
    "BannedSequences",
    "BeamSearch",
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
    "PositionScheme",
    "PositionalEncoding",
    "PowerLengthPenalty",
    "RelativeLength",
    "RelativePositionBias",
    "RepetitionPenalty",
    "RotaryEmbedding",
    "Sampling",
    "ScoreResult",
    "SearchResult",
    "SearchTree",
    "SentencePieceTokenizer",
    "Seq2Seq",
    "SkipNonFinite",
    "Strided",
    "SuppressTokens",
    "Tokenizer",
    "TrainingProgress",
    "TranslationQuality",
    "WarmupInverseSquareRoot",
    "WordTokenizer",
    "average_checkpoints",
    "export_saved_model",
    "freeze",
    "load_ctranslate2",
    "load_marian",
    "minimum_bayes_risk",
    "parallel_dataset",
    "replace_unknowns",
    "save_marian",
    "scaled_dot_product_attention",
    "translate_file",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"keras_transformer.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
