"""The graph of a block, kept from call to call: makes its lookups, and runs what is left of it as one operator."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embgrad.bounded import Bounded
from embgrad_gluon.graph import Body, tape_name
from embgrad_gluon.graphsoftmax import Masked
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import invoke, unwatched
from embgrad_gluon.symbolic import literal
from embgrad_gluon.tracing import OWN, LookedUp, Traced, UntraceableError, parameters_below

if TYPE_CHECKING:
    from embgrad_gluon.graphs import Graphs

__all__ = ["Kept"]

#: Small graphs are no exception: MXNet would record their operators one by one.
FLAGS: Final = [("inline_limit", 0)]

#: For how many shapes of the arguments it is remembered that they were compared.
SHAPES: Final = 256


class Kept:
    """A block's graph.

    It holds the block's parameters, and not the block.

    Attributes:
        out_format: how Gluon puts its outputs together.
        apart: what the block's Python does otherwise; None as long as nothing is seen of it.
        compared: for which arguments the two were compared.
        pulled: whether their gradients were.
    """

    def __init__(self, block: Any, made: Traced, names: Sequence[str | None]) -> None:
        mx = import_mxnet()
        parameters = parameters_below(block)
        self.out_format = made.out_format
        self.apart: str | None = None
        self.compared: Bounded[bool] = Bounded(SHAPES)
        self.pulled = False
        self._names = names
        self._made = made
        self._lookups = [_Lookup(lookup) for lookup in made.lookups]
        self._symbol = mx.sym.Group(made.outputs)
        self._body = _Body(self._symbol, parameters)
        self._masked = Masked(self._symbol, OWN)
        self._quick: dict[tuple[str, ...], _Body] = {}
        self._indices = {one.rows: _Part(one.made.indices, parameters) for one in self._lookups if one.indices is None}
        used = {name for part in (self._body, *self._indices.values()) for name in part.names}
        used |= {lookup.table for lookup in made.lookups}
        self._parameters = {name: parameter for name, parameter in parameters.items() if name in used}
        self._dtypes: dict[Hashable, dict[str, Any]] = {}

    def __call__(self, flat: Sequence[Any], graphs: Graphs) -> list[Any]:
        """What it gives for these arguments.

        Raises:
            DeferredInitializationError: a parameter has no value yet; nothing was looked up.
        """
        values = self._values(flat)
        graphs.began = True
        body, outputs, zeros = self._outputs(values)
        graphs.also.extend(zeros.values())
        name = tape_name(outputs[0])
        if name is not None:
            graphs.bodies[name] = body.reach
        return outputs

    def outputs(self, flat: Sequence[Any]) -> list[Any]:
        """What it gives for these arguments, which nobody watches.

        Raises:
            DeferredInitializationError: a parameter has no value yet.
        """
        values = self._values(flat)
        with unwatched():
            return self._outputs(values)[1]

    def _values(self, flat: Sequence[Any]) -> dict[str, Any]:
        """By name what is known before anything is looked up."""
        values = {name: parameter.data() for name, parameter in self._parameters.items()}
        return values | {name: array for name, array in zip(self._names, flat, strict=True) if name is not None}

    def _outputs(self, values: dict[str, Any]) -> tuple[_Body, list[Any], dict[str, Any]]:
        """What gives its outputs, these, and the zeros whose gradients must be asked for."""
        for lookup in self._lookups:
            values[lookup.rows] = self._look_up(lookup, values)
        zeros = self._zeros(values)
        body, taken = self._quickest({**values, **zeros})
        with _as_in_training() if self._made.pooled else contextlib.nullcontext():
            return body, body(taken), zeros

    def _quickest(self, values: Mapping[str, Any]) -> tuple[_Body, Mapping[str, Any]]:
        """What takes the least time for what the graph takes, and what it takes itself."""
        masks = self._masked.masks(values)
        if masks is None:
            return self._body, values
        key = tuple(masks)
        if key not in self._quick:
            self._quick[key] = _Body(self._masked.symbol(key), self._parameters)
        return self._quick[key], {**values, **masks}

    def _look_up(self, lookup: _Lookup, values: Mapping[str, Any]) -> Any:
        """Its rows, by the operator that it is, which is watched."""
        if lookup.indices is None:  # they may be counted along what was looked up before, or depend on it
            with import_mxnet().autograd.pause():
                indices = self._indices[lookup.rows](values)[0]
        else:
            indices = values[lookup.indices]
        name, table = lookup.made.name, values[lookup.made.table]
        inputs = [indices, table] if "Embedding" in name else [table, indices]
        return invoke(name, inputs, dict(lookup.attributes), as_numpy=False)[0]

    def _zeros(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if not self._made.zeros:
            return {}
        mx, zeros = import_mxnet(), {}
        dtypes = self._infer_dtypes(values)
        with mx.autograd.pause():
            for name, axes in self._made.zeros.items():
                context = mx.current_context()
                zeros[name] = mx.nd.zeros((1,) * axes, ctx=context, dtype=dtypes[name])
                zeros[name].attach_grad()
        return zeros

    def _infer_dtypes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        names = self._symbol.list_arguments()
        given = {name: np.dtype(values[name].dtype) for name in names if name in values}
        key = tuple(given.values())
        if key not in self._dtypes:
            self._dtypes[key] = dict(zip(names, self._symbol.infer_type(**given)[0], strict=True))
        return self._dtypes[key]


class _Lookup:
    """A lookup that is made before the graph runs.

    Args:
        made: as it was cut out.

    Attributes:
        made: the same.
        rows: the name of the variable that stands for what it gives.
        attributes: with which its operator is called.
        indices: the name of the variable that they are; None where they are computed.
    """

    def __init__(self, made: LookedUp) -> None:
        self.made = made
        self.rows = made.rows
        self.attributes = {key: literal(text) for key, text in made.attributes.items()}
        self.indices: str | None = made.indices.list_outputs()[0] if made.indices.get_children() is None else None


class _Part:
    """A symbol that runs as one operator.

    Args:
        symbol: what it gives.
        parameters: by name those that it may take.

    Attributes:
        names: of what it takes, in order.
    """

    def __init__(self, symbol: Any, parameters: Mapping[str, Any]) -> None:
        self.names: list[str] = symbol.list_inputs()
        unknown = [name for name in self.names if not name.startswith(OWN) and name not in parameters]
        if unknown:
            raise UntraceableError(f"its graph has the variable {unknown[0]!r}, which is none of its parameters")
        self._operator = import_mxnet().nd.CachedOp(symbol, FLAGS)

    def __call__(self, values: Mapping[str, Any]) -> list[Any]:
        """What it gives."""
        outputs = self._operator(*[values[name] for name in self.names])
        return outputs if isinstance(outputs, list) else [outputs]


class _Body(_Part):
    """A graph without its lookups.

    Args:
        symbol: what it gives.
        parameters: by name those that it may take.

    Attributes:
        reach: which of its inputs a gradient comes to.
    """

    def __init__(self, symbol: Any, parameters: Mapping[str, Any]) -> None:
        super().__init__(symbol, parameters)
        self.reach = Body(symbol, [name for name in self.names if name.startswith(OWN)])


def _as_in_training() -> Any:
    return import_mxnet().autograd.train_mode()
