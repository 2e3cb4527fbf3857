"""What a trained model is used for: texts or token ids in, texts or figures out.

- `generation` decodes with a compiled search, `streaming` token by token,
  `file_translation` whole files; `search_tree` keeps what a search looked at
- `scoring` says how probable pairs are, `alignment` what comes from where
- `bayes_risk` chooses among candidates, `unknown_words` replaces unknown ones
"""
