"""Read a model, whichever form it has: its graph, the folder of its weights, and where it runs."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

from embgrad.errors import FileFormatError, UnsupportedError, brief, quote
from embgrad.toolkit import LRUCache, as_parts, expect_single, model_lock
from embgrad_onnx.importing import import_onnx

__all__ = ["FLOATING", "OnnxModel", "Source", "alone", "is_model", "load", "location_of", "named_tensors", "source_of"]

T = TypeVar("T")

#: The types of tensors that hold real numbers, by their numbers in `onnx.TensorProto.DataType`, with NumPy's names.
FLOATING: Final = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}

#: The class of a session, by its module and name.
_SESSION: Final = ("onnxruntime.capi.onnxruntime_inference_collection", "InferenceSession")

#: The number of sessions that are kept of a model, each of which has the weights: for shapes, for values, for changed values.
SESSIONS: Final = 3


class Source:
    """A graph, with what was computed from it.

    Attributes:
        folder: the folder of the files that hold its weights; None where the proto holds them itself.
        providers: the execution providers of onnxruntime that run it.
    """

    def __init__(
        self, proto: Any, folder: Path | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        self.proto = proto
        self.folder = folder
        self.providers = tuple(providers)
        self.clear()

    def clear(self) -> None:
        """Drop what was computed from the graph, after a weight was written."""
        self._sessions: LRUCache[Any] = LRUCache(SESSIONS)
        self._outline: Any = None

    def outline(self, make: Callable[[], T]) -> T:
        """Return what is known of the graph, which is found out once."""
        if self._outline is None:
            self._outline = make()
        outline: T = self._outline
        return outline

    def session(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a session, which is made where it is not among the last that were used."""
        session: T = self._sessions.get_or_make(key, make)
        return session


class OnnxModel:
    """The model in an .onnx file. Its graph is read at once, weights in other files when they are used."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.source = Source(proto, path.parent)

    def __repr__(self) -> str:
        return f"OnnxModel({str(self.path)!r})"


def load(path: str | PathLike[str]) -> OnnxModel:
    """Return the model in an .onnx file, which may name further files that hold its weights.

    Args:
        path: the file.

    Raises:
        BackendError: onnx or onnxruntime is not installed.
        FileFormatError: the file or one of those that it names is missing, or it is broken.
    """
    onnx, _ = import_onnx()
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"there is no file {path}: expected an ONNX model, such as torch.onnx.export writes")
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises classes of its own
        raise FileFormatError(
            f"{path} cannot be read as an ONNX model ({' '.join(str(error).split())[:200]}): write or fetch it again"
        ) from error
    if not proto.graph.node:
        raise FileFormatError(f"{path} holds no graph: expected an ONNX model, such as torch.onnx.export writes")
    named = dict.fromkeys(
        location for tensor in named_tensors(proto).values() if (location := location_of(tensor)) is not None
    )
    outside = [location for location in named if Path(location).is_absolute() or ".." in Path(location).parts]
    if outside:
        raise FileFormatError(
            f"{path} names {quote(outside)} as files of its weights, which are not in its folder: expected names of files in "
            f"{path.parent}. Write the model again with onnx.save_model(..., save_as_external_data=True)"
        )
    missing = [location for location in named if not (path.parent / location).is_file()]
    if missing:
        raise FileFormatError(
            f"{path} has weights in {quote(missing)}, and there is no such file beside it: copy it into {path.parent}"
        )
    return OnnxModel(path, proto)


def is_model(value: object) -> bool:
    """Return whether an object is a graph, a session, or a model from a file, by its type."""
    if isinstance(value, OnnxModel):
        return True
    names = {(kind.__module__, kind.__qualname__) for kind in type(value).__mro__}
    return _SESSION in names or any(module.startswith("onnx.") and name == "ModelProto" for module, name in names)


def location_of(tensor: Any) -> str | None:
    """Return the name of the file that holds a tensor's values, relative to its folder; None where the tensor holds them."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), None)


#: The sources of sessions, and of the last `ModelProto`, which takes no weak references, with the digest of its content.
_of_sessions: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()
_of_protos: LRUCache[Source] = LRUCache(1)


def source_of(model: Any) -> Source:
    """Return the graph of a model. That of a `ModelProto` is read again if its content has changed.

    Raises:
        UnsupportedError: the model is a sequence of parts, or its weights cannot be found.
    """
    expect_single(model)
    if isinstance(model, OnnxModel):
        return model.source
    if hasattr(model, "SerializeToString"):
        return _of_protos.get_or_make((id(model), _digest(model)), lambda: _of_proto(model))
    source = _of_sessions.get(model)
    if source is None:
        source = _of_sessions[model] = _of_session(model)
    return source


def alone(model: Any) -> AbstractContextManager[None]:
    """Prevent other threads from running the model while the context is open."""
    return model_lock(as_parts(model))


def _digest(proto: Any) -> bytes:
    """Return a digest of a proto's content, which a user may change between two calls."""
    try:
        return hashlib.blake2b(proto.SerializeToString(), digest_size=16).digest()
    except Exception as error:  # protobuf raises classes of its own
        raise UnsupportedError(
            "the ModelProto is larger than 2 GB, which onnxruntime cannot take from memory: write it with onnx.save_model(..., "
            "save_as_external_data=True), and pass embgrad_onnx.load(path)"
        ) from error


def _of_proto(proto: Any) -> Source:
    outside = next(
        (location for tensor in named_tensors(proto).values() if (location := location_of(tensor)) is not None), None
    )
    if outside is not None:
        raise UnsupportedError(
            f"the ModelProto has weights in the file {outside!r}, and does not say in which folder: pass "
            "embgrad_onnx.load(path), or load it with its weights by onnx.load(path)"
        )
    return Source(proto)


def _of_session(session: Any) -> Source:
    """Return the graph of a session, which keeps the path or the bytes that it was made of."""
    onnx, _ = import_onnx()
    path, content = session._model_path, session._model_bytes
    providers = session.get_providers()
    if isinstance(path, (str, PathLike)) and str(path):
        source = load(path).source
    else:
        try:
            source = _of_proto(onnx.load_model_from_string(content))
        except Exception as error:  # protobuf raises classes of its own
            raise UnsupportedError(
                f"the session was made of {brief(content if content is not None else path)}, which is no ONNX model that can be "
                "read: pass embgrad_onnx.load(path)"
            ) from error
    return Source(source.proto, source.folder, providers)


def named_tensors(proto: Any) -> dict[str, Any]:
    """Return the initialisers of a graph and the constants among its nodes, by the names by which steps take them."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                tensors |= dict.fromkeys(node.output, attribute.t)
    return tensors
