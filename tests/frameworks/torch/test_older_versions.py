"""What PyTorch tells of itself since some version after 2.6, and what is found out otherwise before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import embgrad


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
