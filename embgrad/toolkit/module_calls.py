"""The module calls and the products of one forward pass: their record, and the replacement of tensors at points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from embgrad.common.pytree import first, with_first
from embgrad.model_points.points import PRODUCT

__all__ = ["CallRecorder", "ModuleCalls", "RecordedCall", "call_recorded", "order_of_product", "split_last_factor"]


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

    def multiply(
        self,
        run: Callable[[list[Any]], Any],
        factors: Sequence[Any],
        paths: Sequence[str | None],
        equation: Any,
        transpose: Callable[[Any, list[int]], Any],
    ) -> Any:
        """Return a product, recorded as a call of a module of the weight's name where one of two factors is such a weight.

        Args:
            run: multiplies the factors.
            factors: the factors.
            paths: for each factor its path if it is a weight whose products are points; else None.
            equation: that of an Einstein sum; None for another product.
            transpose: returns an array with its axes in another order.
        """
        if len(factors) != 2 or (paths[0] is None) == (paths[1] is None):
            return run(list(factors))
        place = 0 if paths[1] is None else 1
        path, given = paths[place], factors[1 - place]
        if path is None or not self._is_floating(given):
            return run(list(factors))
        order = order_of_product(equation, weight_last=place == 1)

        def product(given: Any) -> Any:
            result = run([given, factors[1]] if place else [factors[0], given])
            return result if order is None else transpose(result, order)

        result = self.around(product, path, PRODUCT, (given,), {})
        return result if order is None else transpose(result, [order.index(axis) for axis in range(len(order))])

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


def order_of_product(equation: Any, *, weight_last: bool) -> list[int] | None:
    """Return the axes of an Einstein sum's result with the weight's behind the others; None where they are, or for other forms.

    Args:
        equation: the sum's, of two factors.
        weight_last: whether the weight is the second factor.
    """
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    given, weight = terms.split(",")[:: 1 if weight_last else -1]
    order = [result.index(letter) for letter in dict.fromkeys(given + weight) if letter in result]
    return None if order == sorted(order) else order


def split_last_factor(equation: Any) -> tuple[str, str] | None:
    """Return an Einstein sum over several factors in two steps, the last factor's the second; None for other forms.

    Args:
        equation: the sum's.
    """
    if not isinstance(equation, str) or "." in equation or "->" not in equation or equation.count(",") < 2:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    *others, last = terms.split(",")
    left = [letter for letter in dict.fromkeys("".join(others)) if letter in result + last]
    kept = "".join(sorted(left, key=lambda letter: letter not in result))  # positions before what is summed
    return f"{','.join(others)}->{kept}", f"{kept},{last}->{result}"
