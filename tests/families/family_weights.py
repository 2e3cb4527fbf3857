"""The models of `docs/families.md`, and weights of transformers copied to them."""

import pathlib

import keras
import numpy as np
import torch
from documented import python_blocks

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "families.md"
NUM_HEADS = 4


def documented_model(name):
    """Runs the code of one section of the page, and returns what it defines."""
    first, *sections = PAGE.read_text("utf-8").split("\n## ")
    (section,) = (each for each in sections if each.startswith(f"{name}\n"))
    namespace = {}
    for _, code in python_blocks(f"{first}\n{section}"):
        exec(compile(code, "families.md", "exec"), namespace)
    return namespace


def randomized(model):
    """Gives all weights random values, also biases and normalisations."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = 0.2 * torch.randn(weight.shape, generator=generator)
            is_scale = "norm" in name.lower() and name.endswith("weight")
            weight.copy_(noise + is_scale)
    return model.eval()


def numpy(tensor):
    return tensor.detach().numpy().astype("float32")


def copy_dense(ours, theirs):
    bias = [] if theirs.bias is None else [numpy(theirs.bias)]
    ours.set_weights([numpy(theirs.weight).T, *bias])


def copy_norm(ours, theirs):
    ours.set_weights([numpy(weight) for weight in theirs.parameters()])


def copy_conv(ours, theirs):
    kernel = np.moveaxis(numpy(theirs.weight), (0, 1), (-1, -2))
    ours.set_weights([kernel, numpy(theirs.bias)])


def copy_attention(ours, query, key, value, output, scale=1.0):
    """Copies the projections; the kernel of the queries is multiplied by `scale`."""
    inputs = (ours.query_dense, query), (ours.key_dense, key), (ours.value_dense, value)
    for layer, theirs in inputs:
        kernel = numpy(theirs.weight).T
        kernel = kernel.reshape(len(kernel), NUM_HEADS, -1)
        weights = [kernel * scale if theirs is query else kernel]
        if layer.bias is not None:
            given = theirs.bias is not None
            bias = numpy(theirs.bias) if given else np.zeros(kernel[0].size, "float32")
            weights.append(bias.reshape(NUM_HEADS, -1))
        layer.set_weights(weights)
    kernel = numpy(output.weight).T
    bias = [] if ours.output_dense.bias is None else [numpy(output.bias)]
    kernel = kernel.reshape(NUM_HEADS, -1, kernel.shape[-1])
    ours.output_dense.set_weights([kernel, *bias])


def copy_bart_stack(ours, theirs):
    """Copies the blocks of BART and Whisper."""
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        pairs = [(block.self_attention, layer.self_attn)]
        copy_norm(block.self_attention_residual.norm, layer.self_attn_layer_norm)
        if hasattr(layer, "encoder_attn"):
            pairs.append((block.cross_attention, layer.encoder_attn))
            norm = layer.encoder_attn_layer_norm
            copy_norm(block.cross_attention_residual.norm, norm)
        for own, other in pairs:
            projections = other.q_proj, other.k_proj, other.v_proj, other.out_proj
            copy_attention(own, *projections)
        copy_dense(block.feed_forward.intermediate_dense, layer.fc1)
        copy_dense(block.feed_forward.output_dense, layer.fc2)
        copy_norm(block.feed_forward_residual.norm, layer.final_layer_norm)


def saved_and_loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def hypotheses_of_transformers(sequences, end, pad):
    """Returns the token ids after the start token, to the end token included."""
    rows = []
    for row in sequences.numpy()[:, 1:].tolist():
        length = row.index(end) + 1 if end in row else len(row)
        rows.append([token for token in row[:length] if token != pad])
    return rows


def hypotheses(result):
    """Returns the token ids of all hypotheses of all inputs."""
    return [
        row[:length].tolist()
        for rows, lengths in zip(result.token_ids, result.lengths, strict=True)
        for row, length in zip(rows, lengths, strict=True)
    ]
