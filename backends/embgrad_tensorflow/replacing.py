"""Puts other tensors in the place of what an operation gave: an op callback sees those in eager mode and cannot replace them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from tensorflow.python import pywrap_tfe
from tensorflow.python.ops import gen_array_ops, gen_resource_variable_ops

from embgrad.errors import UnsupportedError
from embgrad.interception import Interception

__all__ = ["Replacing"]

#: What TensorFlow's own functions run an operation by, `tf.raw_ops` included.
_fast_path: Final = Interception(lambda: pywrap_tfe, "TFE_Py_FastPathExecute")

#: What those of lookups run it by where their operands are none that the fast path takes.
_fallbacks: Final = (
    Interception(lambda: gen_array_ops, "gather_eager_fallback"),
    Interception(lambda: gen_array_ops, "gather_v2_eager_fallback"),
    Interception(lambda: gen_array_ops, "gather_nd_eager_fallback"),
    Interception(lambda: gen_resource_variable_ops, "resource_gather_eager_fallback"),
    Interception(lambda: gen_resource_variable_ops, "resource_gather_nd_eager_fallback"),
)


class Replacing:
    """Holds what is to take the place of a tensor from the op callback that saw it to where the operation hands it on."""

    def __init__(self) -> None:
        self._due: tuple[Any, Callable[[Any], Any]] | None = None

    def promise(self, tensor: Any, make: Callable[[Any], Any]) -> None:
        """What `make` gives for the tensor goes on in its place, which an operation gave just now."""
        self._due = (tensor, make)

    def going_on(self, result: Any) -> Any:
        """What goes on in place of an operation's result."""
        if self._due is None or result is not self._due[0]:
            return result
        (tensor, make), self._due = self._due, None
        return make(tensor)

    def expect_done(self) -> None:
        """Refuse to go on where a tensor went on that another was to take the place of.

        Raises:
            UnsupportedError: the operation that gave it was run in a way that is not known here.
        """
        if self._due is not None:
            self._due = None
            raise UnsupportedError(
                "the model makes a lookup in a way that hands its rows on unseen, so that they cannot be replaced: expected "
                "tf.gather, tf.nn.embedding_lookup, an Embedding layer or one of tf.raw_ops; leave override, add and edit out "
                "there"
            )

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Replace what this thread's operations give."""

        def through(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.going_on(original(*args, **kwargs))

        with contextlib.ExitStack() as held:
            for interception in (_fast_path, *_fallbacks):
                held.enter_context(interception.by(through))
            yield
