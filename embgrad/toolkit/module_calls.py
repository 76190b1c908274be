"""The module calls of one forward pass: their record, and the replacement of tensors at points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from embgrad.common.pytree import first, with_first

__all__ = ["CallRecorder", "ModuleCalls", "RecordedCall", "call_recorded"]


class CallRecorder(Protocol):
    """The methods of `PassRecorder` that record module calls; a trace implements them separately."""

    everything: bool
    modules: frozenset[str]
    counted: frozenset[str]

    def count(self, path: str) -> None:
        """Count a call that is not recorded."""
        ...

    def enter(self, path: str, kind: str, tensor: Any, shape: Any, also: Sequence[str] = ()) -> str | None:
        """Record that a call begins, and return the key of its input if that is a requested point."""
        ...

    def leave(self, tensor: Any, shape: Any) -> str | None:
        """Record that the innermost call ends, and return the key of its output if that is a requested point."""
        ...

    def replace_tensor(self, tensor: Any, new: Any) -> None:
        """Record that the model continues with another tensor in place of one at a point."""
        ...

    def exit_on_error(self) -> None:
        """Record that the innermost call raised."""
        ...


class ModuleCalls:
    """The module calls of one forward pass.

    A framework whose calls can be wrapped uses `around`. A framework whose hooks run before and after a call uses `enter` and
    `leave`, and `fail` for a call that raised.

    Args:
        watch: the record of the pass.
        is_floating: returns whether a value is a tensor at which a gradient can be taken.
        replace: takes the key of a point and its tensor, and returns the tensor with which the model continues.
    """

    def __init__(
        self, watch: CallRecorder, is_floating: Callable[[object], bool], replace: Callable[[str, Any], Any]
    ) -> None:
        self.watch = watch
        self._is_floating = is_floating
        self._replace = replace

    def is_recorded(self, path: str) -> bool:
        """Return whether the calls of the module at this path are recorded; count a call that is only counted."""
        if self.watch.everything or path in self.watch.modules:
            return True
        if path in self.watch.counted:
            self.watch.count(path)
        return False

    def around(
        self, proceed: Callable[..., Any], path: str, kind: str, args: Any, kwargs: Any, also: Sequence[str] = ()
    ) -> Any:
        """Call `proceed` with the arguments, and return the result with which the model continues.

        Args:
            proceed: calls the module.
            path: the module's attribute path.
            kind: the name of its class.
            args: the positional arguments.
            kwargs: the keyword arguments.
            also: further paths of the module.
        """
        return call_recorded([RecordedCall(self, path, also)], proceed, kind, args, kwargs)

    def enter(self, path: str, kind: str, args: Any, kwargs: Any, also: Sequence[str] = ()) -> tuple[Any, Any]:
        """Record that a call begins, and return the arguments with which it continues."""
        tensor = first((args, kwargs), self._is_floating)
        key = self.watch.enter(path, kind, tensor, () if tensor is None else tensor.shape, also)
        if key is None:
            return args, kwargs
        try:
            changed: tuple[Any, Any] = with_first((args, kwargs), self._is_floating, self._replace_first(key, tensor))
        except BaseException:
            self.fail()
            raise
        return changed

    def leave(self, returned: Any) -> Any:
        """Record that the innermost call ends, and return the result with which the model continues."""
        tensor = first(returned, self._is_floating)
        key = self.watch.leave(tensor, () if tensor is None else tensor.shape)
        return returned if key is None else with_first(returned, self._is_floating, self._replace_first(key, tensor))

    def fail(self) -> None:
        """Record that the innermost call raised."""
        self.watch.exit_on_error()

    def _replace_first(self, key: str, tensor: Any) -> Any:
        new = self._replace(key, tensor)
        self.watch.replace_tensor(tensor, new)
        return new


class RecordedCall(NamedTuple):
    """A call of a module as one pass records it.

    Attributes:
        calls: the module calls of the pass.
        path: the module's attribute path in the model of the pass.
        also: further paths of the module.
    """

    calls: ModuleCalls
    path: str
    also: Sequence[str] = ()


def call_recorded(
    records: Sequence[RecordedCall], proceed: Callable[..., Any], kind: str, args: Any, kwargs: Any
) -> Any:
    """Call a module that several passes record, and return the result with which they continue.

    Before and after the call each pass sees, and may replace, the tensor with which the one before it continues.

    Args:
        records: the call as each pass records it, those first whose replacements the others see.
        proceed: calls the module.
        kind: the name of its class.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    entered: list[ModuleCalls] = []
    try:
        for calls, path, also in records:
            if calls.is_recorded(path):
                args, kwargs = calls.enter(path, kind, args, kwargs, also)
                entered.append(calls)
        returned = proceed(*args, **kwargs)
        while entered:
            returned = entered.pop(0).leave(returned)
    except BaseException:
        for calls in entered:
            calls.fail()
        raise
    return returned
