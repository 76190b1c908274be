"""Tells from the sizes of a call's tensors whether an exported graph serves for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

__all__ = ["Sizes"]


class Sizes:
    """What a graph takes for granted of the sizes of its inputs.

    Args:
        inputs: the graph's nodes for the tensors of the call.

    Attributes:
        by_values: whether any number was to be had of tensors' values, be it only to be dropped or looked at in Python.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        values = [node.meta["val"] for node in inputs]
        self._expected = [[size if isinstance(size, int) else size.node._expr for size in one.shape] for one in values]
        environment = next((one.fake_mode.shape_env for one in values if one.fake_mode is not None), None)
        guards = () if environment is None else environment.guards
        self._guards = [one.expr for one in guards]
        self._ranges = {} if environment is None else dict(environment.var_to_range)
        self.by_values = any(map(free_unbacked_symbols, self._ranges))

    def serve(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the graph holds for tensors of these shapes."""
        found: dict[Any, int] = {}
        for expected, shape in zip(self._expected, shapes, strict=True):
            for expression, size in zip(expected, shape, strict=True):
                if isinstance(expression, int):
                    if expression != size:
                        return False
                elif found.setdefault(expression, size) != size:
                    return False
        if any(symbol.is_Symbol and not self._inside(symbol, size) for symbol, size in found.items()):
            return False
        compound = [one.subs(found) == size for one, size in found.items() if not one.is_Symbol]
        return all(compound) and all(guard.subs(found) == True for guard in self._guards)  # noqa: E712  # one of sympy's

    def _inside(self, symbol: Any, size: int) -> bool:
        range_ = self._ranges.get(symbol)
        return range_ is None or bool(range_.lower <= size <= range_.upper)
