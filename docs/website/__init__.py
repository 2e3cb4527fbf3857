"""Writes the pages of the site from the rest of the repository.

- `docstrings`: docstrings in the style of Keras to Markdown
- `entries`: the public names, and what their docstrings lack
- `reference`: the pages of the API reference
- `pages`: all pages that are written, and the links between pages

`docs/conf.py` calls them.
"""
