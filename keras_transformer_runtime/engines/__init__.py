"""Engines: texts and options in, texts out, from an exported model.

- `Engine`: the interface
- `CTranslate2Engine`: a folder of `export(format="ctranslate2")`, without TensorFlow
- `GenerationOptions`: the options of a search, the same in every engine
"""
