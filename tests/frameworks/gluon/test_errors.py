"""The errors for input that a model cannot take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, PointNotReachedError, UnsupportedError
from tests.frameworks.gluon.helpers import DIM, ROWS, distinct_ids, model, mx

nn, nd = mx.gluon.nn, mx.nd


def test_indices_that_are_not_whole_numbers_are_refused() -> None:
    for factor, add in ((0.5, 0.0), (1.0, float("nan"))):
        net = model(lambda net, F, x, factor=factor, add=add: net.words(x * factor + add).sum(axis=1))
        with pytest.raises(BatchError, match=r"table 'words' by indices of dtype float32 .*Cast the ids to int32"):
            embgrad.gradients(net, np.array([[1, 3]]), embgrad.Sum())


def test_negative_and_wrapped_indices_are_accepted() -> None:
    def look_up(net: Any, F: Any, x: Any) -> Any:
        last = net.places.weight.data()[nd.array([-1], dtype="int32")]
        round_again = net.places.weight.data().take(nd.array([-3, 9]), mode="wrap")
        return net.words(x).sum(axis=1) * last + round_again.sum()

    points = embgrad.points(model(look_up, places=nn.Embedding(4, DIM)), distinct_ids())
    assert [(point.name, point.lookup.indices.tolist()) for point in points[:2]] == [
        ("places#0", [3]),
        ("places#1", [1, 1]),
    ]


def test_selecting_rows_of_activations_is_not_a_lookup() -> None:
    net = model(lambda net, F, x: net.words(x).sum(axis=1)[nd.array([1, 0], dtype="int32")])
    assert [point.name for point in embgrad.points(net, distinct_ids())] == ["words#0"]


def test_a_model_that_changes_the_ids_first() -> None:
    net = model(lambda net, F, x: net.words(x - 1).sum(axis=1))
    with pytest.raises(PointNotReachedError, match=r"lookups seen: words#0 .*In Gluon a lookup is Embedding, take"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())
    found = embgrad.gradients(net, distinct_ids(), embgrad.Sum(), at="words")
    assert (found.values == 1).all()
    assert (found.ids == distinct_ids() - 1).all()
    hot = model(lambda net, F, x: nd.dot(nd.one_hot(x, ROWS), net.words.weight.data()).sum(axis=1))
    with pytest.raises(PointNotReachedError, match="one-hot vectors is not"):
        embgrad.gradients(hot, distinct_ids(), embgrad.Sum())


def test_an_operator_without_a_gradient() -> None:
    net = model(lambda net, F, x: nd.khatri_rao(net.words(x)[0], net.words(x)[1]))
    with pytest.raises(UnsupportedError, match="operator 'khatri_rao', for which MXNet has no"):
        embgrad.gradients(net, distinct_ids(), embgrad.Scalar(lambda out: out.sum()), at="words#0")


def test_writing_into_looked_up_rows_unrecorded_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.words(x)
        with mx.autograd.pause():
            rows[:, 0] = 0
        return rows.sum(axis=1)

    with pytest.raises(UnsupportedError, match=r"writes into the output of the lookup words#0 .* while it is not rec"):
        embgrad.gradients(model(forward, places=nn.Embedding(4, DIM)), distinct_ids(), embgrad.Sum())


def test_writing_into_a_recorded_array_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.words(x) * 1
        rows += 1
        return rows.sum(axis=1)

    net = model(forward, places=nn.Embedding(4, DIM))
    assert net(mx.nd.array(distinct_ids())).shape[0] == 2
    with pytest.raises(UnsupportedError, match=r"writes into an array that it has computed .* while it records"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())


def test_an_argument_that_gluon_cannot_pass_is_reported_as_unused() -> None:
    class Scaled(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(ROWS, DIM)
            self.scale = self.params.get("scale", shape=(1, DIM))

        def hybrid_forward(self, F: Any, ids: Any, scale: Any, mask: Any = None) -> Any:
            assert mask is None
            return F.broadcast_mul(F.sum(self.words(ids), axis=1), scale)

    net = Scaled()
    net.initialize()
    with pytest.warns(embgrad.EmbgradWarning, match="mask"):
        found = embgrad.gradients(net, embgrad.TokenBatch([[1, 0]], [[1, 0]]), embgrad.Sum())
    assert found.provenance["unused"] == ["mask"]
