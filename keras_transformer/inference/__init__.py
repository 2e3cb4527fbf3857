"""Inference with a trained model: texts or token ids to texts, scores and alignments.

- `sequence_model`: the base class of the models that these modules use
- `generation`: batches decoded with a compiled search
- `streaming`: one output, token by token; the tree of a search
- `scoring`, `alignment`: log-probabilities and alignments of given pairs
- `bayes_risk`: minimum-Bayes-risk decoding
- `constraints`, `phrase_dictionary`: phrases that must occur in the outputs
- `unknown_words`: replacement of unknown words
"""
