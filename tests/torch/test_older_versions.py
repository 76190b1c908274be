"""What PyTorch tells of itself since some version after 2.6, and what is found out otherwise before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import checkpoints, storages
from torch import nn
from torch.utils.checkpoint import checkpoint

import embgrad


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch without the functions that 2.6 lacks."""
    monkeypatch.delattr(torch._C, "_storage_Use_Count", raising=False)
    storages._counting.cache_clear()
    yield
    storages._counting.cache_clear()


def holders() -> list[bool]:
    """Whether others hold: memory of one's own, that of a view of what is gone, that with one other view, and with one gone."""
    own = torch.zeros(4)
    found = [storages.is_held_by_others(own), storages.is_held_by_others(torch.zeros(4).view(2, 2))]
    view = own[1:]
    found.append(storages.is_held_by_others(own))
    del view
    return [*found, storages.is_held_by_others(own)]


def test_who_holds_memory_is_counted() -> None:
    assert holders() == [False, False, True, False]


@pytest.mark.usefixtures("older")
def test_who_holds_memory_is_counted_or_taken_to_be_held_where_pytorch_does_not_tell() -> None:
    if storages._counting() is None:  # PyTorch keeps the count elsewhere than 2.6 did, and tells it
        assert holders() == [True] * 4
    else:
        assert holders() == [False, False, True, False]


def test_a_count_that_is_none_is_found_out() -> None:
    assert not storages._counts(lambda memory: 2)
    assert not storages._counts(lambda memory: 0)


def test_a_segment_is_told_by_what_runs() -> None:
    told: list[tuple[bool, bool]] = []

    def segment(x: Any) -> Any:
        told.append((checkpoints.in_segment(), checkpoints.in_reentrant_segment()))
        return x * 2

    x = torch.ones(2, requires_grad=True)
    with checkpoints.segments_watched():
        for reentrant in (False, True):
            checkpoint(segment, x, use_reentrant=reentrant)
        segment(x)
        with torch.no_grad():
            checkpoint(segment, x, use_reentrant=False)
    assert told == [(True, False), (False, True), (False, False), (False, False)]
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)


class Failing(nn.Module):
    """Fails inside two segments."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids: Any) -> Any:
        def inner(rows: Any) -> Any:
            raise OSError("on purpose")

        return checkpoint(
            lambda rows: checkpoint(inner, rows * 2, use_reentrant=False), self.table(ids), use_reentrant=False
        )


def test_an_exception_ends_the_segments_that_it_leaves() -> None:
    with pytest.raises(OSError, match="on purpose") as held:
        embgrad.gradients(Failing(), [[1, 2]], lambda out: out.sum((1, 2)))
    x = torch.full((3,), 2.0, requires_grad=True)
    (x * x).sum().backward()  # what a segment that goes on forever saves could not be differentiated
    np.testing.assert_array_equal(x.grad, [4.0, 4.0, 4.0])
    assert held.value.args == ("on purpose",)
