"""APIs of single backends, and private names of dependencies, each with its reason.

- `compiling`: compiles functions of a model for inference
- `cross_entropy`: sums over the vocabulary without copies of the logits
- `distribution`: losses, metrics and updates over several replicas
- `freed_memory`: memory that glibc keeps for later steps
- `sharding`: batches and variables on several devices of JAX
- `keras_internals`: private names of Keras, with fallbacks; quantized models
- `micro_batches`: gradients accumulated over parts of a batch
- `pipeline`: blocks of a model on several devices of JAX, one after another
- `processes`: processes that train together, on JAX
- `ray_ports`: connections to Ray, and the addresses on which it listens
- `ray_start`: the start of a local cluster of Ray
- `rematerialization`: activations recomputed for the gradient
- `sentencepiece`: models of tensorflow-text that outlive its kernel cache
- `slice_update`: updates of a slice in place
- `top_k`: the highest values, with ties in the same order on every backend
- `while_loop`: loops whose steps PyTorch records and replays
"""
