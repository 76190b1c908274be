"""Watch a forward pass while it is traced into a graph, and keep the script by which each run reports its lookups."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from embgrad.backend import INPUT, OUTPUT, PassRecorder, UntraceableError, split_name
from embgrad_tensorflow.flattening import CALLS
from embgrad_tensorflow.graphs import CutGraph
from embgrad_tensorflow.lookup import LOOKUPS, SAME_TABLE, WRITES, Replacing, is_cast_below_point, table_of
from embgrad_tensorflow.slices import SLICES, first_row
from embgrad_tensorflow.state import shared
from embgrad_tensorflow.tap import Taps, tapes_are_stopped
from embgrad_tensorflow.walk import Tables

__all__ = ["Script", "Tracer"]

#: Operations that draw from TensorFlow's internal generator.
RANDOM: Final = frozenset(
    {
        *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
        *("RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"),
    }
)

#: Operations that run Python code, which may write to anything, in one of TensorFlow's threads.
PYTHON: Final = frozenset({"EagerPyFunc", "PyFunc"})

#: Reports one lookup of a run to its watch, with the values of the script's tensors.
Report = Callable[[PassRecorder, Sequence[np.ndarray]], None]


@dataclass(frozen=True)
class _Called:
    path: str


class Script:
    """The lookups of a traced forward pass, in order, and its calls of modules.

    Args:
        keys: the keys of the points asked for.

    Attributes:
        tensors: those whose values each run has to report.
        everything: False, as only requested points are recorded.
        modules: the paths of the modules asked for.
        counted: nothing is counted, because a graph makes the same calls every time.
        calls: the calls of modules that began.
    """

    everything = False
    counted: frozenset[str] = frozenset()

    def __init__(self, keys: Collection[str]) -> None:
        self.tensors: list[Any] = []
        self.modules = frozenset(name.path for name in map(split_name, keys) if name.side is not None)
        self.calls: list[_Called] = []
        self._keys = frozenset(keys)
        self._graph = tf.compat.v1.get_default_graph()
        self._reports: list[Report] = []
        self._seen: Counter[str] = Counter()
        self._open: list[str] = []

    def see(self, path: str, indices: Any, shape: Any, padding: int | None, *, sliced: bool = False) -> str | None:
        """Record a lookup in a table of that shape, and return its key where it is asked for.

        Args:
            path: the table's path.
            indices: the rows looked up.
            shape: the table's shape.
            padding: the row that is declared to be padding.
            sliced: whether it is a slice, which is a lookup only in runs with a position for each of its rows.
        """
        index = self._ask(indices)
        known = tf.get_static_value(shape) if isinstance(shape, tf.Tensor) else shape
        sizes = None if known is not None else self._ask(shape)

        def report(watch: PassRecorder, values: Sequence[np.ndarray]) -> None:
            rows, dim = values[sizes] if sizes is not None else known
            if sliced and values[index].size != watch.batch.shape[1]:
                return
            watch.see(path, values[index], int(rows), int(dim), padding, sliced=sliced)

        self._reports.append(report)
        key = f"{path}#{self._count(path)}"
        return key if key in self._keys else None

    def enter(self, path: str, kind: str, tensor: Any, shape: Any, also: Sequence[str] = ()) -> str | None:
        """Record that a module's call begins; see `PassRecorder.enter`."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UntraceableError(f"the point {path!r} lies inside a loop or a branch of the graph")
        key = f"{path}:{INPUT}#{self._count(f'{path}:')}"
        self.calls.append(_Called(path))
        self._open.append(key.replace(f":{INPUT}#", f":{OUTPUT}#"))
        return key if tensor is not None and self.wants(key) else None

    def leave(self, tensor: Any, shape: Any) -> str | None:
        """Record that the innermost call ends; see `PassRecorder.leave`."""
        key = self._open.pop()
        return key if tensor is not None and self.wants(key) else None

    def count(self, path: str) -> None:
        """See `counted`."""

    def replaced(self, tensor: Any, new: Any) -> None:
        """Do nothing: a trace does not record which tensors are the same."""

    def exit_on_error(self) -> None:
        """Record that the innermost call raised."""
        self._open.pop()

    def wants(self, key: str) -> bool:
        """Return whether the point with this key is asked for."""
        return key in self._keys

    def report(self, watch: PassRecorder, values: Sequence[np.ndarray]) -> None:
        """Report the lookups of a run to its watch.

        Raises:
            BatchError: an index outside its table.
            UnfitError: the run would have gone another way.
        """
        for report in self._reports:
            report(watch, values)

    def _count(self, path: str) -> int:
        self._seen[path] += 1
        return self._seen[path] - 1

    def _ask(self, tensor: Any) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class Tracer:
    """An op callback, which TensorFlow calls after each operation that is added to a graph, and whose results it takes.

    Attributes:
        written: the resources of the variables that the graph writes to.
        computing: the floating-point dtypes into which what depends on a point is cast.
    """

    def __init__(self, script: Script, tables: Tables, taps: Taps) -> None:
        self.written: list[Any] = []
        self.computing: set[Any] = set()
        self._script = script
        self._tables = tables
        self._taps = taps
        self._graph = tf.compat.v1.get_default_graph()
        self._replacing = Replacing()
        self._sources: dict[int, tuple[Any, Any]] = {}
        self._sliced: list[Any] = []
        self._failure: BaseException | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operations that this thread adds to graphs."""
        op_callbacks.add_op_callback(self._called)
        try:
            yield
        except Exception:
            if self._failure is not None:  # unchanged: libraries add text to errors
                raise self._failure from None
            raise
        finally:
            op_callbacks.remove_op_callback(self._called)
        if self._failure is not None:  # the model may have caught it
            raise self._failure
        closed = [
            operation
            for operation in self._graph.get_operations()
            if operation.type in CALLS and any(output.dtype.is_floating for output in operation.outputs)
        ]
        if closed:
            raise UntraceableError(f"the model runs a compiled function, {closed[0].name!r}, that cannot be cut")

    def perform(self, operation: str, operands: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Return what goes on in place of the result of an operation, which `run` gives."""
        return self._replacing.going_on(run())

    def record_graph(self, graph: CutGraph) -> None:
        """Record a saved graph that was inlined into this trace."""
        if graph.written or not {*RANDOM, *PYTHON}.isdisjoint(node.op for node in graph.flat.nodes):
            raise UntraceableError("a saved graph that the model runs draws random numbers, writes, or runs Python")
        self.computing |= graph.casts

    def record(self, name: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any]) -> None:
        """Record an operation that was just added."""
        if self._taps.working:
            return
        try:
            if name in RANDOM:
                raise UntraceableError(f"the model draws random numbers ({name}), which a trace would draw differently")
            if name in PYTHON:
                raise UntraceableError(
                    f"the model runs Python in its graph ({name}), which may write to objects outside the trace"
                )
            if name in LOOKUPS:
                self._looked_up(name, inputs, attrs, outputs[0])
            elif name in SLICES:
                self._took_slice(name, inputs, attrs, outputs[0])
            elif name in SAME_TABLE:
                self._same_table(name, inputs, outputs[0])
            elif name == "ReadVariableOp":
                self._sources[id(outputs[0])] = (outputs[0], _external(inputs[0]))
            elif name.startswith(WRITES) and inputs and inputs[0].dtype == tf.resource:
                self._wrote(name, inputs[0])
        except BaseException as error:
            self._failure = error
            raise

    def _called(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> Any:
        if graph is None:  # executed eagerly: a constant of the graph
            return None
        name = op_type if type(op_type) is str else op_type.decode()
        self.record(name, inputs, _values_of(attrs), outputs)
        first = self._replacing.going_on(outputs[0]) if outputs else None
        return None if not outputs or first is outputs[0] else [first, *outputs[1:]]

    def _wrote(self, name: str, resource: Any) -> None:
        handle = _external(resource)
        if handle is None:
            raise UntraceableError(f"the model writes ({name}) to a resource that is not a variable of the model")
        if any(handle is variable.handle for variable in shared()):
            raise UntraceableError(
                "the model draws from a random generator that models share, which a trace cannot restore"
            )
        self.written.append(handle)

    def _same_table(self, name: str, inputs: Sequence[Any], output: Any) -> None:
        if name == "Cast" and is_cast_below_point(inputs[0], output):
            self.computing.add(output.dtype)
        handle = self._handle(inputs[0])
        if handle is not None:
            self._sources[id(output)] = (output, handle)

    def _looked_up(self, name: str, inputs: Sequence[Any], attrs: Any, rows: Any) -> None:
        handle = self._handle(inputs[0])
        if inputs[0].dtype == tf.resource:
            shape, dtype = (None, tf.resource) if handle is None else table_of(handle)
            if handle is None and rows.graph is not self._graph:
                raise UntraceableError("the model looks rows up inside a loop or a branch of the graph")
            if handle is None:
                raise UntraceableError(
                    f"the model looks rows up ({name}) in a resource that is not a variable of the model"
                )
        else:
            shape, dtype = inputs[0].shape, inputs[0].dtype
            if dtype.is_floating and shape.rank is None:
                raise UntraceableError(f"the model looks rows up ({name}) in a tensor of unknown rank")
        if "batch_dims" in attrs and int(attrs[attrs.index("batch_dims") + 1]):
            return
        indices = _indices(name, inputs)
        if indices is not None and shape is not None and dtype.is_floating and len(shape) == 2:
            known = isinstance(shape, tuple) or shape.is_fully_defined()
            self._record(handle, indices, tuple(shape) if known else tf.shape(inputs[0]), rows)

    def _took_slice(self, name: str, inputs: Sequence[Any], attrs: Any, rows: Any) -> None:
        """Record a slice of a table, see `Watcher`: which run has as many positions is known only then."""
        handle = self._handle(inputs[0])
        first = first_row(name, inputs, attrs, rows) if handle is not None and rows.dtype.is_floating else None
        if first is None:
            return
        if any(handle is other for other in self._sliced):
            raise UntraceableError(f"the model takes several slices of the table {self._tables.path(handle)!r}")
        self._sliced.append(handle)
        indices = first + tf.range(tf.shape(rows, first.dtype)[0])
        self._record(handle, indices, tuple(map(int, inputs[0].shape)), rows, sliced=True)

    def _record(self, handle: Any, indices: Any, shape: Any, rows: Any, *, sliced: bool = False) -> None:
        if rows.graph is not self._graph:
            raise UntraceableError("the model looks rows up inside a loop or a branch of the graph")
        path, padding = self._tables.path(handle), self._tables.padding(handle)
        key = self._script.see(path, indices, shape, padding, sliced=sliced)
        if key is None:
            return
        if tapes_are_stopped():
            raise UntraceableError(f"the lookup {key!r} lies in a part of the model that is recomputed in the pullback")
        if self._taps.record_rows(key, rows):
            self._replacing.promise(rows, functools.partial(self._taps.replace_rows, key))

    def _handle(self, operand: Any) -> Any:
        if operand.dtype == tf.resource:
            return _external(operand)
        tensor, handle = self._sources.get(id(operand), (None, None))
        return handle if tensor is operand else None


def _values_of(attrs: Sequence[Any]) -> list[Any]:
    """Return an operation's attributes as eager execution has them, names and values in turn."""
    return [
        attribute if isinstance(attribute, str) else getattr(attribute, attribute.WhichOneof("value") or "s")
        for attribute in attrs
    ]


def _external(tensor: Any) -> Any:
    """Return the resource outside of the graph that a captured tensor stands for, or None where it is of the graph."""
    while not hasattr(tensor, "numpy"):
        outside = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        if outside is None:
            return None
        tensor = outside
    return tensor


def _indices(operation: str, operands: Sequence[Any]) -> Any:
    """Return the rows that are looked up in a matrix, or None where the lookup is along another axis."""
    if operation == "GatherV2":
        axis = tf.get_static_value(operands[2])
        if axis is None:
            raise UntraceableError("the model looks up along an axis that is known only at run time")
        if int(axis) not in (0, -2):
            return None
    indices = operands[1]
    if not indices.dtype.is_integer:
        return None
    if operation.endswith("Nd"):
        if indices.shape.rank is None or (indices.shape.rank and indices.shape[-1] is None):
            raise UntraceableError("the model looks up (tf.gather_nd) by indices of unknown shape")
        return indices[..., 0] if indices.shape.rank and indices.shape[-1] == 1 else None
    return indices
