"""APIs of single backends, and private names of dependencies.

`README.md` in this folder lists the private names, with their reasons and gains.

- `checked_dataset`: checks of the batches of a `tf.data.Dataset`, on the host
- `compiling`: compiles functions of a model for inference, and their loops
- `cross_entropy`: sums over the vocabulary without copies of the logits
- `custom_gradient`: functions with a gradient of their own
- `distribution`: losses, metrics and updates over several replicas
- `freed_memory`: memory that glibc keeps for later steps
- `sharding`: batches and variables on several devices of JAX
- `int32_sum`: sums of integers that stay int32 with the 64-bit types of JAX
- `keras_internals`: layers, builds and states of `fit` of Keras; quantized models
- `micro_batches`: gradients accumulated over parts of a batch
- `pipeline`: blocks of a model on several devices of JAX, one after another
- `processes`: processes that train together, on JAX and PyTorch
- `pytorch_file`: files of `torch.save`, read by PyTorch
- `ray_connection`: connections to a cluster of Ray
- `random_state`: states of the global random generators
- `rematerialization`: activations recomputed for the gradient
- `sentencepiece`: models of tensorflow-text that outlive its kernel cache
- `slice_update`: updates of a slice in place
- `step_graph`, `compiled_steps`: steps of PyTorch as graphs
- `torch_processes`: messages between processes of PyTorch, and their dropout
- `top_k`: the highest values, with ties in the same order on every backend
"""
