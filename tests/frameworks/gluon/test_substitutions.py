"""Substitutions in MXNet Gluon, in float64 while the user records."""

from __future__ import annotations

import numpy as np

import embgrad
from tests.frameworks.gluon.helpers import mx


def test_a_table_in_float64_while_the_user_records() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(60, 8), mx.gluon.nn.Dense(3))
    net.initialize(mx.init.Normal(1))
    net(mx.nd.zeros((1, 4)))
    net.cast("float64")
    ids = np.random.default_rng(1).integers(0, 60, (2, 4))
    with mx.autograd.record():
        made = embgrad.substitutions(net, ids, embgrad.Logit(1), top=4)
    result = embgrad.gradients(net, ids, embgrad.Logit(1))
    table = net[0].weight.data().asnumpy().astype(np.float64)
    scores = ((table - result.activations[:, :, None]) * result.values[:, :, None]).sum(-1)
    np.put_along_axis(scores, ids[..., None], -np.inf, 2)
    np.testing.assert_allclose(made.scores, -np.sort(-scores, axis=-1)[..., :4], rtol=1e-9)
