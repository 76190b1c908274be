"""The operators that stand in an exported graph for what is no function of PyTorch's: a lookup, a point, the end of gradients."""

from __future__ import annotations

from typing import Any, Final

import torch

__all__ = ["LOOKUP", "POINT", "STOP", "ended", "looked_up", "passed"]


def _look_up(table: torch.Tensor, indices: torch.Tensor, number: int) -> torch.Tensor:
    return torch.nn.functional.embedding(indices, table)


def _empty_rows(table: torch.Tensor, indices: torch.Tensor, number: int) -> torch.Tensor:
    return table.new_empty((*indices.shape, table.shape[1]))


def _pass(value: torch.Tensor, number: int) -> torch.Tensor:
    return value.clone()


def _stop(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


def _empty(value: torch.Tensor, number: int = 0) -> torch.Tensor:
    return torch.empty_like(value)


torch.library.custom_op("embgrad::lookup", _look_up, mutates_args=()).register_fake(_empty_rows)
torch.library.custom_op("embgrad::point", _pass, mutates_args=()).register_fake(_empty)
torch.library.custom_op("embgrad::stop", _stop, mutates_args=()).register_fake(_empty)

LOOKUP: Final = torch.ops.embgrad.lookup.default
POINT: Final = torch.ops.embgrad.point.default
STOP: Final = torch.ops.embgrad.stop.default


def looked_up(table: Any, indices: Any, number: int) -> Any:
    """The rows that go on at a lookup: they require gradients, whoever needs them."""
    with torch.no_grad():
        rows = LOOKUP(table, indices, number)
    return rows.requires_grad_().clone() if rows.is_floating_point() else rows  # models write into what they are given


def passed(value: Any, number: int) -> Any:
    """What goes on at a point of a module."""
    with torch.no_grad():
        new = POINT(value, number)
    return new.requires_grad_().clone()


def ended(value: Any) -> Any:
    """The same values off the graph."""
    with torch.no_grad():
        return STOP(value)
