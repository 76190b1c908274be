"""Models in NumPy: tensors with hand-written pullbacks, and models made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

__all__ = ["Observer", "ReferenceModel", "Tensor", "hearing", "lookup", "observing", "pull_back"]

Pullback = Callable[[np.ndarray], np.ndarray]


class Observer(Protocol):
    """An observer of a forward pass, which may change its values."""

    def at_lookup(self, table: Tensor, indices: np.ndarray, compute: Callable[[], Tensor]) -> Tensor:
        """Return the rows with which the pass continues."""
        ...

    def at_module(self, model: ReferenceModel, path: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the output of a module with which the pass continues."""
        ...


#: The observer of this thread's forward passes.
observing: ContextVar[Observer | None] = ContextVar("observing", default=None)

#: The functions that receive the gradients of this thread's pullbacks, by the tensors' ids.
hearing: ContextVar[tuple[Callable[[Mapping[int, np.ndarray]], None], ...]] = ContextVar("hearing", default=())


class Tensor:
    """A value, with pullbacks that turn its cotangent into cotangents of its sources.

    Attributes:
        sources: the tensors that it was computed from, each with its pullback; empty for a leaf.
    """

    def __init__(self, value: Any, sources: Sequence[tuple[Tensor, Pullback]] = ()) -> None:
        self.value = np.asarray(value)
        self.sources = tuple(sources)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
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

    def __getitem__(self, entries: tuple[slice | int, ...]) -> Tensor:
        def back(g: np.ndarray) -> np.ndarray:
            whole = np.zeros(self.value.shape, g.dtype)
            whole[entries] = g
            return whole

        return Tensor(self.value[entries], [(self, back)])

    def tanh(self) -> Tensor:
        """Return the hyperbolic tangent."""
        result = np.tanh(self.value)
        return Tensor(result, [(self, lambda g: g * (1 - result**2))])

    def softmax(self) -> Tensor:
        """Return the softmax over the last axis."""
        exponentials = np.exp(self.value - self.value.max(-1, keepdims=True))
        result = exponentials / exponentials.sum(-1, keepdims=True)
        return Tensor(result, [(self, lambda g: result * (g - (g * result).sum(-1, keepdims=True)))])

    def sum(self, axis: int) -> Tensor:
        """Return the sum over one axis."""
        return Tensor(
            self.value.sum(axis), [(self, lambda g: np.broadcast_to(np.expand_dims(g, axis), self.value.shape))]
        )

    def mean(self, axis: int) -> Tensor:
        """Return the mean over one axis."""
        return self.sum(axis) * (1.0 / int(self.value.shape[axis]))

    def reshape(self, *shape: int) -> Tensor:
        """Return the values in another shape."""
        return Tensor(self.value.reshape(shape), [(self, lambda g: g.reshape(self.value.shape))])

    def swap(self, first: int, second: int) -> Tensor:
        """Return the tensor with two axes exchanged."""
        return Tensor(self.value.swapaxes(first, second), [(self, lambda g: g.swapaxes(first, second))])

    def column(self, index: int) -> Tensor:
        """Return one entry of the last axis."""

        def back(g: np.ndarray) -> np.ndarray:
            whole = np.zeros_like(self.value)
            whole[..., index] = g
            return whole

        return Tensor(self.value[..., index], [(self, back)])

    def detach(self) -> Tensor:
        """Return the value without its sources."""
        return Tensor(self.value)


def lookup(table: Tensor, indices: np.ndarray) -> Tensor:
    """Return the rows of a table. The observer is notified, and may replace them."""

    def back(g: np.ndarray) -> np.ndarray:
        whole = np.zeros_like(table.value)
        np.add.at(whole, indices, g)
        return whole

    def compute() -> Tensor:
        return Tensor(table.value[indices], [(table, back)])

    observer = observing.get()
    return compute() if observer is None else observer.at_lookup(table, indices, compute)


def pull_back(cotangents: Sequence[tuple[Tensor, np.ndarray]], leaves: Sequence[Tensor]) -> list[np.ndarray | None]:
    """Return the gradient at each leaf, or None if the leaf is not reached. Only paths that lead to leaves are computed."""
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
    for hear in hearing.get():
        hear({key: gradients[key] for key in on_the_way if key in gradients})
    return [gradients[id(leaf)] if id(leaf) in on_the_way else None for leaf in leaves]


def _towards(wanted: set[int], ends: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors on paths from the ends to the wanted ones, each before its sources."""
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
    """Return the pullback of a broadcast: the sum over the axes that it added or expanded."""
    shape = tensor.value.shape

    def back(g: np.ndarray) -> np.ndarray:
        g = g.sum(tuple(range(g.ndim - len(shape))))
        expanded = tuple(axis for axis, size in enumerate(shape) if size == 1 and g.shape[axis] != 1)
        return np.asarray(g.sum(expanded, keepdims=True))

    return back


class ReferenceModel:
    """A model of the reference backend: parameters, a mode, and a function of the parameters and the inputs.

    Args:
        forward: takes the model and inputs by name (`input_ids`, and `attention_mask` if it has such a parameter); returns
            a Tensor or a dict of Tensors.
        parameters: arrays by name.
        modules: the paths of the modules that it calls, so that they are known before any call.

    Attributes:
        training: whether the model is in training mode, in which dropout is active.
        random: the generator that dropout draws from.
        around: replaces the forward pass during a capture; takes the model, the positional and the keyword arguments.
        outside: receives during a capture the path of a module that is called outside a forward pass.
    """

    def __init__(
        self, forward: Callable[..., Any], parameters: Mapping[str, np.ndarray], modules: Sequence[str] = ()
    ) -> None:
        self.forward = forward
        self.parameters = {name: Tensor(value) for name, value in parameters.items()}
        self.modules = tuple(modules)
        self.training = False
        self.random = np.random.default_rng(0)
        self.around: Callable[..., Any] | None = None
        self.outside: Callable[[str], None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass."""
        around = self.around
        return self.forward(self, *args, **kwargs) if around is None else around(self, args, kwargs)

    def module(self, path: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a module of the model, a function with a path, whose class name is the function's name."""
        observer = observing.get()
        if observer is not None:
            return observer.at_module(self, path, function, args)
        if self.outside is not None:
            self.outside(path)
        return function(*args)

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def dropout(self, tensor: Tensor, rate: float) -> Tensor:
        """Return the tensor, in training mode with a share of its entries set to zero and the others scaled up."""
        if not self.training:
            return tensor
        scale = (self.random.random(tensor.value.shape) >= rate) / (1 - rate)
        return tensor * Tensor(scale.astype(tensor.value.dtype))
