"""Operators whose gradient is wrong in MXNet, written in terms of others that give the same value and whose gradient is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Handler, Operation

__all__ = ["HANDLERS"]

Proceed = Callable[[], Any]

#: MXNet counts places in float32, which holds whole numbers up to this one.
LAST_PLACE: Final = 1 << 24


def _where(operation: Operation, proceed: Proceed) -> Any:
    """The choice between a number and an array gives the gradient to the wrong entries; between arrays it does not."""
    np = import_mxnet().np
    condition, array = operation.inputs
    number = np.full((1,), operation.attributes["scalar"], dtype=array.dtype, ctx=array.ctx)
    left = operation.name == "_npi_where_lscalar"
    return np.where(condition, number, array) if left else np.where(condition, array, number)


def _deviation(operation: Operation, proceed: Proceed) -> Any:
    """Variance and standard deviation have the gradient zero: they are computed from means."""
    if operation.out is not None:
        return proceed()
    np, attributes = import_mxnet().np, operation.attributes
    array = operation.inputs[0]
    array = array.astype(attributes["dtype"]) if attributes.get("dtype") is not None else array
    axis, keepdims = attributes.get("axis"), attributes.get("keepdims", False)
    squares = np.square(array - np.mean(array, axis=axis, keepdims=True))
    mean = np.mean(squares, axis=axis, keepdims=keepdims)
    count = array.size // max(mean.size, 1)
    variance = mean * (count / (count - attributes.get("ddof", 0)))
    return np.sqrt(variance) if operation.name == "_npi_std" else variance


def _matmul(operation: Operation, proceed: Proceed) -> Any:
    """Operands of which one is repeated along an inner axis of batches give it the gradient of some of these alone."""
    if operation.out is None and min(array.ndim for array in operation.inputs) > 1:
        batches = [array.shape[:-2] for array in operation.inputs]
        shared = np.broadcast_shapes(*batches)
        spread = import_mxnet().np.broadcast_to
        operation.inputs = [
            array if batch == shared else spread(array, shared + array.shape[-2:])
            for array, batch in zip(operation.inputs, batches, strict=True)
        ]
    return proceed()


def _einsum(operation: Operation, proceed: Proceed) -> Any:
    """An index that comes twice in one operand takes a diagonal, whose gradient goes elsewhere: it is taken before."""
    subscripts = operation.attributes.get("subscripts")
    if not isinstance(subscripts, str):
        return proceed()
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:  # what comes once in all is kept, in the order of the alphabet
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if "." in left else "") + "".join(sorted(one for one in set(letters) if letters.count(one) == 1))
    if len(terms) != len(operation.inputs):
        return proceed()
    taken = [_diagonal(term, array) for term, array in zip(terms, operation.inputs, strict=True)]
    if [term for term, _ in taken] != terms:
        operation.inputs = [array for _, array in taken]
        operation.attributes["subscripts"] = ",".join(term for term, _ in taken) + "->" + right
    return proceed()


def _norm(operation: Operation, proceed: Proceed) -> Any:
    """Norms of matrices that are no sum of squares, and of all numbers but that, have wrong gradients."""
    axes, order = operation.attributes.get("axis"), operation.attributes.get("ord")
    if operation.attributes.get("flag") == -1 and (axes is None or len(axes) == 2):
        raise UnsupportedError(
            f"the model takes np.linalg.norm with ord={order} of matrices, which has a wrong gradient in MXNet: expected "
            "ord=None, or the norm in terms of other operators, such as np.abs(x).sum(axis=-1).max(axis=-1)"
        )
    return proceed()


def _diagonal(term: str, array: Any) -> tuple[str, Any]:
    """An operand and its indices, none of which comes twice."""
    for letter in dict.fromkeys(term.replace(".", "")):
        while term.count(letter) > 1:
            before, _, after = term.partition("...")
            places = [place for place, one in enumerate(before) if one == letter]
            places += [array.ndim - len(after) + place for place, one in enumerate(after) if one == letter]
            array = import_mxnet().np.diagonal(array, axis1=places[0], axis2=places[1])
            term = term.replace(letter, "", 2) + letter
    return term, array


def _extreme(operation: Operation, proceed: Proceed) -> Any:
    """Of numbers that are equal and largest, or smallest, each gets the whole gradient: here the first gets it."""
    mx, attributes, array = import_mxnet(), operation.attributes, operation.inputs[0]
    lengths = _reduced(array, attributes)
    if operation.out is not None or attributes.get("initial") is not None or not lengths:
        return proceed()
    kept, reduced = lengths
    as_numpy = isinstance(array, mx.np.ndarray)
    module, pick = (mx.np, mx.npx.pick) if as_numpy else (mx.nd, mx.nd.pick)
    with mx.autograd.pause():
        value = proceed()
    rows = module.reshape(
        module.transpose(array, axes=(*kept, *reduced)), (int(np.prod([array.shape[axis] for axis in kept])), -1)
    )
    with mx.autograd.pause():
        find = module.argmax if "max" in operation.name else module.argmin
        places = find(rows, axis=1)
    picked = module.reshape(pick(rows, places, axis=1), value.shape)
    with mx.autograd.pause():
        same = picked == value  # unlike where there is a NaN
    return module.where(same, picked, value)


def _reduced(array: Any, attributes: Any) -> tuple[list[int], list[int]] | None:
    """The axes that are kept, and those that are reduced; None where there is nothing to choose, or too much."""
    given = attributes.get("axis")
    axes: Sequence[int] = () if given is None else given if isinstance(given, (tuple, list)) else (given,)
    reduced = sorted({axis % array.ndim for axis in axes}) if axes else list(range(array.ndim))
    kept = [axis for axis in range(array.ndim) if axis not in reduced]
    if str(attributes.get("exclude", False)) in ("True", "1"):
        kept, reduced = reduced, kept
    length = int(np.prod([array.shape[axis] for axis in reduced]))
    return (kept, reduced) if 1 < length <= LAST_PLACE and array.size else None


#: By the operators' names.
HANDLERS: Final[dict[str, Handler]] = {
    "_npi_std": _deviation,
    "_npi_var": _deviation,
    "_npi_where_lscalar": _where,
    "_npi_where_rscalar": _where,
    "_npi_einsum": _einsum,
    "_npi_matmul": _matmul,
    "_npi_norm": _norm,
    **dict.fromkeys(("max", "min", "_np_max", "_np_min"), _extreme),
}
