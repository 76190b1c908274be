"""The model's state and the user's passes are unchanged by a call."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from tests.contract.conformance.harness_gluon import Harness
from tests.frameworks.gluon.helpers import DIM, ROWS, Model, built, distinct_ids, mx, relative

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd


class Net(mx.gluon.HybridBlock):
    """Everything that has a state: batch norm, dropout, pooling, a fused recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.E = nn.Embedding(ROWS, DIM)
            self.norm = nn.BatchNorm(axis=-1)
            self.encoder = rnn.GRU(3, dropout=0.5, num_layers=2)
            self.dropout = nn.Dropout(0.5)
            self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.dropout(self.norm(self.E(x)))
        rows = F.Pooling(F.swapaxes(rows, 1, 2), kernel=(2,), pool_type="max", stride=(1,))
        return self.top(F.mean(self.encoder(F.transpose(rows, axes=(2, 0, 1))), axis=0))


def make(hybrid: bool = True) -> Any:
    net = built(Net, distinct_ids(), "float32")
    net.top.collect_params().setattr("grad_req", "null")
    net.norm.gamma.grad_req = "add"
    if hybrid:
        net.hybridize(static_alloc=True)
        net(nd.array(distinct_ids()))
    with autograd.record():
        net(nd.array(distinct_ids())).sum().backward()
    Harness().disturb(net)
    return net


def test_random_numbers_move_in_training_mode_only() -> None:
    net = make(hybrid=False)

    def drawn(**options: Any) -> float:
        mx.random.seed(7)
        if options:
            embgrad.gradients(net, distinct_ids(), embgrad.Logit(0), **options)
        return float(nd.random.uniform().asscalar())

    assert drawn(training=False) == drawn()
    assert drawn(training=True) != drawn()
    mx.random.seed(7)
    with autograd.train_mode():
        embgrad.points(net, distinct_ids())
    assert float(nd.random.uniform().asscalar()) == drawn()


def test_training_mode_drops_as_a_recorded_forward_pass() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        return F.sum(F.square(net.dropout(net.words(x))), axis=1)

    net = built(lambda: Model(forward, dropout=nn.Dropout(0.5)), distinct_ids(), "float64")
    mx.random.seed(3)
    found = embgrad.gradients(net, distinct_ids(), embgrad.Sum(), training=True)
    mx.random.seed(3)
    with autograd.record():
        own = net(nd.array(distinct_ids(), dtype="float64"))
    own.backward()
    assert np.allclose(found.objective, own.sum(axis=1).asnumpy())
    rows = net.words.weight.grad().asnumpy()[distinct_ids()]
    assert relative(found.values, rows) < 1e-12
    assert (rows == 0).any()
