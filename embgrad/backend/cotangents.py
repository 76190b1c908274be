"""What is pulled back: the objective's answer to what the model returned, the same in every framework."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from embgrad.backend import NativeObjective, PointValues, Request, TableRest
from embgrad.common.arrays import owned
from embgrad.common.tolerance import coarsest
from embgrad.errors import ObjectiveError, OutputError, listed
from embgrad.forward.points import Lookup
from embgrad.forward.recorder import PointWatch
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.outputs import choose_output, name_outputs

__all__ = [
    *("Answer", "Cotangents", "Tensors", "answer", "answered", "compute_dtype", "native_answer", "values_at"),
    "whole_cotangents",
]

#: One set of cotangents: native tensors, each with its cotangent, float64 and of its shape.
Cotangents = Sequence[tuple[Any, np.ndarray]]

#: The dtypes that have a gradient.
FLOATING: Final = ("bfloat16", "float16", "float32", "float64")


class Tensors(Protocol):
    """How a framework's tensors are looked at.

    Attributes:
        kind: what one is called in messages, such as "a torch.Tensor".
        scalars: the shapes that a single number may have.
    """

    kind: str
    scalars: tuple[tuple[int, ...], ...]

    def is_tensor(self, value: object) -> bool:
        """Whether it is one of the framework's tensors."""
        ...

    def dtype(self, tensor: Any) -> str:
        """The dtype's name, as NumPy would spell it."""
        ...

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """The values in memory of their own; half precision widened to float32."""
        ...

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """The rows `tensor[examples, positions]`, computed so that they can be pulled back."""
        ...


@dataclass(frozen=True)
class Answer:
    """What to pull back.

    Attributes:
        sets: one or several sets of cotangents.
        objective: the values of a native objective, (example,) or (); else None.
    """

    sets: tuple[Cotangents, ...]
    objective: np.ndarray | None = None


def answered(
    returned: Any, batch: TokenBatch, request: Request, tensors: Tensors, positional: Sequence[str] = ()
) -> Answer:
    """Return the cotangents that the request's objective gives for a model's return value, in NumPy or natively.

    Args:
        returned: the model's return value.
        batch: the batch that the model ran on.
        request: has the objective.
        tensors: reads the framework's tensors.
        positional: the names of the entries of a returned sequence, where the backend knows them.

    Raises:
        OutputError: an output is missing or has no gradient.
        ObjectiveError: a native objective did not return one number an example, or one for the batch.
    """
    if isinstance(request.respond, NativeObjective):
        value = request.respond.function(returned)
        return native_answer(value, request.respond, batch, tensors, several=request.several)
    return answer(returned, request, tensors, positional)


def whole_cotangents(request: Request, values: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Ask a request's objective in NumPy about outputs that crossed as a whole, as those of a graph do.

    Args:
        request: with a `respond` in NumPy.
        values: the outputs, in the order of `request.outputs`.

    Returns:
        For each output its cotangents, with an axis of sets first (a single set, of zeros where there is none, unless the request
        takes several), and the number of sets that the objective gave.
    """
    assert not isinstance(request.respond, NativeObjective)
    named = dict(zip(request.outputs, values, strict=True))
    places = {name: request.reads(name, value.shape) for name, value in named.items()}
    read = {name: owned(value if places[name] is None else value[places[name]]) for name, value in named.items()}
    sets = request.respond(read)
    cotangents = []
    for name, value in named.items():
        rows = places[name]
        stacked = np.zeros((len(sets) if request.several else 1, *value.shape), value.dtype)
        for number, cotangent in enumerate(sets):
            stacked[number if rows is None else (number, *rows)] = cotangent[name]
        cotangents.append(stacked)
    return cotangents, len(sets)


def answer(returned: Any, request: Request, tensors: Tensors, positional: Sequence[str] = ()) -> Answer:
    """The cotangents of the outputs that the request's callback reads; only these cross to NumPy.

    Args:
        returned: what the model returned.
        request: with a `respond` in NumPy.
        tensors: how the framework's tensors are looked at.
        positional: the names of the entries of a returned sequence, where the backend knows them.

    Raises:
        OutputError: there is no such output, or it has no gradient.
    """
    assert not isinstance(request.respond, NativeObjective)
    named = name_outputs(returned, tensors.is_tensor, positional)
    natives = {wanted: choose_output(named, wanted) for wanted in request.outputs}
    for native in natives.values():
        dtype = tensors.dtype(named[native])
        if dtype not in FLOATING:
            floating = [name for name, tensor in named.items() if tensors.dtype(tensor) in FLOATING]
            raise OutputError(
                f"the output {native!r} is of dtype {dtype}: expected floating point, which alone has a gradient; name "
                f"another with output=..., of {listed(floating)}"
            )
    read = {wanted: _rows(wanted, named[native], request, tensors) for wanted, native in natives.items()}
    sets = request.respond({wanted: tensors.to_numpy(tensor) for wanted, tensor in read.items()})
    return Answer(tuple([(read[wanted], one) for wanted, one in cotangents.items()] for cotangents in sets))


def _rows(name: str | None, output: Any, request: Request, tensors: Tensors) -> Any:
    """What of an output crosses to NumPy."""
    places = request.reads(name, tuple(map(int, output.shape)))
    return output if places is None else tensors.rows(output, *places)


def native_answer(
    value: Any, objective: NativeObjective, batch: TokenBatch, tensors: Tensors, *, several: bool = False
) -> Answer:
    """The cotangent of what the user's own objective gave: ones; with `several` one set for each example.

    Raises:
        ObjectiveError: it is not one floating-point number an example, or for the batch.
    """
    shapes = tensors.scalars if objective.scalar else ((len(batch),),)
    what = "one number for the batch" if objective.scalar else "one number an example"
    expected = f"expected {tensors.kind} of floating point and shape {' or '.join(map(str, shapes))}, {what}"
    if not tensors.is_tensor(value):
        raise ObjectiveError(f"the objective function gave {type(value).__name__}: {expected}")
    shape, dtype = tuple(value.shape), tensors.dtype(value)
    if shape not in shapes or dtype not in FLOATING:
        raise ObjectiveError(
            f"the objective function gave a tensor of shape {shape} and dtype {dtype}: {expected}{_hint(objective, shape)}"
        )
    numbers = tensors.to_numpy(value)
    cotangents = np.eye(len(batch)) if several else [np.ones(shape)]
    sets = tuple([(value, one)] for one in cotangents)
    return Answer(sets, numbers.reshape(()) if objective.scalar else numbers)


def values_at(
    chosen: Mapping[str, str],
    watch: PointWatch,
    activations: Mapping[str, np.ndarray],
    pulled: Sequence[Mapping[str, np.ndarray | None]],
    before: Sequence[Mapping[str, np.ndarray | None]] = (),
    rests: Mapping[str, TableRest] | None = None,
) -> dict[str, PointValues]:
    """What was read at each point.

    Args:
        chosen: for each name the key of its point.
        watch: what took the forward pass down.
        activations: by key the values that went on.
        pulled: for each set of cotangents the gradients by key.
        before: likewise, at the points whose gradients were edited, what these were before.
        rests: by key what else reaches a table.
    """
    values = {}
    for name, key in chosen.items():
        found = watch.found(key)
        values[name] = PointValues(
            activations[key],
            tuple(gradients[key] for gradients in pulled),
            found if isinstance(found, Lookup) else None,
            tuple(gradients[key] for gradients in before if key in gradients),
            (rests or {}).get(key),
        )
    return values


def compute_dtype(read: Iterable[str], fallback: Iterable[str]) -> str:
    """Return the dtype in which a model computed: the coarsest of those that show.

    Args:
        read: the dtypes of the points and outputs that were read.
        fallback: the dtypes of the returned tensors and the parameters, of which the first counts where nothing was read.
    """
    return coarsest(list(read) or list(itertools.islice(fallback, 1)) or ["float32"])


def _hint(objective: NativeObjective, shape: tuple[int, ...]) -> str:
    if objective.scalar:
        return "; leave embgrad.Scalar out, or reduce over the examples"
    return "; embgrad.Scalar(function) takes a scalar" if shape in ((), (1,)) else ""
