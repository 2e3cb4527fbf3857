"""Makes the graph of a SavedModel smaller without changing what it computes."""

import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

# TensorFlow infers the shapes again, and uses the names only in messages.
UNNEEDED_ATTRIBUTES = ("_output_shapes", "_user_specified_name")

# What a node computes: its operation, attributes and inputs.
Key: TypeAlias = tuple[object, ...]


def compact(folder: pathlib.Path) -> None:
    """Rewrites the graph of a SavedModel with short names and without duplicates.

    Most of a graph's bytes are the names of its nodes, which contain the names of the
    layers and are repeated wherever a node is used, and the shapes of all tensors.
    """
    file = folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        _compact(meta_graph)
    file.write_bytes(saved_model.SerializeToString(deterministic=True))


def _compact(meta_graph: MetaGraphDef) -> None:
    graph, objects = meta_graph.graph_def, meta_graph.object_graph_def
    operations = meta_graph.meta_info_def.stripped_op_list.op
    stateless = {operation.name for operation in operations} - {
        operation.name for operation in operations if operation.is_stateful
    }
    _share_resource_creators(graph)
    _strip_attributes(graph.node)
    # Captured tensors are referred to by their names.
    kept = {node.captured_tensor.concrete_function for node in objects.nodes}
    for function in graph.library.function:
        if function.signature.name in kept:
            continue
        _strip_attributes(function.node_def)
        _merge_duplicates(function, stateless)
        _remove_unused(function)
        _rename_nodes(function)
        if function.signature.name not in objects.concrete_functions:
            _strip_attributes(function.arg_attr.values())
            _rename_signature(function)


def _strip_attributes(messages: Iterable[NodeDef | FunctionDef.ArgAttrs]) -> None:
    for message in messages:
        for name in UNNEEDED_ATTRIBUTES:
            message.attr.pop(name, None)


def _share_resource_creators(graph: GraphDef) -> None:
    """Replaces nodes that create a resource by calls of the function that creates it.

    TensorFlow writes a tokenizer into both, each with its whole vocabulary. `load` uses
    the function.
    """
    creators = {}
    for function in graph.library.function:
        nodes = [node for node in function.node_def if "shared_name" in node.attr]
        if len(nodes) == 1 and not function.signature.input_arg:
            creators[_operation_key(nodes[0])] = function.signature
    for node in graph.node:
        creator = creators.get(_operation_key(node))
        if creator is not None and len(creator.output_arg) == 1:
            node.op = "StatefulPartitionedCall"
            node.attr.clear()
            node.attr["f"].func.name = creator.name
            node.attr["Tin"].list.SetInParent()
            node.attr["Tout"].list.type.append(creator.output_arg[0].type)


def _operation_key(node: NodeDef) -> Key:
    """Returns the operation of a node and its attributes, as a key."""
    attributes = sorted(
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
        if name not in UNNEEDED_ATTRIBUTES
    )
    return node.op, *attributes


def _merge_duplicates(function: FunctionDef, stateless: Collection[str]) -> None:
    """Keeps one of several nodes that compute the same; most are constants."""
    first: dict[Key, str] = {}
    duplicates: dict[str, str] = {}
    for node in function.node_def:
        node.input[:] = [_renamed(reference, duplicates) for reference in node.input]
        if node.op in stateless:
            key = (*node.input, node.device, *_operation_key(node))
            if first.setdefault(key, node.name) != node.name:
                duplicates[node.name] = first[key]
    _rename(function, duplicates)
    _filter_nodes(function, lambda node: node.name not in duplicates)


def _remove_unused(function: FunctionDef) -> None:
    """Keeps the nodes that results and side effects depend on."""
    inputs = {node.name: node.input for node in function.node_def}
    used: set[str] = set()
    queue = [*function.ret.values(), *function.control_ret.values()]
    while queue:
        name = queue.pop().lstrip("^").partition(":")[0]
        if name not in used:
            used.add(name)
            queue += inputs.get(name, ())
    _filter_nodes(function, lambda node: node.name in used)


def _filter_nodes(function: FunctionDef, predicate: Callable[[NodeDef], bool]) -> None:
    nodes = list(filter(predicate, function.node_def))
    del function.node_def[:]
    function.node_def.extend(nodes)


def _rename_nodes(function: FunctionDef) -> None:
    """Gives the nodes short names, except resources, which may be shared by name."""
    nodes = [node for node in function.node_def if "shared_name" not in node.attr]
    names = {node.name: f"n{number:x}" for number, node in enumerate(nodes)}
    for node in nodes:
        node.name = names[node.name]
    _rename(function, names)


def _rename_signature(function: FunctionDef) -> None:
    """Gives arguments and results short names; calls refer to them by position."""
    signature = function.signature
    names = {}
    for number, argument in enumerate(signature.input_arg):
        names[argument.name] = argument.name = f"a{number:x}"
    _rename(function, names)
    for number, output in enumerate(signature.output_arg):
        function.ret[f"r{number}"] = function.ret.pop(output.name)
        output.name = f"r{number}"
    for number, name in enumerate(list(signature.control_output)):
        function.control_ret[f"c{number}"] = function.control_ret.pop(name)
        signature.control_output[number] = f"c{number}"


def _rename(function: FunctionDef, names: Mapping[str, str]) -> None:
    """Renames nodes or arguments in all references of a function."""
    for node in function.node_def:
        node.input[:] = [_renamed(reference, names) for reference in node.input]
    for results in (function.ret, function.control_ret):
        for key, reference in dict(results).items():
            results[key] = _renamed(reference, names)


def _renamed(reference: str, names: Mapping[str, str]) -> str:
    """Returns a reference `node`, `node:output:0` or `^node` with the new name."""
    control = "^" if reference.startswith("^") else ""
    name, *output = reference.removeprefix("^").split(":")
    return control + ":".join([names.get(name, name), *output])
