"""Watches a forward pass while it is traced into a graph, and keeps the script of it, so that each run can tell what it saw."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import op_callbacks, ops

from embgrad.points import INPUT, OUTPUT, split_name
from embgrad.watching import PointWatch
from embgrad_tensorflow.drawing import shared
from embgrad_tensorflow.flattening import CALLS
from embgrad_tensorflow.graphs import CutGraph
from embgrad_tensorflow.lookup import LOOKUPS, SAME_TABLE, WRITES, Points, table_of
from embgrad_tensorflow.onehot import PRODUCTS, OneHots, makes_one_hot
from embgrad_tensorflow.precision import is_turned
from embgrad_tensorflow.replacing import Replacing
from embgrad_tensorflow.symbolic import UntraceableError
from embgrad_tensorflow.walk import Tables

__all__ = ["Script", "Tracer", "UnfitError"]

#: Operations that draw numbers from a generator that TensorFlow keeps to itself.
RANDOM: Final = frozenset(
    {
        *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
        *("RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"),
    }
)

#: Operations that run Python's code, which may write to anything and has TensorFlow's thread for its own.
PYTHON: Final = frozenset({"EagerPyFunc", "PyFunc"})

#: Tells the watch of a run of one thing that the forward pass came by, with the values of the tensors asked for.
Event = Callable[[PointWatch, Sequence[np.ndarray]], None]

#: The sizes of a shape in one run, out of the values of the tensors asked for.
Sizes = Callable[[Sequence[np.ndarray]], tuple[int, ...]]


class UnfitError(Exception):
    """A trace does not serve for what it was run on; says why."""


@dataclass(frozen=True)
class _Called:
    path: str


class Script:
    """What a traced forward pass comes by, in order.

    Args:
        keys: the keys of the points asked for.

    Attributes:
        tensors: those whose values each run has to tell.
        everything: nothing is taken down but what is asked for.
        modules: the paths of the modules asked for.
        counted: nothing is counted: a graph makes the same calls every time.
        calls: the calls of modules that began.
    """

    everything = False
    counted: frozenset[str] = frozenset()

    def __init__(self, keys: Collection[str]) -> None:
        self.tensors: list[Any] = []
        self.modules = frozenset(one.path for one in map(split_name, keys) if one.side is not None)
        self.calls: list[_Called] = []
        self._keys = frozenset(keys)
        self._graph = ops.get_default_graph()
        self._events: list[Event] = []
        self._seen: Counter[str] = Counter()
        self._open: list[str] = []

    def see(self, path: str, indices: Any, shape: Any, padding: int | None) -> str | None:
        """Take down a lookup in a table of that shape; its key where it is asked for."""
        place, sizes = self._ask(indices), self._sizes(shape)

        def tell(watch: PointWatch, values: Sequence[np.ndarray]) -> None:
            rows, dim = sizes(values)
            watch.see(path, values[place], rows, dim, padding)

        self._events.append(tell)
        key = f"{path}#{self._count(path)}"
        return key if key in self._keys else None

    def expect_none(self, wrong: Any, why: str) -> None:
        """No entry of a tensor may be true, or the trace does not serve."""
        place = self._ask(wrong)

        def tell(_: PointWatch, values: Sequence[np.ndarray]) -> None:
            if values[place].any():
                raise UnfitError(why)

        self._events.append(tell)

    def enter(self, path: str, kind: str, given: Any, shape: Any, also: Sequence[str] = ()) -> str | None:
        """Take down that a module's call begins; see `PointWatch.enter`."""
        if ops.get_default_graph() is not self._graph:
            raise UntraceableError(f"the point {path!r} lies inside a loop or a branch of the graph")
        sizes = self._sizes(tf.shape(given) if given is not None else ())
        began = given is not None

        def tell(watch: PointWatch, values: Sequence[np.ndarray]) -> None:
            watch.enter(path, kind, began or None, sizes(values), also)

        self._events.append(tell)
        name = f"{path}:{INPUT}#{self._count(f'{path}:')}"
        self.calls.append(_Called(path))
        self._open.append(name.replace(f":{INPUT}#", f":{OUTPUT}#"))
        return name if began and self.wants(name) else None

    def leave(self, gave: Any, shape: Any) -> str | None:
        """Take down that the call begun last ends; see `PointWatch.leave`."""
        sizes, ended = self._sizes(tf.shape(gave) if gave is not None else ()), gave is not None
        self._events.append(lambda watch, values: _leave(watch, ended, sizes(values)))
        key = self._open.pop()
        return key if ended and self.wants(key) else None

    def count(self, path: str) -> None:
        """See `counted`."""

    def broke(self) -> None:
        """Take down that the call begun last ends by an exception."""
        self._events.append(lambda watch, values: watch.broke())
        self._open.pop()

    def wants(self, key: str) -> bool:
        """Whether the point with this key is asked for."""
        return key in self._keys

    def tell(self, watch: PointWatch, values: Sequence[np.ndarray]) -> None:
        """Tell the watch of a run what it came by.

        Args:
            watch: the run's.
            values: those of `tensors` in it.

        Raises:
            BatchError: an index outside its table.
            UnfitError: the run would have come by something else.
        """
        for event in self._events:
            event(watch, values)

    def _count(self, path: str) -> int:
        self._seen[path] += 1
        return self._seen[path] - 1

    def _ask(self, tensor: Any) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _sizes(self, shape: Any) -> Sizes:
        known = tf.get_static_value(shape) if isinstance(shape, tf.Tensor) else shape
        if known is not None:
            sizes = tuple(map(int, known))
            return lambda values: sizes
        place = self._ask(shape)
        return lambda values: tuple(map(int, values[place]))


class Tracer:
    """An op callback: TensorFlow calls it after every operation that is added to a graph, and takes what it gives in its place.

    Attributes:
        written: the resources of the variables that the graph writes to.
        handles: by the lookup's key the variable of its table; None for a computed one.
        computing: the floating-point dtypes that what depends on a point is turned into on its way.
    """

    def __init__(self, script: Script, tables: Tables, points: Points) -> None:
        self.written: list[Any] = []
        self.computing: set[Any] = set()
        self._script = script
        self._tables = tables
        self._points = points
        self._graph = ops.get_default_graph()
        self._replacing = Replacing()
        self._sources: dict[int, tuple[Any, Any]] = {}
        self._one_hots = _OneHots(script)
        self._failure: BaseException | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operations that this thread adds to graphs."""
        op_callbacks.add_op_callback(self._called)
        try:
            yield
        except Exception:
            if self._failure is not None:  # as it was raised: libraries add their own text to errors that pass through
                raise self._failure from None
            raise
        finally:
            op_callbacks.remove_op_callback(self._called)
        if self._failure is not None:  # the model may have caught it
            raise self._failure
        closed = [one for one in self._graph.get_operations() if one.type in CALLS and _gives_floating(one.outputs)]
        if closed:
            raise UntraceableError(f"the model runs a compiled function, {closed[0].name!r}, that cannot be seen into")

    def going_on(self, tensor: Any) -> Any:
        """What goes on in place of a tensor that an operation gave just now."""
        return self._replacing.going_on(tensor)

    def ran(self, graph: CutGraph) -> None:
        """Take down a saved graph that was written into this one."""
        if graph.written or not {*RANDOM, *PYTHON}.isdisjoint(node.op for node in graph.flat.nodes):
            raise UntraceableError("a saved graph that the model runs draws random numbers, writes, or runs Python")
        self.computing |= graph.casts

    def heard(self, name: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any]) -> None:
        """Take down an operation that was added just now."""
        if self._points.working:
            return
        try:
            if name in RANDOM:
                raise UntraceableError(f"the model draws random numbers ({name}), which a trace would draw otherwise")
            if name in PYTHON:
                raise UntraceableError(
                    f"the model runs Python in its graph ({name}), which may write to what a trace does not know"
                )
            if name in LOOKUPS:
                self._looked_up(name, inputs, attrs, outputs[0])
            elif name in SAME_TABLE or name in ("OneHot", "Reshape", "Transpose"):
                self._same_table(name, inputs, attrs, outputs[0])
            elif name == "ReadVariableOp":
                self._sources[id(outputs[0])] = (outputs[0], _external(inputs[0]))
            elif name in PRODUCTS:
                self._multiplied(name, inputs, attrs, outputs[0])
            elif name.startswith(WRITES) and inputs and inputs[0].dtype == tf.resource:
                self._wrote(name, inputs[0])
        except BaseException as error:
            self._failure = error
            raise

    def _called(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> Any:
        if graph is None:  # run now: a value that the graph will hold
            return None
        name = op_type if type(op_type) is str else op_type.decode()
        self.heard(name, inputs, _Attributes(attrs), outputs)
        first = self.going_on(outputs[0]) if outputs else None
        return None if not outputs or first is outputs[0] else [first, *outputs[1:]]

    def _wrote(self, name: str, resource: Any) -> None:
        handle = _external(resource)
        if handle is None:
            raise UntraceableError(f"the model writes ({name}) to what is no variable of its own")
        if any(handle is one.handle for one in shared()):
            raise UntraceableError(
                "the model draws from a random generator that models share, which is none of a trace's"
            )
        self.written.append(handle)

    def _same_table(self, name: str, inputs: Sequence[Any], attrs: Any, output: Any) -> None:
        if name == "Cast" and is_turned(inputs[0], output):
            self.computing.add(output.dtype)
        self._one_hots.follow(name, inputs, attrs, output)
        if name in SAME_TABLE:
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
                raise UntraceableError(f"the model looks rows up ({name}) in what is no variable of its own")
        else:
            shape, dtype = inputs[0].shape, inputs[0].dtype
            if dtype.is_floating and shape.rank is None:
                raise UntraceableError(f"the model looks rows up ({name}) in a tensor of unknown rank")
        if _batch_dims(attrs) or shape is None or not dtype.is_floating or len(shape) != 2:
            return
        indices = _indices(name, inputs)
        if indices is not None:
            known = isinstance(shape, tuple) or shape.is_fully_defined()
            self._take_down(handle, indices, tuple(shape) if known else tf.shape(inputs[0]), rows, inputs)

    def _multiplied(self, name: str, inputs: Sequence[Any], attrs: Any, rows: Any) -> None:
        found = self._one_hots.looked_up(name, inputs, attrs)
        if found is None:
            return
        table, (indices, wrong) = found
        self._script.expect_none(wrong, "some one-hot rows are empty")
        shape = tuple(table.shape) if table.shape.is_fully_defined() else tf.shape(table)
        self._take_down(self._handle(table), indices, shape, rows, inputs)

    def _take_down(self, handle: Any, indices: Any, shape: Any, rows: Any, inputs: Sequence[Any]) -> None:
        if rows.graph is not self._graph:
            raise UntraceableError("the model looks rows up inside a loop or a branch of the graph")
        key = self._script.see(self._tables.path(handle), indices, shape, self._tables.padding(handle))
        if key is None or not self._points.found(key, rows):
            return
        if pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([one for one in inputs if one.dtype.is_floating]):
            raise UntraceableError(f"the rows that are replaced at {key!r} were computed from those at another point")
        self._replacing.promise(rows, lambda rows: self._points.cut(key, rows))

    def _handle(self, operand: Any) -> Any:
        if operand.dtype == tf.resource:
            return _external(operand)
        tensor, handle = self._sources.get(id(operand), (None, None))
        return handle if tensor is operand else None


class _OneHots(OneHots):
    """The tensors that hold one-hot rows, with the places of the ones and whether each row is empty; these have no values yet."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def follow(self, operation: str, inputs: Any, attrs: Any, output: Any) -> None:
        """See `OneHots.follow`."""
        if operation == "OneHot":
            if makes_one_hot(len(inputs[0].shape), attrs, *map(tf.get_static_value, inputs[2:])):
                self._know(output, (inputs[0], tf.less(inputs[0], 0)))
            return
        found = self._indices(inputs[0])
        if found is None:
            return
        if operation == "Reshape":
            last = inputs[0].shape[-1]
            if last is None or output.shape.rank is None or output.shape[-1] != last:
                return
            found = tuple(tf.reshape(one, tf.shape(output)[:-1]) for one in found)
        if operation == "Transpose":
            order = tf.get_static_value(inputs[1])
            if order is None or not np.array_equal(order, range(len(order))):
                return
        self._know(output, found)


class _Attributes:
    """An operation's attributes as a graph tells them, as eager execution does: names and values in turn."""

    def __init__(self, attrs: Sequence[Any]) -> None:
        self._values = dict(zip(attrs[::2], attrs[1::2], strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def index(self, name: str) -> int:
        """The place of a name."""
        return 2 * list(self._values).index(name)

    def __getitem__(self, place: int) -> Any:
        value = list(self._values.values())[place // 2]
        return getattr(value, value.WhichOneof("value"))


def _external(tensor: Any) -> Any:
    """The resource outside of the graph that a captured one stands for; None where it is of the graph."""
    while not isinstance(tensor, ops.EagerTensor):
        outside = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        if outside is None:
            return None
        tensor = outside
    return tensor


def _indices(operation: str, operands: Sequence[Any]) -> Any:
    """The rows that are looked up in a matrix; None where the lookup is along another axis."""
    if operation == "GatherV2":
        axis = tf.get_static_value(operands[2])
        if axis is None:
            raise UntraceableError("the model looks up along an axis that is known only when it runs")
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


def _batch_dims(attrs: Any) -> int:
    return int(attrs[attrs.index("batch_dims") + 1]) if "batch_dims" in attrs else 0


def _gives_floating(outputs: Sequence[Any]) -> bool:
    return any(one.dtype.is_floating for one in outputs)


def _leave(watch: PointWatch, ended: bool, shape: tuple[int, ...]) -> None:
    watch.leave(ended or None, shape)
