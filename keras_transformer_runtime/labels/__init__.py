"""Labelled texts and tagged words of files, and the scores of predicted labels.

The modules:

- `labelled_texts`: texts and their labels of a TSV, CSV or JSONL file
- `class_balance`: what to know before a training, weights of classes, and a split
- `tagged_words`: words and their tags of a CoNLL or JSONL file; spans of tags
- `predictions`: the class of a text, and the tags of a sentence
- `scores`: accuracy, F1, confusion matrices, scores of entities, and their tables
- `label_scores`: the scores of predictions on a file
"""
