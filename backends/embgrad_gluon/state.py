"""Restore a model and the thread, and keep embgrad's own passes from drawing random numbers, which cannot be restored."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from embgrad.errors import UnsupportedError
from embgrad.toolkit import ObjectState, is_recorded, model_lock, record_change, record_kept
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import Handler, Operation
from embgrad_gluon.pullback import drew_in_graph_order
from embgrad_gluon.walk import all_blocks, all_parameters, arrays_of, same_bits

__all__ = ["RANDOM_OPERATORS", "Attributes", "RandomDraws", "preserve", "without_random_numbers"]

#: The largest number of elements that is copied in evaluation mode: larger arrays are frozen weights, not averages.
LARGEST_BUFFER: Final = 1 << 12

#: The largest number of elements of an array in an attribute that is copied: larger ones are tables.
LARGEST_ATTRIBUTE: Final = 1 << 16


@contextlib.contextmanager
def preserve(parts: Sequence[Any], *, training: bool) -> Iterator[None]:
    """Put the thread in the mode asked for, out of any graph that the user is recording, and undo what a run changes afterwards.

    Args:
        parts: the model's parts, which are locked meanwhile.
        training: the mode.
    """
    autograd, blocks = import_mxnet().autograd, all_blocks(parts)
    with model_lock(blocks), autograd.pause(train_mode=training):  # a block may belong to several models
        # A net that was never called traces itself to infer its shapes, and would keep that trace's number of inputs.
        graphs = [(block, block._cached_graph) for block in blocks if hasattr(block, "_cached_graph")]
        attributes, buffers = Attributes(blocks), _buffers(parts, training)
        try:
            yield
        finally:
            attributes.restore()
            if is_recorded() and any(
                p.grad_req != "null" for p in all_parameters(parts)
            ):  # else these are frozen weights
                record_kept(array for array, _ in buffers)
            with autograd.pause():
                for array, value in buffers:
                    if is_recorded() and not same_bits(array, value):
                        record_change(f"a parameter of shape {array.shape}")
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

    Models keep hidden states, caches, lists of maps or running averages in them between calls.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._state = ObjectState(map(vars, blocks), _attributes_of_gluon(), _is_block_or_parameter)
        with import_mxnet().autograd.pause():
            self._arrays = [(array, array.copy()) for array in self._state.values if _is_copied(array)]

    def restore(self) -> None:
        """Restore all but blocks and parameters, which a net may create in its first call."""
        self._state.restore()
        record_kept(array for array, _ in self._arrays)
        for array, values in self._arrays:
            if not same_bits(array, values):
                record_change(f"an array of shape {array.shape}")
                with import_mxnet().autograd.pause():
                    array[...] = values


def _is_copied(value: Any) -> bool:
    """Return whether a value is a dense array of MXNet, small enough to be copied."""
    mx = import_mxnet()
    return isinstance(value, mx.nd.NDArray) and value.stype == "default" and value.size <= LARGEST_ATTRIBUTE


@functools.cache
def _attributes_of_gluon() -> frozenset[str]:
    """Return the attributes that every block has, which Gluon manages."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))  # with a prefix no counter of names moves


def _is_block_or_parameter(value: object) -> bool:
    """Return whether a value is a block or a parameter."""
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
RANDOM_OPERATORS: Final = (
    *("Dropout", "RNN", "_shuffle"),
    *(f"_npi_{name}" for name in NUMPY_DISTRIBUTIONS),
    *(f"_random_{name}" for name in ("randint", *DISTRIBUTIONS, *(f"{name}_like" for name in DISTRIBUTIONS))),
    *(f"_sample_{name}" for name in ("multinomial", "unique_zipfian", *DISTRIBUTIONS)),
)


class RandomDraws:
    """The outputs of the operators that draw random numbers in one pass through a hybridised block, operator by operator."""

    def __init__(self) -> None:
        self._outputs: list[Any] = []

    def record(self, operation: Operation, returned: Any) -> None:
        """Record that an operator ran."""
        if _draws_random_numbers(operation):
            self._outputs.append(returned[0] if isinstance(returned, (list, tuple)) else returned)

    def expect_graph_order(self, block: Any, returned: Any) -> None:
        """Refuse a block whose graph draws in another order than its Python: its layers would get other random numbers."""
        outputs = [array for array in import_mxnet().gluon.block._flatten(returned, "output")[0] if array is not None]
        if self._outputs and not drew_in_graph_order(outputs, self._outputs):
            raise UnsupportedError(
                f"{type(block).__name__} {block.name!r} is hybridised, and its graph draws random numbers, as by dropout, in "
                "another order than its Python, which runs while a gradient inside it is captured, so that the training would "
                "differ. Call hybridize(False) before the capture, or remove the dropout"
            )


def _draws_random_numbers(operation: Operation) -> bool:
    """Return whether an operator draws random numbers in the mode of the thread."""
    training = import_mxnet().autograd.is_training() or operation.attributes.get("mode") == "always"
    if operation.name in ("Dropout", "RNN"):
        return training and float(operation.attributes.get("p", 0.5 if operation.name == "Dropout" else 0)) > 0
    return True


def without_random_numbers() -> dict[str, Handler]:
    """Return handlers by operators' names that prevent drawing, for a pass of embgrad's own."""

    def refuse(operation: Operation, proceed: Callable[[], Any]) -> Any:
        raise UnsupportedError(
            f"the model draws random numbers in evaluation mode, by {operation.name!r}, and MXNet's generator cannot be restored "
            "after embgrad's own forward pass, which finds the point. Capture at='word', or draw only under "
            "autograd.is_training()"
        )

    def disable(operation: Operation, proceed: Callable[[], Any]) -> Any:
        operation.attributes["p"] = 0.0
        return proceed()

    handlers: dict[str, Handler] = dict.fromkeys(RANDOM_OPERATORS, refuse)
    del handlers["RNN"]  # a cure handles it
    return {**handlers, "Dropout": disable}
