"""Makes the graph of a SavedModel smaller; what it computes stays the same."""

import pathlib
from collections.abc import Callable
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

# What TensorFlow finds out for itself, and what it only shows to people.
UNNEEDED = ("_output_shapes", "_user_specified_name")


def compact(folder: pathlib.Path) -> None:
    """Rewrites the graph of a SavedModel with short names, and nothing twice.

    Most of a graph's bytes are the names of its nodes, which tell of the layers and are
    repeated wherever a node is used; and the shapes of all tensors, which are
    inferred when it is loaded.

    Args:
        folder: a SavedModel.
    """
    file = folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        _compact(meta_graph)
    file.write_bytes(saved_model.SerializeToString(deterministic=True))


def _compact(meta_graph: Any) -> None:
    graph, entrances = meta_graph.graph_def, meta_graph.object_graph_def
    _create_resources_once(graph)
    _strip(graph.node)
    kept = {node.captured_tensor.concrete_function for node in entrances.nodes}
    for function in graph.library.function:
        if function.signature.name in kept:  # others take its tensors by their names
            continue
        _strip(function.node_def)
        _merge(function)
        _drop_unused(function)
        _rename_nodes(function)
        if function.signature.name not in entrances.concrete_functions:
            _strip(function.arg_attr.values())
            _rename_signature(function)


def _strip(described: Any) -> None:
    for one in described:
        for name in UNNEEDED:
            one.attr.pop(name, None)


def _create_resources_once(graph: Any) -> None:
    """Lets the graph call the function that makes a resource, as `load` does.

    TensorFlow writes a tokenizer into both, each with its whole vocabulary.
    """
    creators = {}
    for function in graph.library.function:
        nodes = [node for node in function.node_def if "shared_name" in node.attr]
        if len(nodes) == 1 and not function.signature.input_arg:
            creators[_what_it_makes(nodes[0])] = function.signature
    for node in graph.node:
        creator = creators.get(_what_it_makes(node))
        if creator is not None and len(creator.output_arg) == 1:
            node.op = "StatefulPartitionedCall"
            node.attr.clear()
            node.attr["f"].func.name = creator.name
            node.attr["Tin"].list.SetInParent()
            node.attr["Tout"].list.type.append(creator.output_arg[0].type)


def _what_it_makes(node: Any) -> tuple[Any, ...]:
    attributes = sorted(
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
        if name not in UNNEEDED
    )
    return node.op, *attributes


def _merge(function: Any) -> None:
    """Keeps one of the nodes that compute the same; most are constants."""
    seen: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for node in function.node_def:
        node.input[:] = [_renamed(reference, same) for reference in node.input]
        definition = op_def_registry.get(node.op)
        if definition is not None and not definition.is_stateful:
            key = (*node.input, node.device, *_what_it_makes(node))
            if seen.setdefault(key, node.name) != node.name:
                same[node.name] = seen[key]
    _rename(function, same)
    _keep(function, lambda node: node.name not in same)


def _drop_unused(function: Any) -> None:
    """Keeps the nodes that results and effects depend on."""
    inputs = {node.name: node.input for node in function.node_def}
    needed: set[str] = set()
    left = [*function.ret.values(), *function.control_ret.values()]
    while left:
        name = left.pop().lstrip("^").partition(":")[0]
        if name not in needed:
            needed.add(name)
            left += inputs.get(name, ())
    _keep(function, lambda node: node.name in needed)


def _keep(function: Any, chosen: Callable[[Any], bool]) -> None:
    nodes = list(filter(chosen, function.node_def))
    del function.node_def[:]
    function.node_def.extend(nodes)


def _rename_nodes(function: Any) -> None:
    """Gives the nodes of a function short names; resources may go by theirs."""
    nodes = [node for node in function.node_def if "shared_name" not in node.attr]
    new = {node.name: f"n{number:x}" for number, node in enumerate(nodes)}
    for node in nodes:
        node.name = new[node.name]
    _rename(function, new)


def _rename_signature(function: Any) -> None:
    """Gives arguments and results short names; calls go by position."""
    signature = function.signature
    new = {}
    for number, argument in enumerate(signature.input_arg):
        new[argument.name] = argument.name = f"a{number:x}"
    _rename(function, new)
    for number, output in enumerate(signature.output_arg):
        function.ret[f"r{number}"] = function.ret.pop(output.name)
        output.name = f"r{number}"
    for number, name in enumerate(list(signature.control_output)):
        function.control_ret[f"c{number}"] = function.control_ret.pop(name)
        signature.control_output[number] = f"c{number}"


def _rename(function: Any, new: dict[str, str]) -> None:
    """Renames nodes or arguments wherever a function uses them."""
    for node in function.node_def:
        node.input[:] = [_renamed(reference, new) for reference in node.input]
    for results in (function.ret, function.control_ret):
        for key, reference in dict(results).items():
            results[key] = _renamed(reference, new)


def _renamed(reference: str, new: dict[str, str]) -> str:
    """A reference `node`, `node:output:0` or `^node`, with the node's new name."""
    control = "^" if reference.startswith("^") else ""
    name, *place = reference.removeprefix("^").split(":")
    return control + ":".join([new.get(name, name), *place])
