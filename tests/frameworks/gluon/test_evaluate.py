"""Evaluations in Gluon: no graph is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from tests.frameworks.gluon.helpers import mx


def test_no_graph_is_recorded() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(9, 4), mx.gluon.nn.Dense(2))
    net.initialize()
    recorded = []

    def function(outputs: Any) -> Any:
        recorded.append(mx.autograd.is_recording())
        return outputs[:, 0]

    ids = np.array([[1, 2, 3], [4, 5, 6]])
    values = embgrad.evaluate(net, ids, function)
    np.testing.assert_allclose(values, embgrad.gradients(net, ids, function).objective, rtol=1e-6)
    np.testing.assert_allclose(values, embgrad.evaluate(net, ids, embgrad.Logit(0)), rtol=1e-6)
    assert recorded == [False, True]
