"""Cotangents of a model's outputs, computed from the objective in the same way for every framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from embgrad.backend.parameters import TableRest
from embgrad.backend.protocol import PointValues, Request
from embgrad.backend.responses import Respond, Response
from embgrad.common.arrays import copy_owned
from embgrad.common.tolerance import HALVES, coarsest
from embgrad.errors import ObjectiveError, OutputError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Lookup
from embgrad.model_points.recorder import PassRecorder
from embgrad.objectives.native import NativeObjective, native_values
from embgrad.objectives.objectives import at_index
from embgrad.objectives.outputs import choose_output, name_outputs

__all__ = [
    *("Answer", "Answers", "Cotangents", "Tensors", "answer", "answer_objective", "answers_in_turn", "compute_dtype"),
    *("native_answer", "values_at", "whole_cotangents"),
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
    """The answer of an objective: what it returned, and the sets of cotangents as pairs with the framework's tensors.

    Attributes:
        sets: the sets of cotangents, to be iterated once.
        response: the objective's response, without cotangents.
        outputs: the native tensors that the objective reads.
    """

    sets: Iterable[Cotangents]
    response: Response
    outputs: Sequence[Any] = ()


@dataclass(frozen=True)
class Answers:
    """The answers of all objectives of a request.

    Attributes:
        sets: the sets of cotangents, to be pulled back in turn and iterated once: those of an objective are computed in its turn.
        responses: the objectives' responses, complete when `sets` has been iterated.
        outputs: the native tensors that the first objective reads.
    """

    sets: Iterable[Cotangents] = ()
    responses: Sequence[Response] = ()
    outputs: Sequence[Any] = ()


def answers_in_turn(request: Request, answer_of: Callable[[Respond | NativeObjective], Answer]) -> Answers:
    """Return the answers of a request's objectives, each of which is asked when its cotangents are pulled back.

    Without a pullback all are asked at once.

    Args:
        answer_of: returns the answer of one objective, such as `answer_objective` does.
    """
    count = len(request.objectives)
    if not count:
        return Answers()
    with at_index(0, count):
        first = answer_of(request.objectives[0])
    responses = [first.response]
    if count == 1:  # nothing holds on to the outputs during the pullback
        return Answers(first.sets, responses, first.outputs)

    def sets_in_turn() -> Iterator[Cotangents]:
        yield from first.sets
        for index, objective in enumerate(request.objectives[1:], 1):
            with at_index(index, count):
                answer = answer_of(objective)
            responses.append(answer.response)
            yield from answer.sets

    sets = sets_in_turn()
    if not request.pullback:
        list(sets)
        sets = iter(())
    return Answers(sets, responses, first.outputs)


def answer_objective(
    returned: Any,
    batch: TokenBatch,
    objective: Respond | NativeObjective,
    tensors: Tensors,
    positional: Sequence[str] = (),
    *,
    several: bool = False,
) -> Answer:
    """Return the cotangents that an objective, in NumPy or native, computes for a model's return value.

    Args:
        returned: the model's return value.
        batch: the batch that the model ran on.
        objective: the objective.
        tensors: access to the framework's tensors.
        positional: the names of the entries of a returned sequence, where the backend knows them.
        several: whether a native objective gets a set of cotangents for each example.

    Raises:
        OutputError: an output is missing or has no gradient.
        ObjectiveError: a native objective did not return one number per example, or one for the batch.
    """
    if isinstance(objective, NativeObjective):
        return native_answer(objective.function(returned), objective, batch, tensors, several=several)
    return answer(returned, objective, tensors, positional)


def whole_cotangents(objective: Respond, values: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int, Response]:
    """Return the cotangents of outputs that are available as whole arrays, as those of a graph are.

    Args:
        objective: the objective, in NumPy, which returns at most one set of cotangents.
        values: the outputs, in the order of `objective.outputs`.

    Returns:
        The cotangent of each output, zeros where the objective returned no set, the number of sets, and its response.
    """
    outputs = dict(zip(objective.outputs, values, strict=True))
    rows = {name: objective.reads(name, value.shape) for name, value in outputs.items()}
    read = {name: copy_owned(value if rows[name] is None else value[rows[name]]) for name, value in outputs.items()}
    response = objective(read)
    cotangents = []
    for name, value in outputs.items():
        selected = rows[name]
        whole = np.zeros(value.shape, value.dtype)
        for cotangent in response.sets:
            whole[... if selected is None else selected] = cotangent[name]
        cotangents.append(whole)
    return cotangents, len(response.sets), replace(response, sets=())


def answer(returned: Any, objective: Respond, tensors: Tensors, positional: Sequence[str] = ()) -> Answer:
    """Return the cotangents of the outputs that an objective in NumPy reads; only these are converted to NumPy.

    Args:
        returned: the model's return value.
        objective: the objective.
        tensors: access to the framework's tensors.
        positional: the names of the entries of a returned sequence, where the backend knows them.

    Raises:
        OutputError: there is no such output, or it has no gradient.
    """
    named = name_outputs(returned, tensors.is_tensor, positional)
    natives = {wanted: choose_output(named, wanted) for wanted in objective.outputs}
    for native in natives.values():
        dtype = tensors.dtype(named[native])
        if dtype not in FLOATING:
            floating = [name for name, tensor in named.items() if tensors.dtype(tensor) in FLOATING]
            raise OutputError(
                f"the output {native!r} is of dtype {dtype}: expected floating point, as no other dtype has gradients. Choose "
                f"another output with output=..., one of {quote(floating)}"
            )
    read = {wanted: _rows(wanted, named[native], objective, tensors) for wanted, native in natives.items()}
    response = objective({wanted: tensors.to_numpy(tensor) for wanted, tensor in read.items()})
    sets = [[(read[wanted], cotangent) for wanted, cotangent in cotangents.items()] for cotangents in response.sets]
    return Answer(sets, replace(response, sets=()), list(read.values()))


def _rows(name: str | None, output: Any, objective: Respond, tensors: Tensors) -> Any:
    """Return the rows of an output that are converted to NumPy, or the whole output."""
    rows = objective.reads(name, tuple(map(int, output.shape)))
    return output if rows is None else tensors.rows(output, *rows)


def native_answer(
    value: Any, objective: NativeObjective, batch: TokenBatch, tensors: Tensors, *, several: bool = False
) -> Answer:
    """Return the cotangent of a native objective's value: ones, or with `several` one set for each example.

    Raises:
        ObjectiveError: the value is not one floating-point number per example, or one for the batch, or is not finite.
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
    return Answer(sets, Response(native_values(numbers.reshape(()) if objective.scalar else numbers)), [value])


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
        activations: the values with which the model continued, by key.
        pulled: the gradients by key, for each set of cotangents.
        before: the gradients before an `edit` by key, for each set of cotangents, at the points that were edited.
        rests: the gradients that reach a table by other ways, by the key of its lookup.
    """
    values = {}
    for name, key in chosen.items():
        record = watch.record_of(key)
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
