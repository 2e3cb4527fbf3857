"""Labelled texts and tagged words of files, and the scores of predicted labels.

The modules:

- `labelled_texts`: texts and their labels of a TSV, CSV or JSONL file; its split
- `tagged_words`: words and their tags of a CoNLL or JSONL file; spans of tags
- `scores`: accuracy, F1, confusion matrices, and scores of entities
- `tables`: scores, examples and confusion matrices as text tables
"""
