"""Puts a model and the thread back as they were, and keeps extra passes from drawing random numbers, which cannot be put back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from embgrad.backend.locks import model_lock
from embgrad.backend.object_state import ObjectState
from embgrad.errors import UnsupportedError
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import Handler, Operation
from embgrad_gluon.pullback import are_drawn_in_order
from embgrad_gluon.walk import all_blocks, all_parameters, arrays_of, same_bits

__all__ = ["DRAWING", "Attributes", "Draws", "drawing_nothing", "preserved"]

#: In evaluation mode larger arrays, in numbers, are not copied: they are frozen weights. Averages and counters are smaller.
LARGEST_BUFFER: Final = 1 << 12

#: Larger arrays in attributes, in numbers, are not copied: they are tables, which hardly a forward pass writes to.
LARGEST_ATTRIBUTE: Final = 1 << 16


@contextlib.contextmanager
def preserved(parts: Sequence[Any], *, training: bool) -> Iterator[None]:
    """Put the thread in the mode asked for, out of any graph that the user is recording, and undo afterwards what a run changes.

    Args:
        parts: the model's parts, which are locked meanwhile.
        training: the mode.
    """
    autograd, blocks = import_mxnet().autograd, all_blocks(parts)
    with model_lock(blocks), autograd.pause(train_mode=training):  # a block may belong to several models
        # A net that was never called traces itself to learn its shapes, and would keep that trace's number of inputs.
        graphs = [(block, block._cached_graph) for block in blocks if hasattr(block, "_cached_graph")]
        attributes, buffers = Attributes(blocks), _buffers(parts, training)
        try:
            yield
        finally:
            attributes.put_back()
            with autograd.pause():
                for array, value in buffers:
                    value.copyto(array)
            for block, graph in graphs:
                if block._cached_op is None and block._cached_graph is not graph:
                    block._cached_graph = graph


def _buffers(parts: Sequence[Any], training: bool) -> list[tuple[Any, Any]]:
    """Return the arrays that a model may change itself, those without a gradient, with copies."""
    frozen = [p for p in all_parameters(parts) if p.grad_req == "null"]
    arrays = [array for p in frozen for array in arrays_of(p) if array.stype == "default"]
    return [(array, array.copy()) for array in arrays if training or array.size <= LARGEST_BUFFER]


class Attributes:
    """The attributes of blocks that are not Gluon's own, with the containers and arrays in them.

    They keep from call to call a hidden state, a cache, a list of maps or a running average.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._state = ObjectState(map(vars, blocks), _attributes_of_gluon(), _is_part)
        with import_mxnet().autograd.pause():
            self._arrays = [(array, array.copy()) for array in self._state.values if _is_copied(array)]

    def put_back(self) -> None:
        """Restore all but blocks and parameters: a net builds itself in its first call."""
        self._state.restore()
        for array, values in self._arrays:
            if not same_bits(array, values):
                with import_mxnet().autograd.pause():
                    array[...] = values


def _is_copied(value: Any) -> bool:
    """Return whether it is an array of MXNet's that may be kept, small enough and with contents of its own."""
    mx = import_mxnet()
    return isinstance(value, mx.nd.NDArray) and value.stype == "default" and value.size <= LARGEST_ATTRIBUTE


@functools.cache
def _attributes_of_gluon() -> frozenset[str]:
    """Return the attributes that every block has, which Gluon itself sees to."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))  # with a name of its own, none is counted up


def _is_part(value: object) -> bool:
    """Return whether it is a block or a parameter."""
    gluon = import_mxnet().gluon
    return isinstance(value, (gluon.Block, gluon.Parameter))


# Random numbers

#: The distributions that `mx.nd.random` draws from, and those of `mx.np.random`.
DISTRIBUTIONS: Final = (
    *("exponential", "gamma", "generalized_negative_binomial", "negative_binomial", "normal", "poisson", "uniform"),
)
NUMPY_DISTRIBUTIONS: Final = (
    *("bernoulli", "choice", "exponential", "gamma", "gumbel", "logistic", "multinomial", "normal", "normal_n"),
    *("pareto", "powerd", "rayleigh", "shuffle", "uniform", "uniform_n", "weibull"),
)

#: Operators that draw random numbers, in training mode at least.
DRAWING: Final = (
    *("Dropout", "RNN", "_shuffle"),
    *(f"_npi_{name}" for name in NUMPY_DISTRIBUTIONS),
    *(f"_random_{name}" for name in ("randint", *DISTRIBUTIONS, *(f"{name}_like" for name in DISTRIBUTIONS))),
    *(f"_sample_{name}" for name in ("multinomial", "unique_zipfian", *DISTRIBUTIONS)),
)


class Draws:
    """The outputs of the operators that draw random numbers in one pass through a hybridised block, operator by operator."""

    def __init__(self) -> None:
        self._drawn: list[Any] = []

    def record(self, operation: Operation, returned: Any) -> None:
        """Record that an operator ran."""
        if _draws(operation):
            self._drawn.append(returned[0] if isinstance(returned, (list, tuple)) else returned)

    def expect_in_order(self, block: Any, returned: Any) -> None:
        """Refuse a block whose graph draws in another order than its Python: each layer then gets other random numbers.

        Raises:
            UnsupportedError: it does, or the order is unknown.
        """
        outputs = [array for array in import_mxnet().gluon.block._flatten(returned, "output")[0] if array is not None]
        if self._drawn and not are_drawn_in_order(outputs, self._drawn):
            raise UnsupportedError(
                f"{type(block).__name__} {block.name!r} is hybridised and draws random numbers, as by dropout, in another order "
                "there than where it runs operator by operator, as it must while a gradient inside of it is captured, so that "
                "the training would end with other weights: call hybridize(False) before the capture, or use it without dropout"
            )


def _draws(operation: Operation) -> bool:
    """Return whether it draws in the mode of the thread."""
    training = import_mxnet().autograd.is_training() or operation.attributes.get("mode") == "always"
    if operation.name in ("Dropout", "RNN"):
        return training and float(operation.attributes.get("p", 0.5 if operation.name == "Dropout" else 0)) > 0
    return True


def drawing_nothing() -> dict[str, Handler]:
    """Return by operators' names handlers that let none of them draw, for a pass beside the user's own."""

    def refuse(operation: Operation, proceed: Callable[[], Any]) -> Any:
        raise UnsupportedError(
            f"the model draws random numbers in evaluation mode, by {operation.name!r}: to find the point embgrad makes one "
            "forward pass beside your own, and MXNet's generator cannot be put back after it; capture at='word', or draw under "
            "autograd.is_training() alone"
        )

    def without(operation: Operation, proceed: Callable[[], Any]) -> Any:
        operation.attributes["p"] = 0.0
        return proceed()

    handlers: dict[str, Handler] = dict.fromkeys(DRAWING, refuse)
    del handlers["RNN"]  # which the cures see to
    return {**handlers, "Dropout": without}
