"""Further inputs that hold arrays, in dicts and tuples, go with their examples in each framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from embgrad_gluon.importing import import_mxnet

import embgrad

mx = import_mxnet()

IDS = np.array([[3, 1, 4], [2, 5, 1]])
TABLE = np.linspace(-1, 1, 24).reshape(6, 4)
SCALES = np.array([[2.0], [-3.0]])
SHIFTS = np.array([[0.5, 1.0, 0.0, -1.0], [0.0, 2.0, 1.0, 1.0]])
#: A dict, one entry a layer of as many as there are examples, and a dict of a dict with what all share.
FURTHER = [
    ({"scale": SCALES, "shift": SHIFTS}, lambda given: (given["scale"], given["shift"])),
    (((SCALES, SHIFTS), (SCALES, SHIFTS)), lambda given: given[1]),
    ({"deep": {"all": (SCALES, SHIFTS)}, "one": np.ones((1, 4))}, lambda given: given["deep"]["all"]),
]


class Torch(torch.nn.Module):
    def __init__(self, chosen: Any) -> None:
        super().__init__()
        self.chosen = chosen
        self.table = torch.nn.Embedding.from_pretrained(torch.tensor(TABLE))

    def forward(self, input_ids: Any, given: Any) -> Any:
        scale, shift = self.chosen(given)
        return torch.tanh(self.table(input_ids).mean(1) * scale + shift).reshape(len(input_ids), -1, 4).sum(1)


class Tensorflow(tf.Module):
    def __init__(self, chosen: Any) -> None:
        super().__init__()
        self.chosen = chosen
        self.table = tf.Variable(TABLE)

    def __call__(self, input_ids: Any, given: Any) -> Any:
        scale, shift = self.chosen(given)
        rows = tf.tanh(tf.reduce_mean(tf.gather(self.table, input_ids), 1) * scale + shift)
        return tf.reduce_sum(tf.reshape(rows, (len(input_ids), -1, 4)), 1)


class Gluon(mx.gluon.Block):
    def __init__(self, chosen: Any) -> None:
        super().__init__()
        self.chosen = chosen
        self.table = mx.gluon.nn.Embedding(6, 4, dtype="float64")
        self.initialize()
        self.table.weight.set_data(mx.nd.array(TABLE, dtype="float64"))

    def forward(self, input_ids: Any, given: Any) -> Any:
        scale, shift = self.chosen(given)
        rows = mx.nd.broadcast_add(mx.nd.broadcast_mul(self.table(input_ids).mean(1), scale), shift)
        return mx.nd.tanh(rows).reshape((len(input_ids), -1, 4)).sum(1)


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"check": True}, {"split": True}], ids=str)
@pytest.mark.parametrize(("given", "chosen"), FURTHER, ids=["dict", "layers", "deep"])
@pytest.mark.parametrize("net", [Torch, Tensorflow, Gluon])
def test_each_example_has_its_own_entries_of_extra_inputs(
    net: type, given: Any, chosen: Any, options: dict[str, Any]
) -> None:
    """Also in a model that takes the entries of all examples for one example, and gives other numbers without a word."""
    mean = TABLE[IDS].mean(1)
    slope = SCALES * (1 - np.tanh(mean * SCALES + SHIFTS) ** 2)
    batch = embgrad.TokenBatch(IDS, extras={"given": given})
    found = embgrad.gradients(net(chosen), batch, embgrad.Sum(), **options)
    np.testing.assert_allclose(found.values, np.repeat(slope[:, None] / 3, 3, 1), rtol=1e-12)
