"""Gluon blocks that carry a state from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import mx
from tests.support.company import LOGIT, expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


class OfOneNumber(mx.gluon.Block):  # type: ignore[misc]
    """A sum of rows that begins with what it kept, in a pass of as many examples alone."""

    def __init__(self, way: str, count: int) -> None:
        super().__init__()
        mx.random.seed(0)
        self.way, self.count = way, count
        with self.name_scope():
            self.table, self.head = mx.gluon.nn.Embedding(9, 4), mx.gluon.nn.Dense(2, in_units=4)
            if way == "parameter":
                self.kept = self.params.get("kept", shape=(count, 4), grad_req="null", init=mx.init.Normal(1))
        self.initialize(mx.init.Normal(1))
        if way != "parameter":
            self.kept = mx.nd.random.normal(shape=(count, 4))

    def forward(self, ids: Any) -> Any:
        rows = self.table(ids).sum(1)
        if len(ids) != self.count:
            return self.head(rows.tanh())
        out = (rows + (self.kept.data() if self.way == "parameter" else self.kept)).tanh()
        if self.way == "parameter":
            self.kept.set_data(out.detach())
        elif self.way == "written":
            self.kept[:] = out.detach()
        else:
            self.kept = out.detach()
        return self.head(out)


def test_a_state_that_passes_of_one_number_of_examples_write() -> None:
    expect_state_of_one_number(lambda count: OfOneNumber("attribute", count), IDS)


@pytest.mark.parametrize("way", ["parameter", "written"])
def test_a_state_that_forward_passes_of_one_number_of_examples_write_in_place(way: str) -> None:
    """MXNet refuses such a write while it records a graph."""
    for count, size in ((3, 1), (3, 2), (1, 2)):
        model = OfOneNumber(way, count)
        with pytest.raises(embgrad.errors.UnsupportedError, match=r"the model keeps .* and L of example .* one of 3"):
            embgrad.evaluate(model, IDS, LOGIT, batch_size=size)
    with pytest.raises(embgrad.errors.UnsupportedError, match="from call to call, and L of example"):
        embgrad.gradients(OfOneNumber(way, 3), IDS, LOGIT, batch_size=1)
