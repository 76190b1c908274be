"""Bisection of Gluon nets with faults injected by hand: a user's own blocks, hybridised, SymbolBlocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.weights import weights_of
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import mx

nn = mx.gluon.nn
LAYERS = 4
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
LABELS = embgrad.CrossEntropy([0, 1, 2])


class Block(nn.HybridBlock):
    def __init__(self, activation: str = "relu", factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        with self.name_scope():
            self.norm, self.up = nn.LayerNorm(), nn.Dense(24, flatten=False, activation=activation)
            self.down = nn.Dense(16, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x + self.factor * self.down(self.up(self.norm(x)))


def net(like: Any = None, *, hybridised: bool = False, **options: Any) -> Any:
    model = nn.HybridSequential()
    model.add(nn.Embedding(60, 16))
    for number in range(LAYERS):
        model.add(Block(**(options if number == 2 else {})))
    model.add(nn.HybridLambda(lambda F, x: F.mean(x, axis=1)), nn.Dense(3))
    model.initialize(mx.init.Normal(0.3))
    model(mx.nd.array(BATCH.ids))
    if like is not None:
        for own, other in zip(model.collect_params().values(), like.collect_params().values(), strict=True):
            own.set_data(other.data())
    if hybridised:
        model.hybridize()
    return model


def scaled(parameter: Any) -> None:
    parameter.set_data(parameter.data() * 1.01)


@pytest.mark.parametrize("hybridised", [False, True])
def test_a_sequential_net(hybridised: bool) -> None:
    a = net()
    assert embgrad.bisect(a, net(a, hybridised=hybridised), BATCH.ids, LABELS).agrees
    scaled((b := net(a, hybridised=hybridised))[3].up.weight)
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert (found.first, found.module) == ("layer.2", "3.up")
    assert [one.a for one in found.parameters if one.differs] == ["3.up.weight"]
    scaled((b := net(a, hybridised=hybridised))[6].weight)
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert (found.first, found.module, found.after) == ("6:output", "6", "layer.3")
    found = embgrad.bisect(a, net(a, hybridised=hybridised, activation="tanh"), BATCH.ids, LABELS)
    assert (found.first, found.module) == ("layer.2", "3.up.act")
    found = embgrad.bisect(a, net(a, hybridised=hybridised, factor=1.1), BATCH.ids, LABELS)
    assert (found.first, found.module) == ("layer.2", "3")


def test_a_symbol_block(tmp_path: Path) -> None:
    a = net(hybridised=True)
    blocks = [exported(a, [mx.nd.array(BATCH.ids)], tmp_path) for _ in range(2)]
    assert embgrad.bisect(a, blocks[0], BATCH.ids, LABELS).agrees
    weight = [one for one in weights_of(blocks[1]) if one.shape == (24, 16)][2]
    weight.put(weight.get() * 1.01)
    found = embgrad.bisect(*blocks, BATCH.ids, LABELS)
    assert (found.first, found.module) == ("layer.2", weight.module)
    assert [one.a for one in found.parameters if one.differs] == [weight.name]
