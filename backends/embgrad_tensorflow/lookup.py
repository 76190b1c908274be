"""Find the lookups: watch every operation of an eager forward pass and keep hold of the rows that are asked for."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import gen_array_ops, gen_resource_variable_ops, handle_data_util

from embgrad.backend import PassRecorder, Way
from embgrad.errors import UnsupportedError
from embgrad.toolkit import Interception
from embgrad_tensorflow.onehot import ByTensor, OneHots, attribute, is_identity
from embgrad_tensorflow.operations import (
    KEEPING,
    LOOKUPS,
    MAKING,
    PRODUCTS,
    READ,
    SAME_TABLE,
    SLICES,
    SPARSE_PRODUCT,
    properties_of,
    writes_of,
)
from embgrad_tensorflow.products import PARTS, READING, Products
from embgrad_tensorflow.slices import first_row
from embgrad_tensorflow.state import depth
from embgrad_tensorflow.walk import Tables, handle_of

__all__ = ["Replacing", "Watcher", "is_cast_below_point", "table_of"]

#: TensorFlow's functions that run lookups.
FUNCTIONS: Final[Mapping[str, Interception]] = {
    "GatherV2": Interception(lambda: gen_array_ops, "gather_v2"),
    "Gather": Interception(lambda: gen_array_ops, "gather"),
    "GatherNd": Interception(lambda: gen_array_ops, "gather_nd"),
    "ResourceGather": Interception(lambda: gen_resource_variable_ops, "resource_gather"),
    "ResourceGatherNd": Interception(lambda: gen_resource_variable_ops, "resource_gather_nd"),
}

#: The messages with the number of a table's rows: TensorFlow's of `tf.raw_ops`, which are not intercepted, and that of the
#: assertion by which Hugging Face's models check ids before the lookup.
BOUND: Final = re.compile(r"(?:is not in \[0, |input dimension \()(\d+)\)")

#: Called by `tf.custom_gradient`, which records another gradient for an identity's result.
_recorded: Final = Interception(lambda: record, "record_operation")

#: It would contract several factors in an order of its own.
_einsum: Final = Interception(lambda: tf, "einsum")


class Watcher:
    """An op callback that records lookups: TensorFlow calls it after each eager operation, with the operation's own outputs.

    Marking such a tensor as watched is all that reading takes: no layer, no function and no tensor is replaced, so nothing
    that hangs on them (a Keras mask, a trace) can be lost.

    Attributes:
        points: the changes at the lookups of a request, such as `tap.Taps`; None where there are none.
        handles: by the lookup's key the variable of its table; None for a computed one.
        graphs: the names of the compiled functions that ran, into which a callback cannot see, and that give what has a
            gradient.
        closed: why such functions could not be run openly.
        written: the resources of the variables that were written to; None stands for unknown ones.
        computing: the floating-point dtypes into which what depends on a point is cast.
        recomputed: whether a part of the model ran unrecorded, to be run again in the pullback (`tf.recompute_grad`).
    """

    def __init__(
        self, watch: PassRecorder, tables: Tables, points: Any = None, replacing: Replacing | None = None
    ) -> None:
        self.watch = watch
        self.points = points
        self.handles: dict[str, Any] = {}
        self.graphs: list[str] = []
        self.closed: list[str] = []
        self.written: list[Any] = []
        self.recomputed = False
        self.computing: set[Any] = set()
        self._failure: BaseException | None = None
        self._failed: list[tuple[str, Sequence[Any]]] = []
        self.tables = tables
        self._replacing = Replacing() if replacing is None else replacing
        self._depth = depth()  # a nested pass is not a part of this one
        self._reads: ByTensor[Any] = ByTensor()
        self._handlers: dict[str, Callable[..., None]] = dict.fromkeys(LOOKUPS, self._look_up)
        self._handlers |= dict.fromkeys(SLICES, self._slice)
        self._handlers |= dict.fromkeys(SAME_TABLE, self._same_table)
        self._handlers[READ] = self._read
        self._one_hots = OneHots()
        self._handlers |= dict.fromkeys({*MAKING, *KEEPING} - {*SAME_TABLE}, self._one_hots.follow)
        self._handlers |= dict.fromkeys(PRODUCTS, self._multiply)
        self._handlers[SPARSE_PRODUCT] = self._multiply_sparse
        weighs = points is not None and watch.needs_modules
        self._products = Products(watch, tables, points.replace, self._handle, self._one_hots) if weighs else None

    @contextlib.contextmanager
    def watching(self, *, is_graph: bool = False) -> Iterator[None]:
        """Watch the operations of this thread, and turn a lookup outside its table into a BatchError.

        Args:
            is_graph: whether a graph runs and no Python of the model, so that `perform` runs all lookups.
        """
        op_callbacks.add_op_callback(self._observe)
        try:
            with contextlib.nullcontext() if is_graph else self._intercept():
                yield
        except BaseException as error:
            self._raise_failure()  # unchanged: Keras adds text to errors that pass through a layer
            if any(isinstance(cause, tf.errors.InvalidArgumentError) for cause in _chain(error)):
                for operation, operands in self._failed:
                    self._see(operation, operands)  # raises BatchError for an index outside
                self._expect_inside(map(int, BOUND.findall(str(error))))
            raise
        finally:
            op_callbacks.remove_op_callback(self._observe)
        self._raise_failure()  # the model may have caught it
        self._replacing.expect_done()

    @contextlib.contextmanager
    def _intercept(self) -> Iterator[None]:
        """Run the lookups of Python's code by `perform`."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_recorded.by(self._forget_tables))
            for operation, interception in FUNCTIONS.items():
                stack.enter_context(interception.by(functools.partial(self._function, operation)))
            if self._products is not None:
                stack.enter_context(_einsum.by(self._products.add_up))
            if self._products is not None or (self.points is not None and self.points.replaces):
                stack.enter_context(self._replacing.active(self._run_operation))
            yield

    def perform(self, operation: str, operands: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Return what goes on in place of the result of an operation, which `run` gives.

        A callback comes after an operation, so that it does not see a lookup that fails.
        """
        try:
            return self._replacing.going_on(run())
        except tf.errors.InvalidArgumentError:
            if operation in LOOKUPS and self._is_active() and tf.executing_eagerly():
                self._failed.append((operation, operands))
            raise

    def _run_operation(self, run: Callable[..., Any], *args: Any) -> Any:
        """Run an operation as TensorFlow's function does, and record a product with a weight of no module."""
        products = self._products if args[1] in READING else None  # nearly all operations are others
        if products is None or not self._is_active() or not tf.executing_eagerly():
            return run(*args)
        return products.run(run, *args)

    def _function(self, operation: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a lookup in place of TensorFlow's function."""
        run = functools.partial(original, *args, **kwargs)
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        source, *others = [arguments[name] for name in LOOKUPS[operation]]
        handle = None if isinstance(source, tf.Tensor) else handle_of(source)
        operands = [source if handle is None else handle, *others]
        return run() if arguments.get("batch_dims") else self.perform(operation, operands, run)

    def _expect_inside(self, lengths: Iterable[int]) -> None:
        """Raise BatchError where an id of the batch is outside a table of one of these lengths."""
        ids = self.watch.batch.ids
        for length in lengths:
            tables = self.tables.with_rows(length)
            if tables and ids.max() >= length:
                handle = handle_of(tables[0]) if len(tables) == 1 else None
                self._record_lookup(handle, ids, tuple(map(int, tables[0].shape)), rows=None)

    def _is_active(self) -> bool:
        return depth() == self._depth and not (self.points is not None and self.points.working)

    def _observe(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:  # a function is being traced
            return
        if not self._is_active():
            return
        name, runs_graph, _ = properties_of[op_type]
        # `tf.stop_gradient` and compiled functions stop the tapes for a moment themselves
        if not (self.recomputed or name == "StopGradient" or runs_graph):
            self.recomputed = pywrap_tfe.TFE_Py_TapeSetIsStopped()
        try:
            self._replacing.expect_done(outputs)
            if self._products is not None and name in PARTS:
                self._products.follow(inputs, outputs)
            handler = self._handlers.get(name)
            if handler is not None:
                handler(name, inputs, attrs, outputs)
            else:
                if runs_graph and any(output.dtype.is_floating for output in outputs):
                    self.graphs.append(name)
                    self._report_graph(name, inputs)
                self.written.extend(writes_of(op_type, inputs))
        except BaseException as error:
            self._failure = error
            raise

    def _raise_failure(self) -> None:
        failure = self._failure or (None if self.points is None else self.points.failure)
        if failure is not None:
            raise failure from None

    def _read(self, _: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        self._reads[outputs[0]] = inputs[0]

    def _same_table(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if name == "Cast" and is_cast_below_point(inputs[0], outputs[0]):
            self.computing.add(outputs[0].dtype)
        self._one_hots.follow(name, inputs, attrs, outputs)
        handle = self._handle(inputs[0])
        if handle is not None:
            self._reads[outputs[0]] = handle

    def _look_up(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if attribute(attrs, "batch_dims"):
            return
        self._see(name, inputs, outputs[0])

    def _slice(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Record a slice of a table that takes a row for each position, as position embeddings are often looked up."""
        handle, rows = self._handle(inputs[0]), outputs[0]
        if handle is None or not rows.dtype.is_floating or rows.shape[0] != self.watch.batch.shape[1]:
            return
        first = first_row(name, inputs, attrs, rows)
        if first is not None:
            indices = int(first) + np.arange(rows.shape[0])
            self._record_lookup(handle, indices, tuple(map(int, inputs[0].shape)), rows, sliced=True)

    def _multiply(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Return the output of an operation; a product of one-hot rows with a table is a lookup, too."""
        product = self._one_hots.look_up(name, inputs, attrs)
        if product is not None:
            table, indices = product
            self._record_lookup(self._handle(table), indices, tuple(map(int, table.shape)), outputs[0])
            return
        for rows, table in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
            indices = self._one_hots.indices(rows)
            if indices is not None and table.shape.rank == 2 and rows.shape[-1] in table.shape:
                self._report_other(name, table, indices, tuple(table.shape).index(rows.shape[-1]), "product")

    def _multiply_sparse(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Report a product of sparse one-hot rows with a table."""
        places, values, _, table = inputs
        if table.shape.rank == 2 and bool((np.asarray(values) == 1).all()):
            column = 0 if attribute(attrs, "adjoint_a") else 1
            self._report_other(name, table, np.asarray(places)[:, column], 0, "product")

    def _report_other(self, operation: str, array: Any, indices: np.ndarray, axis: int, way: Way = "selection") -> None:
        """Report that the ids select entries of an array in a way that is no lookup with a gradient.

        An array that depends on a point, with an entry for each example, is such as logits, of which those of the ids are taken.
        """
        handle, (shape, dtype) = self._handle(array), table_of(array)
        if not shape:
            return
        below = handle is None and dtype.is_floating and shape[0] == len(self.watch.batch)
        if below and _is_below_point(array):
            return
        self.watch.see_other(operation, self.tables.path(handle), indices, shape, dtype.name, axis=axis, way=way)

    def _report_graph(self, name: str, inputs: Sequence[Any]) -> None:
        """Report a graph whose operations are not seen, and that takes the ids and a matrix, in which it may look them up."""
        kinds = [(value, *table_of(value)) for value in inputs]
        matrix = next((value for value, shape, dtype in kinds if len(shape or ()) > 1 and dtype.is_floating), None)
        for value, shape, dtype in kinds if matrix is not None else ():
            if dtype.is_integer and math.prod(shape or ()) == self.watch.batch.ids.size:
                self._report_other(name, matrix, np.asarray(value), 0, "function")

    def _see(self, operation: str, operands: Sequence[Any], rows: Any = None) -> None:
        """Record the operation if it looks up rows of a matrix, also if it failed and returned no rows."""
        shape, dtype = table_of(operands[0])
        if not shape:
            return
        indices = _indices(operation, operands, len(shape))
        if rows is not None and (indices is None or len(shape) != 2 or not dtype.is_floating):
            axis = int(operands[2]) if operation == "GatherV2" else 0
            selected = _select(operation, operands)
            if selected is not None:
                self._report_other(operation, operands[0], selected, axis)
        elif (
            indices is not None and rows is not None and self._handle(operands[0]) is None and is_identity(operands[0])
        ):
            self._report_other(f"{operation}; the rows are one-hot: use tf.one_hot", operands[0], indices, 0)
        elif indices is not None:
            self._record_lookup(self._handle(operands[0]), indices, shape, rows)

    def _record_lookup(
        self, handle: Any, indices: np.ndarray, shape: tuple[int, ...], rows: Any, *, sliced: bool = False
    ) -> None:
        path = self.tables.path(handle)
        key = self.watch.see(path, indices, shape[0], shape[-1], self.tables.padding(handle), sliced=sliced)
        if rows is None:
            return
        self.watch.record_output(rows)
        lookup = self.watch.lookups[-1]
        self.handles[lookup.key] = handle
        if self.watch.everything and lookup.layout is not None:
            key = lookup.key  # as in a pass that requests it
        points = self.points
        if key is not None and points is not None and points.record_rows(key, rows):
            self._replacing.promise(rows, functools.partial(self._replace_rows, points, key))

    def _replace_rows(self, points: Any, key: str, rows: Any) -> Any:
        new = points.replace_rows(key, rows)
        self.watch.replace_tensor(rows, new)
        return new

    def _handle(self, operand: Any) -> Any:
        """Return the variable that an operand is, or was read from; None where it was computed."""
        if getattr(operand, "dtype", None) == tf.resource:
            return operand
        return self._reads.get(operand)

    def _forget_tables(self, original: Callable[..., Any], name: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Forget tables that get a gradient other than their operation's: a lookup in such a table is not in its variable."""
        if name != READ:  # TensorFlow records the reading of a variable itself
            for output in outputs:
                self._reads.forget(output)
        return original(name, outputs, *args, **kwargs)


def table_of(source: Any) -> tuple[tuple[int, ...] | None, Any]:
    """Return the shape of what is looked up in, rows first, and its dtype; None where that is not known."""
    shape, dtype = getattr(source, "shape", None), getattr(source, "dtype", None)
    if dtype == tf.resource:
        data = handle_data_util.get_handle_data(source)
        if data is None or not data.is_set:
            return None, tf.resource
        shape = tf.TensorShape(data.shape_and_type[0].shape)
        dtype = tf.as_dtype(data.shape_and_type[0].dtype)
    if shape is None or None in tuple(shape):
        return None, dtype
    return tuple(map(int, shape)), tf.as_dtype(dtype)


def _indices(operation: str, operands: Sequence[Any], axes: int) -> np.ndarray | None:
    """Return the rows that are looked up in a table of so many axes; None where the lookup is along another axis."""
    if operation == "GatherV2" and int(operands[2]) not in (0, -axes):
        return None
    return _select(operation, operands)


def _select(operation: str, operands: Sequence[Any]) -> np.ndarray | None:
    """Return the indices along one axis; None where there are several axes, or the indices are no whole numbers."""
    indices = np.asarray(operands[1])
    if operation.endswith("Nd"):
        if indices.ndim == 0 or indices.shape[-1] != 1:
            return None
        indices = indices[..., 0]
    return indices if indices.dtype.kind in "iu" else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those from which it was raised."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# Replacing results of operations

#: TensorFlow's functions run operations through this, `tf.raw_ops` included.
_fast_path: Final = Interception(lambda: pywrap_tfe, "TFE_Py_FastPathExecute")

#: `tf.slice` runs its operation in another way where it is given Python's numbers, as Keras gives it.
_slice: Final = Interception(lambda: gen_array_ops, "_slice")


class Replacing:
    """The replacement of a tensor that an op callback has seen, where the operation returns it."""

    def __init__(self) -> None:
        self._due: tuple[Any, Callable[[Any], Any]] | None = None
        self._runs: list[Callable[..., Any]] = []

    def promise(self, tensor: Any, make: Callable[[Any], Any]) -> None:
        """Have the result of `make` go on in place of a tensor that an operation has just given, or of an earlier result."""
        earlier = self._due
        if earlier is None or earlier[0] is not tensor:
            self._due = (tensor, make)
        else:
            self._due = (tensor, lambda given: make(earlier[1](given)))

    def going_on(self, result: Any) -> Any:
        """Return the replacement of an operation's result, or the result."""
        if self._due is None or result is not self._due[0]:
            return result
        (tensor, make), self._due = self._due, None
        return make(tensor)

    def expect_done(self, outputs: Sequence[Any] = ()) -> None:
        """Refuse to go on where a tensor went on that another was to take the place of.

        Args:
            outputs: what the operation has given that another callback may have seen already.
        """
        if self._due is not None and not any(output is self._due[0] for output in outputs):
            raise UnsupportedError(
                "the model makes a lookup in a way in which its rows cannot be replaced. Look up with tf.gather, "
                "tf.nn.embedding_lookup, an Embedding layer or one of tf.raw_ops, or omit override, add and edit there"
            )

    @contextlib.contextmanager
    def active(self, run: Callable[..., Any]) -> Iterator[None]:
        """Replace what this thread's operations give.

        Args:
            run: called with TensorFlow's function that runs operations, and its arguments; so is that of each open context.
        """

        def through(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.going_on(original(*args, **kwargs))

        def through_all(original: Callable[..., Any], *args: Any) -> Any:
            for inner in self._runs:
                original = functools.partial(inner, original)
            return self.going_on(original(*args))

        self._runs.append(run)
        try:
            with _fast_path.by(through_all), _slice.by(through):
                yield
        finally:
            self._runs.remove(run)


def is_cast_below_point(tensor: Any, cast: Any) -> bool:
    """Return whether a tensor that was just cast depends on a point, and goes on as a floating-point number."""
    if not (tensor.dtype.is_floating and cast.dtype.is_floating):
        return False
    return _is_below_point(tensor)


def _is_below_point(tensor: Any) -> bool:
    """Return whether a tensor depends on a point."""
    return bool(pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([tensor]))
