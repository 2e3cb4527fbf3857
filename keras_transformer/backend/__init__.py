"""Where Keras has no equivalent: what is done through a backend's own API, and why.

- `building`: models, before `fit` takes a batch for it
- `compiling`: functions of a model, for decoding and scoring
- `cross_entropy`: sums over the vocabulary without copies of the logits
- `few_rows`: products of few rows with a matrix, as fast as they can be
- `fusion`: what XLA would fuse, though it is faster apart
- `looping`: loops whose steps are recorded and repeated
- `materialization`: values that XLA would compute anew for each use
- `micro_batches`: gradients added up over the parts of a batch
- `products`: matrix products by the fastest library that the backend has
- `random_bits`: random numbers for dropout, 16 bits each
- `rematerialization`: layers computed again for their gradient
- `top_k`: the highest values, equal ones in one order
- `writing_in_place`: values put into a tensor without a copy of all of it
"""
