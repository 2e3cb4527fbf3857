"""Inference with a trained model: texts or token ids to texts, scores and alignments.

- `sequence_model`: the base class of the models that these modules use
- `generation`: batches decoded with a compiled search
- `request`: the arguments of `generate` that a compiled search depends on
- `batch_search`: the search of one batch
- `token_ids`, `sources`, `source_arrays`: inputs of a user, in batches
- `streaming`: one output, token by token; the tree of a search
- `scoring`, `alignment`: log-probabilities and alignments of given pairs
- `text_windows`, `perplexity`: log-probabilities and perplexities of running text
- `bayes_risk`: minimum-Bayes-risk decoding
- `constraints`: phrases that must occur in the outputs
- `unknown_words`: replacement of unknown words
"""
