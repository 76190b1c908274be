"""Find the points of a graph without computing its forward pass: lookups, by what they do, and calls of modules, by their marks.

Only indices are computed, and what else depends on the batch alone; arrays of the model are known by their shapes. The same walk
finds on which points each output depends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import PRODUCT, UNNAMED_TABLE, PassRecorder, Request, Way, layout_of
from embgrad_jax.graphs import SLICES, Graph, Lazily, Walker, inner_jaxprs, is_lookup
from embgrad_jax.inputs import as_given
from embgrad_jax.leaves import Leaf
from embgrad_jax.modules import Mark, Wanted, mark_of
from embgrad_jax.walk import Structure

__all__ = ["Survey", "look_into", "modules_to_mark", "survey", "survey_of"]

#: Primitives whose result is the same table as their operand.
SAME_TABLE: Final = (
    "convert_element_type",
    "copy",
    "copy_p",
    "sharding_constraint",
    "optimization_barrier",
    "device_put",
)

#: Primitives whose result has the entries of their operand in another layout.
LAYOUTS: Final = ("reshape", "transpose", "squeeze")

#: Primitives through which no gradient flows although their results are floating point.
BLOCKING: Final = ("stop_gradient", "floor", "ceil", "round", "sign", "nextafter")


#: The beginnings of the names of primitives that embgrad does not know from inside, although they have no graph.
OPAQUE: Final = ("bcoo_", "bcsr_", "ffi_call", "pure_callback", "pallas_call")

#: Ends the message where a point was not found.
HINT: Final = (
    "Modules are seen in a copy of the model alone, which call=... is given: let it call that, not the model itself; and "
    "points inside of functions with derivatives of their own are not seen"
)


class Cell:
    """A value in a survey.

    Attributes:
        compute: computes it, where it does not depend on the model's floating arrays; else None.
        leaf: the array of the model that it is; else None.
        weight: the array of the model whose entries it holds in another layout; else None.
        mask: the points and arrays on which it depends by a path that gradients take, one bit each.
        one_hot: for rows that are one-hot the cell of their indices; else None.
        counts: whether its last axis counts from 0, and it does not vary along others.
        sources: the arrays of the batch on which it depends, one bit each.
    """

    __slots__ = (
        *("__weakref__", "_value", "compute", "counts", "dtype"),
        *("leaf", "mask", "one_hot", "shape", "sources", "weight"),
    )

    def __init__(
        self, shape: Any, dtype: Any, compute: Callable[[], Any] | None = None, mask: int = 0, sources: int = 0
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.compute = compute
        self.mask = mask
        self.sources = sources
        self.leaf: Leaf | None = None
        self.weight: Leaf | None = None
        self.one_hot: Callable[[], Any] | None = None
        self.counts = False
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The value, which is computed once."""
        if self._value is None:
            assert self.compute is not None, "depends on the model's arrays"
            self._value = self.compute()
        return self._value


@dataclass
class Survey:
    """The points of a graph, as one batch reaches them.

    Attributes:
        keys: the keys of the requested points, by the numbers of the equations that reach them; at what a product multiplies by
            its weight the number is negative.
        names: the keys by the requested names.
        shapes: the shape and dtype of the value at each point, by key, in the order in which the pass reaches them.
        branches: the branches that are taken, by the equations' numbers.
        opened: the numbers of the loops that are looked into for the sake of weights that no module owns.
        products: the numbers of the products that are lookups by one-hot rows, and whether the table is the left operand.
        weighted: the numbers of the products with a weight that are points, and whether the weight is the left operand.
        depends: for each output the keys of points, and the names of arrays, on which it depends by a path that gradients take.
        leaves: for each lookup's key the array that it looks up in; None for a table that was computed.
        indices: the values on which this survey depends: indices and branches.
    """

    keys: dict[int, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    branches: dict[int, int] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    products: dict[int, bool] = field(default_factory=dict)
    weighted: dict[int, bool] = field(default_factory=dict)
    depends: list[frozenset[str]] = field(default_factory=list)
    leaves: dict[str, Leaf | None] = field(default_factory=dict)


def survey(
    graph: Graph,
    leaves: Sequence[Leaf],
    inputs: Sequence[Any],
    watch: PassRecorder,
    *,
    overridden: frozenset[str] = frozenset(),
    detached: bool = True,
    hint: str = "",
) -> Survey:
    """Return the points that a pass on a batch reaches, recorded by `watch`.

    Args:
        graph: the graph.
        leaves: the model's arrays.
        inputs: the inputs' arrays.
        watch: records the pass.
        overridden: the keys of points whose values are replaced, so that no gradient flows on to what is before them.
        detached: whether no gradient flows from the rows of a requested lookup to its table.
        hint: the end of the message where a point is not reached.

    Raises:
        BatchError: an index is outside its table.
        PointNotReachedError: a requested point is not reached.
    """
    surveyor = _Surveyor(graph, leaves, watch, overridden, detached=detached)
    values = [surveyor.leaf(leaf) for leaf in leaves] + surveyor.inputs(inputs)
    results = surveyor.walk(graph.jaxpr, values)
    survey = surveyor.survey
    if not watch.lists:
        survey.names = watch.resolve(hint)
    survey.depends = [surveyor.find_reached(result) for result in results[: graph.outputs]]
    return survey


def survey_of(
    graph: Graph, structure: Structure, inputs: Sequence[Any], watch: PassRecorder, request: Request
) -> Survey:
    """Return the points of a graph that a request reaches."""
    return survey(
        graph,
        structure.leaves,
        inputs,
        watch,
        overridden=frozenset(request.override),
        detached=not request.parameters,
        hint=HINT,
    )


class _Surveyor(Walker[Cell]):
    def __init__(
        self, graph: Graph, leaves: Sequence[Leaf], watch: PassRecorder, overridden: frozenset[str], *, detached: bool
    ) -> None:
        super().__init__(look_into(watch))
        self.survey = Survey()
        self._watch = watch
        self._overridden = overridden
        self._detached = detached
        self._recorded: list[bool] = []
        self._ids = 0
        self._bits: dict[str, int] = {}
        self._by_id = dict(zip(graph.ids, leaves, strict=True))

    def leaf(self, leaf: Leaf) -> Cell:
        """Return the cell of an array of the model."""
        floating = leaf.floating
        known = None if floating or leaf.random else lambda: leaf.array
        cell = Cell(leaf.array.shape, leaf.array.dtype, known, self._bit(f"leaf {leaf.name}") if floating else 0)
        cell.leaf = cell.weight = leaf
        return cell

    def inputs(self, values: Sequence[Any]) -> list[Cell]:
        """Return the cells of the batch's arrays, and note which of these are its ids."""
        cells = []
        for number, value in enumerate(values):
            cell = _make_cell(value)
            cell.sources = 1 << number
            if np.shape(value) == self._watch.batch.shape and np.array_equal(np.asarray(value), self._watch.batch.ids):
                self._ids |= cell.sources
            cells.append(cell)
        return cells

    def find_reached(self, cell: Cell) -> frozenset[str]:
        """Return the keys of points and the names of arrays on which a value depends."""
        return frozenset(name for name, bit in self._bits.items() if cell.mask & bit)

    def _bit(self, name: str) -> int:
        return self._bits.setdefault(name, 1 << len(self._bits))

    # The walk

    def constant(self, value: Any) -> Cell:
        """Return the cell of a constant of the graph, which may be an array of the model that a function holds."""
        leaf = self._by_id.get(id(value))
        return _make_cell(value) if leaf is None else self.leaf(leaf)

    def apply(self, equation: Any, values: Sequence[Cell]) -> list[Cell]:
        """Return cells of which nothing is computed yet."""
        name = equation.primitive.name
        self._count_inside(equation, 1)
        mask = sources = 0
        for value in values:
            mask, sources = mask | value.mask, sources | value.sources
        results = Lazily(equation, values) if all(value.compute is not None for value in values) else None
        varying = [value for value in values if value.sources] if sources else []
        if varying and all(value.compute is not None for value in varying):
            self._report_function(equation, values, varying)
        cells = []
        for number, variable in enumerate(equation.outvars):
            aval = variable.aval
            passes = name not in BLOCKING and _is_floating(aval.dtype)
            compute = None if results is None else results.result(number)
            cells.append(Cell(aval.shape, aval.dtype, compute, mask if passes else 0, sources))
        self._follow(name, equation, values, cells[0] if cells else None)
        return cells

    def _follow(self, name: str, equation: Any, values: Sequence[Cell], result: Cell | None) -> None:
        """Follow tables through casts, and one-hot rows through what makes them."""
        if result is None or not (values or name == "iota"):
            return
        if name in (*SAME_TABLE, *LAYOUTS) or (name in SLICES and _is_entry(result.shape, values[0].shape)):
            result.weight = values[0].weight
        if name in SAME_TABLE and result.shape == values[0].shape:
            result.leaf, result.one_hot, result.counts = values[0].leaf, values[0].one_hot, values[0].counts
        elif name == "iota":
            result.counts = equation.params["dimension"] == len(result.shape) - 1
        elif name in ("broadcast_in_dim", "reshape") and result.shape[-1:] == values[0].shape[-1:]:
            result.counts = values[0].counts and result.compute is not None
        elif name == "eq" and result.shape:
            for counted, other in (values, values[::-1]):
                if counted.counts and other.compute is not None and counted.shape[-1:] == result.shape[-1:]:
                    result.one_hot = _first_along_last(other)

    def mark(self, number: int, mark: Mark, value: Cell) -> Cell:
        """Record the begin or the end of a module's call."""
        watch = self._watch
        tensor = value if mark.has_tensor else None
        shape = value.shape if mark.has_tensor else ()
        if mark.side == "enter":
            recorded = watch.lists or mark.path in watch.modules
            self._recorded.append(recorded)
            if not recorded:
                if mark.path in watch.counted:
                    watch.count(mark.path)
                return value
            key = watch.enter(mark.path, mark.kind, tensor, shape, mark.also)
        else:
            if not self._recorded.pop():
                return value
            key = watch.leave(tensor, shape)
        return value if key is None else self._point(number, key, value)

    def gather(self, number: int, equation: Any, values: Sequence[Cell]) -> Cell:
        """Record a lookup of rows by known indices."""
        table, starts = values
        (result,) = self.apply(equation, values)
        if starts.compute is None:
            return result
        if table.one_hot is not None and is_lookup(equation):
            rows = table.one_hot
            result.one_hot = lambda: jnp.asarray(rows())[starts.value[..., 0]]
            return result
        if not is_lookup(equation):
            self._report_selection(equation, table, starts)
            return result
        indices = self._give_ids(starts, np.asarray(starts.value)[..., 0].reshape(result.shape[:-1]), table.shape[0])
        return self._look_up(number, table, indices, result, result.shape)

    def multiply(self, number: int, equation: Any, values: Sequence[Cell]) -> Cell:
        """Record a product of one-hot rows with a table."""
        (result,) = self.apply(equation, values)
        (contracted, batched) = equation.params["dimension_numbers"]
        for left in (False, True):
            table, rows = (values[0], values[1]) if left else (values[1], values[0])
            along_table, along_rows = (contracted[0], contracted[1]) if left else (contracted[1], contracted[0])
            is_table = table.leaf is not None and len(table.shape) == 2 and tuple(along_table) == (0,)
            if is_table and rows.one_hot is not None and tuple(along_rows) == (len(rows.shape) - 1,):
                self.survey.products[number] = left
                indices = self._give_ids(rows, np.asarray(rows.one_hot()), table.shape[0])
                return self._look_up(number, table, indices, result, (*rows.shape[:-1], table.shape[1]))
            if not table.sources and rows.one_hot is not None and tuple(along_rows) == (len(rows.shape) - 1,):
                indices = self._give_ids(rows, np.asarray(rows.one_hot()), rows.shape[-1])
                self._report(equation, table, indices, along_table[0], "product")
        for left in (False, True):
            weight, given = (values[0], values[1]) if left else (values[1], values[0])
            free = len(weight.shape) - len(contracted[0 if left else 1])
            if weight.weight is not None and not any(batched) and given.sources and _is_floating(given.dtype):
                return self._weigh(number, weight, given, result, free if left else 0)
        return result

    def _weigh(self, number: int, weight: Cell, given: Cell, result: Cell, turned: int) -> Cell:
        """Record a product with a weight that no module owns, as a call of a module of the weight's name.

        Args:
            given: what it is multiplied with.
            turned: how many axes of the product are the weight's and stand first; at the point they stand last.
        """
        leaf, watch = weight.weight, self._watch
        assert leaf is not None, "the caller has checked"
        if not leaf.alone or any(lookup.path == leaf.table for lookup in watch.lookups):
            return result
        if not (watch.lists or leaf.point in watch.modules):
            if leaf.point in watch.counted:
                watch.count(leaf.point)
            return result
        self.survey.weighted[number] = turned > 0
        key = watch.enter(leaf.point, PRODUCT, given, given.shape)
        given = given if key is None else self._point(-number, key, given)
        result = Cell(result.shape, result.dtype, None, given.mask | weight.mask, result.sources)
        shape = (*result.shape[turned:], *result.shape[:turned])
        key = watch.leave(result, shape)
        return result if key is None else self._point(number, key, result, shape)

    def slice_rows(self, number: int, equation: Any, values: Sequence[Cell]) -> Cell:
        """Record a slice of a table that takes a row for each position, as vectors of positions are often looked up."""
        (result,) = self.apply(equation, values)
        table = values[0]
        if table.leaf is None or result.shape[0] != self._watch.batch.shape[1]:
            return result
        start = equation.params["start_indices"][0] if "start_indices" in equation.params else None
        if start is None:
            if values[1].compute is None:
                return result
            start = min(max(int(values[1].value), 0), table.shape[0] - result.shape[0])
        indices = int(start) + np.arange(result.shape[0])
        return self._look_up(number, table, indices, result, result.shape, sliced=True)

    def branch(self, number: int, value: Cell, count: int) -> int | None:
        """Return the index of the branch that is taken; None if that depends on the weights."""
        if value.compute is None:
            return None
        taken = min(max(int(value.value), 0), count - 1)
        self.survey.branches[number] = taken
        return taken

    def opens(self, number: int, values: Sequence[Cell], axes: int) -> bool:
        """Return whether one of the values is a weight of no module, whose products are points."""
        watch = self._watch
        leaves = [value.weight for value in values if value.weight is not None and len(value.shape) >= axes]
        if any(leaf.alone and (watch.lists or leaf.point in watch.modules) for leaf in leaves):
            self.survey.opened.add(number)
        return number in self.survey.opened

    def step(self, value: Cell, index: int) -> Cell:
        """Return an entry, known where the whole is."""
        compute = None if value.compute is None else lambda: value.value[index]
        entry = Cell(value.shape[1:], value.dtype, compute, value.mask, value.sources)
        entry.weight = value.weight
        return entry

    def stack(self, values: Sequence[Cell], shape: tuple[int, ...], dtype: Any) -> Cell:
        """Return the array of all steps, known where each is."""
        mask = sources = 0
        for value in values:
            mask, sources = mask | value.mask, sources | value.sources
        known = all(value.compute is not None for value in values)
        compute = (lambda: jnp.stack([value.value for value in values])) if known else None
        return Cell(shape, dtype, compute, mask, sources)

    # Points

    def _give_ids(self, cell: Cell, indices: np.ndarray, rows: int) -> np.ndarray:
        """Return the batch's ids in place of the indices that JAX made of them, where these depend on the ids alone."""
        of_ids = bool(cell.sources) and not cell.sources & ~self._ids
        return as_given(indices, self._watch.batch.ids, rows) if of_ids else indices

    def _look_up(
        self,
        number: int,
        table: Cell,
        indices: np.ndarray,
        result: Cell,
        shape: tuple[int, ...],
        *,
        sliced: bool = False,
    ) -> Cell:
        path = UNNAMED_TABLE if table.leaf is None else table.leaf.table
        if table.leaf is None and layout_of(indices, self._watch.batch.ids) is None:
            return result
        padding = None if table.leaf is None else table.leaf.padding
        key = self._watch.see(path, indices, table.shape[0], table.shape[1], padding, sliced=sliced)
        self._watch.record_output(result)
        if key is None:
            return result
        self.survey.leaves[key] = table.leaf
        if self._detached:
            result.mask = 0
        return self._point(number, key, result, shape)

    def _point(self, number: int, key: str, value: Cell, shape: tuple[int, ...] | None = None) -> Cell:
        self.survey.keys[number] = key
        self.survey.shapes[key] = (value.shape if shape is None else shape, value.dtype)
        mask = 0 if key in self._overridden else value.mask
        return Cell(value.shape, value.dtype, None, mask | self._bit(key), value.sources)

    # Other uses of the ids

    def _report_selection(self, equation: Any, table: Cell, starts: Cell) -> None:
        """Report a gather of more than one number for each index from an array that does not depend on the batch."""
        size, count = self._watch.batch.ids.size, math.prod(starts.shape[:-1])
        if table.sources or not starts.sources or count == 0 or count % size:
            return
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        if math.prod(sizes) * (count // size) == 1:
            return
        for place, axis in enumerate(numbers.start_index_map):
            if sizes[axis] == 1:
                indices = self._give_ids(starts, np.asarray(starts.value)[..., place], table.shape[axis])
                self._report(equation, table, indices, axis)

    def _report_function(self, equation: Any, values: Sequence[Cell], varying: Sequence[Cell]) -> None:
        """Report a function that is not walked and takes the ids, arrays of the model, and nothing else of the batch."""
        if not (equation.primitive.name.startswith(OPAQUE) or inner_jaxprs(equation)):
            return
        ids = self._watch.batch.ids
        matrices = [value for value in values if not value.sources and value.mask and len(value.shape) > 1]
        if not matrices or any(_is_floating(value.dtype) for value in varying):
            return
        for value in varying:
            # a sparse matrix has its rows and columns side by side
            if math.prod(value.shape) in (ids.size, 2 * ids.size):
                indices = np.asarray(value.value)
                indices = indices if indices.size == ids.size else indices[..., -1]
                self._report(equation, matrices[0], self._give_ids(value, indices, matrices[0].shape[0]), 0, "function")

    def _report(self, equation: Any, array: Cell, indices: np.ndarray, axis: int, way: Way = "selection") -> None:
        path = UNNAMED_TABLE if array.leaf is None else array.leaf.table
        name, dtype = equation.primitive.name, str(array.dtype)
        self._watch.see_other(name, path, indices, array.shape, dtype, axis=axis, way=way)

    def _count_inside(self, equation: Any, times: int) -> None:
        """Count the calls in graphs that are not walked: loops without points, and functions with own derivatives."""
        if not self._watch.counted:
            return
        times *= equation.params["length"] if equation.primitive.name == "scan" else 1
        for jaxpr in inner_jaxprs(equation):
            for inner in jaxpr.eqns:
                mark = mark_of(inner.params["name"]) if inner.primitive.name == "name" else None
                if mark is not None and mark.side == "enter" and mark.path in self._watch.counted:
                    for _ in range(times):
                        self._watch.count(mark.path, in_order=False)
                self._count_inside(inner, times)


def _make_cell(value: Any) -> Cell:
    """Return the cell of an array that is no array of the model."""
    # A typed key of `jax.random` has a dtype, and cannot be converted to NumPy.
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    return Cell(np.shape(value), dtype, lambda: value)


def look_into(watch: PassRecorder) -> Callable[[str], bool]:
    """Return which modules' calls are looked for inside of loops: those that are recorded."""
    return lambda path: watch.lists or path in watch.modules


def modules_to_mark(watch: PassRecorder) -> Wanted:
    """Return the modules whose calls have to be marked in a graph: those that are recorded or counted."""
    return Wanted(None if watch.everything else watch.modules | watch.counted)


def _is_entry(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether a slice has one entry of one axis, and all of the others."""
    cut = [size for size, old in zip(shape, whole, strict=True) if size != old]
    return len(whole) > 2 and cut == [1]


def _first_along_last(cell: Cell) -> Callable[[], Any]:
    return lambda: cell.value[..., 0]


@functools.cache
def _is_floating(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating))
