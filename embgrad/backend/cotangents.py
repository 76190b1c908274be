"""Cotangents of a model's outputs, computed from the objective in the same way for every framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from embgrad.backend.protocol import PointValues, Request, TableRest
from embgrad.common.arrays import owned
from embgrad.common.tolerance import HALVES, coarsest
from embgrad.errors import ObjectiveError, OutputError, listed
from embgrad.forward.points import Lookup
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import at_index
from embgrad.objectives.outputs import choose_output, name_outputs

__all__ = [
    *("Answer", "Cotangents", "Tensors", "answer", "answered", "answered_in_turn", "compute_dtype", "native_answer"),
    *("values_at", "whole_cotangents"),
]

#: One set of cotangents: native tensors, each with its cotangent, float64 and of its shape.
Cotangents = Sequence[tuple[Any, np.ndarray]]

#: The dtypes whose tensors have gradients.
FLOATING: Final = ("bfloat16", "float16", "float32", "float64")


class Tensors(Protocol):
    """Access to a framework's tensors.

    Attributes:
        kind: the name of such a tensor in messages, such as "a torch.Tensor".
        scalars: the shapes that a scalar may have.
    """

    kind: str
    scalars: tuple[tuple[int, ...], ...]

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a tensor of the framework."""
        ...

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype in NumPy's spelling, such as "float32"."""
        ...

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy of a tensor's values, with half precision widened to float32."""
        ...

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows `tensor[examples, positions]` by an operation that gradients flow through."""
        ...


@dataclass(frozen=True)
class Answer:
    """The sets of cotangents to pull back, and a native objective's values.

    Attributes:
        sets: the sets of cotangents, to be pulled back in turn and iterated once: those of several objectives are computed in
            their turn.
        objective: the values of a native objective, of shape (example,) or (); else None.
        outputs: the native tensors that the first objective reads.
        further: for each further objective the values of a native one, else None; complete when `sets` has been iterated.
    """

    sets: Iterable[Cotangents]
    objective: np.ndarray | None = None
    outputs: Sequence[Any] = ()
    further: Sequence[np.ndarray | None] = ()


def answered_in_turn(request: Request, answer_of: Callable[[Request], Answer]) -> Answer:
    """Return the answer to a request with several objectives, each of which is asked when its cotangents are pulled back.

    Without a pullback all are asked at once.

    Args:
        request: the request.
        answer_of: returns the answer to the request of one objective, such as `answered` does.
    """
    if not request.further:
        return answer_of(request)
    count = len(request.each)
    with at_index(0, count):
        first = answer_of(replace(request, further=()))
    further: list[np.ndarray | None] = []

    def sets_in_turn() -> Iterator[Cotangents]:
        yield from first.sets
        for index, part in enumerate(request.further, 1):
            with at_index(index, count):
                answer = answer_of(part)
            further.append(answer.objective)
            yield from answer.sets

    sets = sets_in_turn()
    return replace(first, sets=sets if request.pullback else list(sets), further=further)


def answered(
    returned: Any, batch: TokenBatch, request: Request, tensors: Tensors, positional: Sequence[str] = ()
) -> Answer:
    """Return the cotangents that the request's objectives, in NumPy or native, compute for a model's return value.

    Args:
        returned: the model's return value.
        batch: the batch that the model ran on.
        request: the request with the objectives, which are asked in turn, see `answered_in_turn`.
        tensors: access to the framework's tensors.
        positional: the names of the entries of a returned sequence, where the backend knows them.

    Raises:
        OutputError: an output is missing or has no gradient.
        ObjectiveError: a native objective did not return one number per example, or one for the batch.
    """

    def answer_of(part: Request) -> Answer:
        if isinstance(part.respond, NativeObjective):
            value = part.respond.function(returned)
            return native_answer(value, part.respond, batch, tensors, several=part.several)
        return answer(returned, part, tensors, positional)

    return answered_in_turn(request, answer_of)


def whole_cotangents(request: Request, values: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Return the cotangents of outputs that are available as whole arrays, as those of a graph are.

    Args:
        request: the request, with a `respond` in NumPy.
        values: the outputs, in the order of `request.outputs`.

    Returns:
        The cotangents of each output, with a leading axis of sets, and the number of sets that the objective returned. Unless the
        request takes several sets there is exactly one, of zeros if the objective returned none.
    """
    assert not isinstance(request.respond, NativeObjective)
    outputs = dict(zip(request.outputs, values, strict=True))
    rows = {name: request.reads(name, value.shape) for name, value in outputs.items()}
    read = {name: owned(value if rows[name] is None else value[rows[name]]) for name, value in outputs.items()}
    sets = request.respond(read)
    cotangents = []
    for name, value in outputs.items():
        selected = rows[name]
        stacked = np.zeros((len(sets) if request.several else 1, *value.shape), value.dtype)
        for number, cotangent in enumerate(sets):
            stacked[number if selected is None else (number, *selected)] = cotangent[name]
        cotangents.append(stacked)
    return cotangents, len(sets)


def answer(returned: Any, request: Request, tensors: Tensors, positional: Sequence[str] = ()) -> Answer:
    """Return the cotangents of the outputs that the request's callback reads; only these are converted to NumPy.

    Args:
        returned: the model's return value.
        request: the request, with a `respond` in NumPy.
        tensors: access to the framework's tensors.
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
                f"the output {native!r} is of dtype {dtype}: expected floating point, as no other dtype has gradients. Choose "
                f"another output with output=..., one of {listed(floating)}"
            )
    read = {wanted: _rows(wanted, named[native], request, tensors) for wanted, native in natives.items()}
    sets = request.respond({wanted: tensors.to_numpy(tensor) for wanted, tensor in read.items()})
    return Answer(
        [[(read[wanted], cotangent) for wanted, cotangent in cotangents.items()] for cotangents in sets],
        outputs=list(read.values()),
    )


def _rows(name: str | None, output: Any, request: Request, tensors: Tensors) -> Any:
    """Return the rows of an output that are converted to NumPy, or the whole output."""
    rows = request.reads(name, tuple(map(int, output.shape)))
    return output if rows is None else tensors.rows(output, *rows)


def native_answer(
    value: Any, objective: NativeObjective, batch: TokenBatch, tensors: Tensors, *, several: bool = False
) -> Answer:
    """Return the cotangent of a native objective's value: ones, or with `several` one set for each example.

    Raises:
        ObjectiveError: the value is not one floating-point number per example, or one for the batch.
    """
    shapes = tensors.scalars if objective.scalar else ((len(batch),),)
    count = "one number for the batch" if objective.scalar else "one number per example"
    expected = f"expected {tensors.kind} of floating point and shape {' or '.join(map(str, shapes))}, {count}"
    if not tensors.is_tensor(value):
        raise ObjectiveError(f"the objective function returned {type(value).__name__}: {expected}")
    shape, dtype = tuple(value.shape), tensors.dtype(value)
    if shape not in shapes or dtype not in FLOATING:
        raise ObjectiveError(
            f"the objective function returned a tensor of shape {shape} and dtype {dtype}: {expected}{_hint(objective, shape)}"
        )
    numbers = tensors.to_numpy(value)
    cotangents = np.eye(len(batch)) if several else [np.ones(shape)]
    sets = [[(value, cotangent)] for cotangent in cotangents]
    return Answer(sets, numbers.reshape(()) if objective.scalar else numbers, [value])


def values_at(
    chosen: Mapping[str, str],
    watch: PassRecorder,
    activations: Mapping[str, np.ndarray],
    pulled: Sequence[Mapping[str, np.ndarray | None]],
    before: Sequence[Mapping[str, np.ndarray | None]] = (),
    rests: Mapping[str, TableRest] | None = None,
) -> dict[str, PointValues]:
    """Return the values read at each point, by name.

    Args:
        chosen: the key of each name's point.
        watch: the record of the forward pass.
        activations: the values with which the model continued, by key.
        pulled: the gradients by key, for each set of cotangents.
        before: the gradients before an `edit` by key, for each set of cotangents, at the points that were edited.
        rests: the gradients that reach a table by other ways, by the key of its lookup.
    """
    values = {}
    for name, key in chosen.items():
        record = watch.recorded(key)
        is_edited = any(key in gradients for gradients in before)  # an edit is not asked where no gradient arrives
        values[name] = PointValues(
            activations[key],
            tuple(gradients[key] for gradients in pulled),
            record if isinstance(record, Lookup) else None,
            tuple(gradients.get(key) for gradients in before) if is_edited else (),
            (rests or {}).get(key),
        )
    return values


def compute_dtype(read: Iterable[str], fallback: Iterable[str], products: Iterable[str] = ()) -> str:
    """Return the dtype in which a model computed: the coarsest of the dtypes that were seen.

    Args:
        read: the dtypes of the points and outputs that were read.
        fallback: the dtypes of the returned tensors and the parameters; the first is used if nothing was read.
        products: the dtypes of the products of matrices inside the model. Of these only half precision counts, which the
            lookup and the output do not show where the model casts, as under autocast.
    """
    halves = [dtype for dtype in products if dtype in HALVES]
    return coarsest([*(list(read) or list(itertools.islice(fallback, 1)) or ["float32"]), *halves])


def _hint(objective: NativeObjective, shape: tuple[int, ...]) -> str:
    if objective.scalar:
        return ". Remove embgrad.Scalar, or reduce over the examples"
    return ". For a scalar pass embgrad.Scalar(function)" if shape in ((), (1,)) else ""
