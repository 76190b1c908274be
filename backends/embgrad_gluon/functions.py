"""Keeps what the user's own autograd functions raise in a backward pass: MXNet swallows it, and goes on with any numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from embgrad.interception import Interception
from embgrad_gluon.importing import import_mxnet

__all__ = ["Functions"]

_calls = Interception(lambda: import_mxnet().autograd.Function, "__call__")
_made = Interception(lambda: import_mxnet().operator.CustomOp, "__init__")


class Functions:
    """The `autograd.Function`s that one forward pass calls, and the `CustomOp`s that it makes.

    MXNet calls their `backward` from C, in a thread of its own. Of an Exception it makes an error that names none of it; of
    Ctrl-C and SystemExit nothing at all, and the gradient is what was in memory.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Those that are called meanwhile in this thread are heard of."""
        with _calls.by(self._called), _made.by(self._making):
            yield

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """What one of them raises while their gradients are computed and read is raised afterwards."""
        try:
            yield
        finally:
            if self._error is not None:
                raise self._error

    def _called(self, original: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        if type(function).__module__.startswith("embgrad_gluon."):
            return original(function, *inputs)
        function.backward = self._keeping(function.backward, [(one.shape, one.ctx, one.dtype) for one in inputs])
        return original(function, *inputs)  # once: MXNet lets no function be called again

    def _making(self, original: Callable[..., Any], operator: Any, *given: Any, **named: Any) -> None:
        original(operator, *given, **named)
        operator.backward = self._keeping(operator.backward)  # which writes its gradients, and returns none

    def _keeping(self, backward: Callable[..., Any], inputs: Sequence[tuple[Any, Any, Any]] = ()) -> Callable[..., Any]:
        def kept(*gradients: Any, **named: Any) -> Any:
            try:
                return backward(*gradients, **named)
            except BaseException as error:
                self._error = error
            zeros = import_mxnet().nd.zeros  # nobody will see them
            return tuple(zeros(shape, context, dtype) for shape, context, dtype in inputs)

        return kept
