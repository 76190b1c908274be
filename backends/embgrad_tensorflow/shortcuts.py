"""All that a pass over a model follows, so that one gradient takes the place of several: layer norms, attention, activations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from embgrad_tensorflow.activating import Activations
from embgrad_tensorflow.attending import Attentions
from embgrad_tensorflow.following import RECORDINGS, Follower, Handler, one_after_another
from embgrad_tensorflow.normalising import Norms
from embgrad_tensorflow.state import depth, pushes

__all__ = ["Shortcuts"]


class Shortcuts:
    """The followers of one forward pass.

    Args:
        recorded_anew: is told, with a name, of what operations gave and somebody gives the tapes another gradient of; in a graph
            that is an operation of its own.
        traced: whether it is traced into a graph.

    Attributes:
        handlers: by the operation's name what is to be told of it, see `Watcher`.
    """

    def __init__(
        self, recorded_anew: Callable[[Any, Sequence[Any]], None] | None = None, *, traced: bool = False
    ) -> None:
        self._recorded_anew = recorded_anew
        self._depth = depth()
        self._followers: Sequence[Follower] = (Norms(traced=traced), Attentions(traced=traced))
        if traced:
            self._followers = (*self._followers, Activations())
        told: dict[str, list[Handler]] = {}
        for follower in self._followers:
            for name, handler in follower.handlers.items():
                told.setdefault(name, []).append(handler)
        self.handlers: Mapping[str, Handler] = {name: one_after_another(*handlers) for name, handlers in told.items()}

    @contextlib.contextmanager
    def until_another_tape(self) -> Iterator[None]:
        """Follow the pass until a tape of the model's own begins to record. What was found on the way is not kept."""

        def begun(original: Callable[..., Any], tape: Any, *args: Any, **kwargs: Any) -> Any:
            if depth() == self._depth:  # else it is that of a pass inside of this one
                self._stop()
            return original(tape, *args, **kwargs)

        def recorded(original: Callable[..., Any], name: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._recorded_anew is not None:
                self._recorded_anew(name, outputs)
            for follower in self._followers:
                follower.forget(outputs)
            return original(name, outputs, *args, **kwargs)

        try:
            with pushes.by(begun), contextlib.ExitStack() as held:
                for one in RECORDINGS:
                    held.enter_context(one.by(recorded))
                yield
        finally:
            self._stop()

    def passed(self) -> None:
        """The pass is over."""
        for follower in self._followers:
            follower.passed()

    def _stop(self) -> None:
        for follower in self._followers:
            follower.stop()
