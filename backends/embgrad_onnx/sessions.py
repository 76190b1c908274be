"""Sessions of onnxruntime that compute chosen tensors of a graph, and no steps beside those that these need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.errors import BatchError, UnsupportedError
from embgrad_onnx.graphs import Graph, Node
from embgrad_onnx.importing import import_onnx
from embgrad_onnx.walk import Source

__all__ = ["compute", "make_session", "run_session"]

#: The end of the names of the tensors that hold other tensors' shapes.
SHAPE: Final = ":embgrad_shape"

#: How an error of onnxruntime begins: its code, and often a place in the source with the function's signature.
PLACE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/\S+:\d+ .*?\) (?=[A-Z]))?")


def compute(
    source: Source, graph: Graph, feeds: Mapping[str, np.ndarray], names: Sequence[str], shapes_of: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return the values of some tensors and the shapes of others, by name.

    Args:
        source: the model.
        graph: its graph.
        feeds: what the graph takes, by name.
        names: the tensors whose values are computed.
        shapes_of: the tensors whose shapes are computed; their values are not kept.

    Raises:
        UnsupportedError: onnxruntime cannot run the graph.
        BatchError: it cannot run it on this batch.
    """
    onnx, _ = import_onnx()
    fixed = {name: onnx.numpy_helper.to_array(graph.tensors[name]) for name in names if name in graph.tensors}
    values: dict[str, Any] = {name: feeds[name] for name in names if name in feeds} | fixed
    wanted = tuple(name for name in names if name not in values)
    shaped = tuple(name for name in shapes_of if name not in feeds)
    shapes = {name: tuple(feeds[name].shape) for name in shapes_of if name in feeds}
    if wanted or shaped:
        nodes = graph.steps_for([*wanted, *shaped])
        session = source.session((wanted, shaped), lambda: make_session(source, graph, nodes, wanted, shaped))
        computed = run_session(session, feeds)
        values |= {name: computed[name] for name in wanted}
        shapes |= {name: tuple(map(int, computed[name + SHAPE])) for name in shaped}
    return values, shapes


def make_session(
    source: Source,
    graph: Graph,
    nodes: Sequence[Node],
    names: Sequence[str],
    shapes_of: Sequence[str] = (),
    taken: Mapping[str, int] | None = None,
) -> Any:
    """Return a new session that runs some steps.

    Args:
        shapes_of: the tensors whose shapes it returns.
        taken: the types of what it takes beside the graph's inputs, by name, in `onnx.TensorProto.DataType`.
    """
    onnx, onnxruntime = import_onnx()
    proto, taken = graph.proto, taken or {}
    read = {name for node in nodes for name in node.inputs}
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    part.graph.name = "graph"
    part.graph.node.extend(node.proto for node in nodes)
    part.graph.node.extend(onnx.helper.make_node("Shape", [name], [name + SHAPE]) for name in shapes_of)
    part.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in read)
    inputs = [value for value in proto.graph.input if value.name in read - graph.tensors.keys() - taken.keys()]
    part.graph.input.extend([*inputs, *(onnx.helper.make_tensor_value_info(*each, None) for each in taken.items())])
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (*names, *(n + SHAPE for n in shapes_of)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # there may be many sessions
    if source.folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(source.folder))
    try:
        return onnxruntime.InferenceSession(part.SerializeToString(), options, providers=list(source.providers))
    except Exception as error:  # onnxruntime has a class for each of its error codes
        raise UnsupportedError(
            f"onnxruntime {onnxruntime.__version__} cannot run the graph ({_reason(error)}): install a version that can, or "
            "export the model again for an older opset"
        ) from error


def run_session(session: Any, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return by name what a session computes of the values that it takes."""
    _, onnxruntime = import_onnx()
    names = [value.name for value in session.get_outputs()]
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # what is raised is enough
    try:
        computed = session.run(names, {value.name: values[value.name] for value in session.get_inputs()}, options)
    except Exception as error:  # onnxruntime has a class for each of its error codes
        raise BatchError(
            f"onnxruntime cannot run the graph on this batch ({_reason(error)}): expected a graph that takes any number "
            "of examples and positions, as one does that was exported with dynamic axes"
        ) from error
    return dict(zip(names, computed, strict=True))


def _reason(error: Exception) -> str:
    """Return the part of an error of onnxruntime that says what is wrong, without its code and the place in its source."""
    text = " ".join(str(error).split()).rpartition("Status Message: ")[2]
    return PLACE.sub("", text)[:300]
