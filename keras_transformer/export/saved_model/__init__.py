"""The SavedModel of a sequence model: strings in, strings out.

- `writer`: the function `export_saved_model`
- `signatures`, `array_signatures`: what the SavedModel computes for each request
- `search_functions`: the compiled parts that all signatures share
- `quantization`: weights stored as 8 or 16 bits
- `compact_graph`: a smaller graph, which loads faster
- `warmup`: requests that TensorFlow Serving and the server run before the first user's
- `model_card`: the README.md beside the model
"""
