"""Bisection of Gluon nets with faults injected by hand: gluonnlp's BERT, a user's own blocks, hybridised, SymbolBlocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon.bert import build

import embgrad
from embgrad.engine.weights import weights_of
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import mx

nn = mx.gluon.nn
LAYERS = 4
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
POOLED = embgrad.Projection(RANDOM.normal(size=32), output="pooled")
LABELS = embgrad.CrossEntropy([0, 1, 2])


def bert() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 20}
    model, targets = build({**sizes, "num_hidden_layers": LAYERS, "num_attention_heads": 4})
    random = np.random.default_rng(3)
    for target in targets:
        target.put(random.normal(size=target.shape) * 0.2 + target.source.endswith("LayerNorm.weight"))
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return bert()


def cell(model: Any) -> Any:
    return model.encoder.transformer_cells[2]


def swap(b: Any) -> None:
    attention = cell(b).attention_cell
    query, key = attention.query_weight.data().copy(), attention.key_weight.data().copy()
    attention.query_weight.set_data(key)
    attention.key_weight.set_data(query)


def turn(b: Any) -> None:
    cell(b).proj.weight.set_data(cell(b).proj.weight.data().T)


def epsilon(b: Any) -> None:
    cell(b).ffn.layer_norm._epsilon = 1e-2


def other_gelu(b: Any) -> None:
    cell(b).ffn.activation.hybrid_forward = lambda F, x: x * F.sigmoid(1.702 * x)


def no_residual_around_attention(b: Any) -> None:
    own = cell(b)
    own.hybrid_forward = lambda F, x, length=None: (
        own.ffn(own.layer_norm(own.proj(own.attention_cell(x, length)[0]))),
        [],
    )


def no_residual(b: Any) -> None:
    cell(b).ffn._use_residual = False


@pytest.mark.parametrize(
    ("fault", "module"),
    [
        (swap, "attention_cell"),
        (turn, "proj"),
        (epsilon, "ffn.layer_norm"),
        (other_gelu, "ffn.activation"),
        (no_residual_around_attention, ""),
        (no_residual, "ffn"),
    ],
)
def test_faults_in_code_are_located(model: Any, fault: Callable[[Any], None], module: str) -> None:
    other = bert()
    fault(other)
    found = embgrad.bisect(model, other, BATCH, POOLED)
    assert (found.first, found.direction) == ("layer.2", "forward")
    assert found.module == f"encoder.transformer_cells.2.{module}".removesuffix(".")
    attention = "encoder.transformer_cells.2.attention_cell"
    relations = {weight.a: weight.relation for weight in found.parameters if weight.differs}
    assert relations == {
        swap: {
            f"{attention}.proj_query.weight": f"swapped with {attention}.proj_key.weight",
            f"{attention}.proj_key.weight": f"swapped with {attention}.proj_query.weight",
        },
        turn: {"encoder.transformer_cells.2.proj.weight": "transposed"},
    }.get(fault, {})


# A user's own blocks


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
