"""Translation of files and pipes of any size, with any engine.

- `translation`: the functions `translate_file` and `translate_stream`
- `line_windows`: lines read in windows that are sorted by length
- `unfinished_file`: the target of a translation that may be stopped and resumed
"""
