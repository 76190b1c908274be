"""Kept graphs: no symbol stays where a program keeps what its net computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gluon.helpers import mx
from tests.leaving import KEEPS, Store, assert_draws, assert_values_left, keeping

GENERATOR = np.random.default_rng(0)
IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 1]])


class Net(mx.gluon.HybridBlock):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.table = mx.gluon.nn.Embedding(9, 4)
        self.keep = keep

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        bent = F.tanh(self.table(ids))
        self.keep(bent)
        return F.mean(bent, axis=1)


@pytest.mark.parametrize("where", KEEPS)
def test_what_a_program_keeps_has_values(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(globals(), monkeypatch)

    class Own(Net):
        latest: Any = None

    store = Store()
    net = Own(KEEPS[where](globals(), Own, store))
    net.initialize()
    assert_values_left(net, IDS, globals(), store, lambda one: isinstance(one, mx.nd.NDArray))


class Noisy(Net):
    """Draws from a generator of its program's."""

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        return super().hybrid_forward(F, ids) * GENERATOR.normal()


def test_a_program_s_generator() -> None:
    net = Noisy([].append)
    net.initialize()
    assert_draws(net, IDS)
