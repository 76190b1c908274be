"""The reference: models in NumPy with hand-written pullbacks, and the backend for them, the shortest example of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from embgrad.answering import Answer, answer, native_answer, values_at
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts, parameters_of, plan_call
from embgrad.errors import UnsupportedError
from embgrad.locks import model_lock
from embgrad.points import UNNAMED_TABLE, LookupWatch

__all__ = ["ReferenceBackend", "ReferenceModel", "Tensor", "lookup", "pull_back"]

Pullback = Callable[[np.ndarray], np.ndarray]


class Tensor:
    """A value, and how a cotangent of it becomes cotangents of what it was made from.

    Attributes:
        value: any array.
        sources: the tensors it was made from, each with its pullback; none for a leaf.
    """

    def __init__(self, value: Any, sources: Sequence[tuple[Tensor, Pullback]] = ()) -> None:
        self.value = np.asarray(value)
        self.sources = tuple(sources)

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's."""
        return tuple(self.value.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.value + other.value, [(self, _sum_to(self)), (other, _sum_to(other))])

    def __mul__(self, other: Tensor | float) -> Tensor:
        b = other if isinstance(other, Tensor) else Tensor(np.asarray(other, self.value.dtype))
        to_self, to_other = _sum_to(self), _sum_to(b)
        return Tensor(
            self.value * b.value, [(self, lambda g: to_self(g * b.value)), (b, lambda g: to_other(g * self.value))]
        )

    def __matmul__(self, matrix: Tensor) -> Tensor:
        def to_matrix(g: np.ndarray) -> np.ndarray:
            return np.asarray(self.value.reshape(-1, self.value.shape[-1]).T @ g.reshape(-1, g.shape[-1]))

        return Tensor(self.value @ matrix.value, [(self, lambda g: g @ matrix.value.T), (matrix, to_matrix)])

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        result = np.tanh(self.value)
        return Tensor(result, [(self, lambda g: g * (1 - result**2))])

    def softmax(self) -> Tensor:
        """The softmax over the last axis."""
        exponentials = np.exp(self.value - self.value.max(-1, keepdims=True))
        result = exponentials / exponentials.sum(-1, keepdims=True)
        return Tensor(result, [(self, lambda g: result * (g - (g * result).sum(-1, keepdims=True)))])

    def sum(self, axis: int) -> Tensor:
        """The sum over one axis."""
        return Tensor(
            self.value.sum(axis), [(self, lambda g: np.broadcast_to(np.expand_dims(g, axis), self.value.shape))]
        )

    def mean(self, axis: int) -> Tensor:
        """The mean over one axis."""
        return self.sum(axis) * (1.0 / int(self.value.shape[axis]))

    def reshape(self, *shape: int) -> Tensor:
        """The same values in another shape."""
        return Tensor(self.value.reshape(shape), [(self, lambda g: g.reshape(self.value.shape))])

    def swap(self, first: int, second: int) -> Tensor:
        """With two axes exchanged."""
        return Tensor(self.value.swapaxes(first, second), [(self, lambda g: g.swapaxes(first, second))])

    def column(self, index: int) -> Tensor:
        """One entry of the last axis."""

        def back(g: np.ndarray) -> np.ndarray:
            whole = np.zeros_like(self.value)
            whole[..., index] = g
            return whole

        return Tensor(self.value[..., index], [(self, back)])

    def detach(self) -> Tensor:
        """The value alone."""
        return Tensor(self.value)


def lookup(table: Tensor, indices: np.ndarray) -> Tensor:
    """The rows of a table. Tells whoever watches; a row that is kept hold of becomes a leaf."""
    keep = False
    observer = _observer.get()
    if observer is not None:
        keep = observer.see(table, indices)

    def back(g: np.ndarray) -> np.ndarray:
        whole = np.zeros_like(table.value)
        np.add.at(whole, indices, g)
        return whole

    rows = Tensor(table.value[indices], () if keep else [(table, back)])
    if keep and observer is not None:
        observer.kept[len(observer.watch.lookups) - 1] = rows
    return rows


def pull_back(cotangents: Sequence[tuple[Tensor, np.ndarray]], leaves: Sequence[Tensor]) -> list[np.ndarray | None]:
    """The gradient at each leaf; None where no way leads there. Nothing that leads to no leaf is computed."""
    wanted = {id(leaf) for leaf in leaves}
    order = _towards(wanted, [tensor for tensor, _ in cotangents])
    gradients: dict[int, np.ndarray] = {}
    for tensor, cotangent in cotangents:
        gradients[id(tensor)] = gradients.get(id(tensor), 0) + cotangent.astype(tensor.value.dtype)
    on_the_way = {id(tensor) for tensor in order}
    for tensor in order:
        for source, back in tensor.sources:
            if id(source) in on_the_way and id(tensor) in gradients:
                gradients[id(source)] = gradients.get(id(source), 0) + back(gradients[id(tensor)])
    return [gradients[id(leaf)] if id(leaf) in on_the_way else None for leaf in leaves]


def _towards(wanted: set[int], ends: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on a way from the ends to what is wanted, each before its sources."""
    done: dict[int, bool] = {}
    order: list[Tensor] = []

    def visit(tensor: Tensor) -> bool:
        if id(tensor) not in done:
            reached = [visit(source) for source, _ in tensor.sources]
            done[id(tensor)] = id(tensor) in wanted or any(reached)
            if done[id(tensor)]:
                order.append(tensor)
        return done[id(tensor)]

    for end in ends:
        visit(end)
    return order[::-1]


def _sum_to(tensor: Tensor) -> Pullback:
    """The pullback of a broadcast: the sum over the axes that it made."""
    shape = tensor.value.shape

    def back(g: np.ndarray) -> np.ndarray:
        g = g.sum(tuple(range(g.ndim - len(shape))))
        made = tuple(axis for axis, size in enumerate(shape) if size == 1 and g.shape[axis] != 1)
        return np.asarray(g.sum(made, keepdims=True))

    return back


class ReferenceModel:
    """A model of the reference: parameters, a mode, and a function of theirs and the inputs.

    Args:
        forward: takes the model and inputs by name (`input_ids`, and `attention_mask` if it has such a parameter); gives
            a Tensor, or a dict of them.
        parameters: arrays by name.

    Attributes:
        training: whether dropout drops.
        random: where dropout draws from.
    """

    def __init__(self, forward: Callable[..., Any], parameters: Mapping[str, np.ndarray]) -> None:
        self.forward = forward
        self.parameters = {name: Tensor(value) for name, value in parameters.items()}
        self.training = False
        self.random = np.random.default_rng(0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A forward pass."""
        return self.forward(self, *args, **kwargs)

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def dropout(self, tensor: Tensor, rate: float) -> Tensor:
        """In training mode, zeros in place of a part of the entries, the others scaled up."""
        if not self.training:
            return tensor
        kept = (self.random.random(tensor.value.shape) >= rate) / (1 - rate)
        return tensor * Tensor(kept.astype(tensor.value.dtype))


class _Observer:
    """Watches the lookups of one forward pass and keeps hold of the rows that are asked for."""

    def __init__(self, parts: Sequence[ReferenceModel], watch: LookupWatch) -> None:
        self.watch = watch
        self.kept: dict[int, Tensor] = {}
        prefixes = [f"{number}." for number in range(len(parts))] if len(parts) > 1 else [""]
        self._paths = {
            id(table): prefix + name
            for prefix, part in zip(prefixes, parts, strict=True)
            for name, table in part.parameters.items()
        }

    def see(self, table: Tensor, indices: np.ndarray) -> bool:
        """Take down a lookup; True where its rows are to be kept hold of."""
        rows, dim = table.value.shape
        return self.watch.see(self._paths.get(id(table), UNNAMED_TABLE), indices, rows, dim)


_observer: ContextVar[_Observer | None] = ContextVar("observer", default=None)


class ReferenceBackend:
    """The backend for `ReferenceModel`: the oracle of the core tests, which need no framework."""

    name: Final = "reference"
    package: Final = "numpy"
    extra: Final = None
    supports: Final = frozenset({"word", "training", "split", "native", "float64"})

    def owns(self, part: object) -> bool:
        """Whether it is a ReferenceModel."""
        return isinstance(part, ReferenceModel)

    def versions(self) -> Mapping[str, str]:
        """NumPy's version."""
        return {"numpy": np.__version__}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """The lookups that a forward pass makes, in order."""
        with _running(model, training=False):
            _, observer, _ = _forward(model, batch, (), call)
        return observer.watch.points()

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """One forward pass, and a pullback for each set of cotangents."""
        with _running(model, request.training):
            returned, observer, unused = _forward(model, batch, request.points, request.call)
            chosen = observer.watch.resolve()
            answered = _answer(returned, batch, request)
        leaves = [observer.kept[number] for number in chosen.values()]
        pulled = [pull_back(cotangents, leaves) for cotangents in answered.sets]
        owned = [[None if gradient is None else gradient.copy() for gradient in gradients] for gradients in pulled]
        found = values_at(chosen, observer.watch.lookups, [leaf.value.copy() for leaf in leaves], owned)
        return Run(found, str(leaves[0].value.dtype), unused, answered.objective)


@contextlib.contextmanager
def _running(model: Any, training: bool) -> Iterator[None]:
    """The mode for one pass; what it was before, and where the random numbers stood, comes back in any case."""
    parts = as_parts(model)
    with model_lock(parts):
        modes = [(part, part.training) for part in parts]
        try:
            for part in parts:
                part.training = training
            yield
        finally:
            for part, mode in modes:
                part.training = mode


def _forward(
    model: Any, batch: TokenBatch, names: Sequence[str], call: Call | None
) -> tuple[Any, _Observer, tuple[str, ...]]:
    parts = as_parts(model)
    observer = _Observer(parts, LookupWatch(batch, names))
    token = _observer.set(observer)
    try:
        if call is not None:
            return call(model, batch.inputs()), observer, ()
        if len(parts) > 1 or isinstance(model, (list, tuple)):
            raise UnsupportedError(
                "the model is a sequence of parts: pass call=lambda parts, inputs: outputs to say how"
            )
        plan = plan_call(parameters_of(model.forward)[1:], batch)
        return model(*plan.args, **plan.kwargs), observer, plan.unused
    finally:
        _observer.reset(token)


class ReferenceTensors:
    """How the reference's tensors are looked at."""

    kind = "a Tensor"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Whether it is a Tensor."""
        return isinstance(value, Tensor)

    def dtype(self, tensor: Tensor) -> str:
        """The dtype's name."""
        return str(tensor.value.dtype)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """A copy of the values."""
        return np.array(tensor.value)


def _answer(returned: Any, batch: TokenBatch, request: Request) -> Answer:
    if isinstance(request.respond, NativeObjective):
        return native_answer(request.respond.function(returned), request.respond, batch, ReferenceTensors())
    return answer(returned, request, ReferenceTensors())
