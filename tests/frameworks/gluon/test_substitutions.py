"""Substitutions in MXNet Gluon: the same ids as autograd's own gradient of gluonnlp's BERT and its whole table give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embgrad_gluon.importing import import_gluonnlp

import embgrad
from tests.frameworks.gluon.helpers import mx, randomise

nlp = import_gluonnlp()

VOCAB, TOP = 500, 256
IDS = np.random.default_rng(0).integers(3, VOCAB, (2, 7))
MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
VECTOR = np.random.default_rng(1).normal(size=16).astype(np.float32)


def bert() -> Any:
    encoder = nlp.model.BERTEncoder(num_layers=2, units=16, hidden_size=24, max_length=10, num_heads=2, dropout=0.1)
    net = nlp.model.BERTModel(
        encoder,
        vocab_size=VOCAB,
        token_type_vocab_size=2,
        units=16,
        embed_size=16,
        use_pooler=True,
        use_decoder=False,
        use_classifier=False,
    )
    net.initialize(mx.init.Zero())
    zeros = mx.nd.zeros((1, 2))
    net(zeros, zeros, mx.nd.ones((1,)), zeros)
    randomise(net)
    return net


def by_hand(net: Any, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores, (example, position, top).

    Autograd's gradient of the table is the sum over an id's occurrences: each example, whose ids all differ, is run by itself.
    """
    table = net.word_embed[0].weight
    rows = table.data().asnumpy()
    slopes = np.zeros((*IDS.shape, rows.shape[1]))
    for example, ids in enumerate(IDS):
        assert len(set(ids)) == len(ids)
        inputs = (
            mx.nd.array(ids[None], dtype="int32"),
            mx.nd.zeros((1, 7), dtype="int32"),
            mx.nd.array([MASK[example].sum()]),
        )
        with mx.autograd.record(train_mode=False):
            pooled = net(*inputs)[1]
            value = (pooled * mx.nd.array(VECTOR[None])).sum()
        value.backward()
        slopes[example] = table.grad().asnumpy()[ids]
    dense = rows.astype(np.float64)
    scores = ((dense - dense[IDS][:, :, None]) * slopes[:, :, None]).sum(-1)
    np.put_along_axis(scores, IDS[..., None], -np.inf * sign, 2)
    order = np.argsort(-sign * scores, axis=-1, kind="stable")[..., :TOP]
    return order, np.take_along_axis(scores, order, -1)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
def test_the_best_ids_are_those_of_a_dense_computation_by_hand(goal: str, sign: int, hybrid: bool) -> None:
    net = bert()
    ids, scores = by_hand(net, sign)
    if hybrid:
        net.hybridize()
    batch = embgrad.TokenBatch(IDS, MASK, convention="gluonnlp")
    made = embgrad.substitutions(net, batch, embgrad.Projection(VECTOR, output="pooled"), top=TOP, goal=goal)
    real = MASK.astype(bool)
    np.testing.assert_array_equal(made.searched, real)
    np.testing.assert_allclose(made.scores[real], scores[real], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made.ids[real], ids[real])


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
