"""Lookups of the ids that are not read as lookups, beside one that is: errors instead of wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import mx

IDS = np.array([[3, 5, 8, 1], [2, 2, 7, 1]])
VOCAB, DIM = 10, 4
SHAPES = {
    "table": (VOCAB, DIM),
    "words": (VOCAB, DIM),
    "columns": (DIM, VOCAB),
    "blocks": (VOCAB, 2, 2),
    "scale": (VOCAB, 1),
    "classes": (VOCAB,),
    "head": (DIM, 2),
    "whole": (VOCAB, DIM),
    "characters": (VOCAB, 3),
}
WHOLE = {"whole": "int8", "characters": "int32"}


class Net(mx.gluon.HybridBlock):  # type: ignore[misc]  # MXNet has no types
    """A mean of rows that are made in some way, with a bias of one number for each token."""

    def __init__(self, rows: Callable[..., Any], *, bias: bool = True) -> None:
        super().__init__()
        self.rows, self.has_bias = rows, bias
        rng = np.random.default_rng(0)
        with self.name_scope():
            for name, shape in SHAPES.items():
                value = rng.integers(0, VOCAB, shape) if name in WHOLE else rng.normal(size=shape)
                parameter = self.params.get(
                    name,
                    shape=shape,
                    dtype=WHOLE.get(name, "float32"),
                    init=mx.init.Constant(mx.nd.array(value)),
                    grad_req="null" if name in WHOLE else "write",
                )
                setattr(self, name, parameter)
        self.initialize()

    def hybrid_forward(self, F: Any, ids: Any, **parameters: Any) -> Any:
        logits = F.dot(F.tanh(F.mean(self.rows(F, parameters, ids), axis=1)), parameters["head"])
        if not self.has_bias:
            return logits
        return F.broadcast_add(logits, F.sum(F.take(parameters["scale"], ids), axis=1))


def hot(F: Any, ids: Any) -> Any:
    return F.one_hot(ids, VOCAB)


UNREAD: dict[str, tuple[Callable[..., Any], str]] = {
    "columns": (
        lambda F, p, ids: F.transpose(F.take(p["columns"], ids, axis=1), (1, 2, 0)),
        r"entries along axis 1 of '\w+', of shape \(4, 10\) and dtype float32, where embgrad expects rows, along axis 0 \(take\)",
    ),
    "three axes": (
        lambda F, p, ids: F.reshape(F.take(p["blocks"], ids), (2, 4, DIM)),
        r"entries of '\w+', of shape \(10, 2, 2\) .* rows of a matrix",
    ),
    "whole numbers": (
        lambda F, p, ids: F.cast(F.take(p["whole"], ids), "float32"),
        "int8, which is not floating point",
    ),
    "whole numbers, by Embedding": (
        lambda F, p, ids: F.cast(
            F.Embedding(ids, p["whole"], input_dim=VOCAB, output_dim=DIM, dtype="int8"), "float32"
        ),
        "int8, which is not floating point",
    ),
    "a product": (lambda F, p, ids: F.dot(hot(F, ids), p["table"]), r"one-hot rows of a product \(dot\) with"),
    "a dense layer": (
        lambda F, p, ids: F.FullyConnected(hot(F, ids), p["columns"], no_bias=True, num_hidden=DIM, flatten=False),
        r"one-hot rows of a product \(FullyConnected\) with",
    ),
}

#: Ways that only arrays have, not symbols.
ARRAYS: dict[str, tuple[Callable[..., Any], str]] = {
    "indexed columns": (
        lambda F, p, ids: p["columns"][:, ids].transpose((1, 2, 0)),
        r"along axis 1 of 'columns', .*gather_nd",
    ),
    "indexed three axes": (lambda F, p, ids: p["blocks"][ids].reshape((2, 4, DIM)), "entries of 'blocks'"),
    "indexed whole numbers": (lambda F, p, ids: p["whole"][ids].astype("float32"), "rows of 'whole', .* int8"),
    "a sparse product": (
        lambda F, p, ids: mx.nd.sparse.dot(hot(F, ids.reshape(-1)).tostype("csr"), p["table"]).reshape((2, 4, DIM)),
        r"one-hot rows of a product \(dot\) with 'table'",
    ),
}

#: Other uses of ids in ordinary models.
ORDINARY: dict[str, Callable[..., Any]] = {
    "a mask": lambda F, p, ids: F.broadcast_mul(F.take(p["words"], ids), F.expand_dims(ids != 0, -1)),
    "characters": lambda F, p, ids: (
        F.take(p["words"], ids) + F.mean(F.take(p["table"], F.take(p["characters"], ids)), axis=-2)
    ),
    "a number for each token": lambda F, p, ids: F.broadcast_mul(
        F.take(p["words"], ids), F.expand_dims(F.take(p["classes"], ids), -1)
    ),
    "a number by position and token": lambda F, p, ids: (
        F.take(p["words"], ids) + p["columns"][mx.nd.arange(4, dtype="int32"), ids].expand_dims(-1)
    ),
    "a number of one row": lambda F, p, ids: F.take(p["words"], ids) + p["columns"][0, ids].expand_dims(-1),
    "log-probabilities of the ids": lambda F, p, ids: (
        lambda rows: F.broadcast_add(rows, F.expand_dims(F.pick(F.log_softmax(F.dot(rows, p["columns"])), ids), -1))
    )(F.take(p["words"], ids)),
}


def exported(net: Any, folder: Path) -> Any:
    net.hybridize()
    net(mx.nd.array(IDS))
    net.export(str(folder / "net"))
    return mx.gluon.SymbolBlock.imports(str(folder / "net-symbol.json"), ["data"], str(folder / "net-0000.params"))


@pytest.mark.parametrize("kind", ["block", "hybridised", "symbols"])
@pytest.mark.parametrize("way", [*UNREAD, *ARRAYS])
def test_another_lookup_is_not_word(way: str, kind: str, tmp_path: Path) -> None:
    if way in ARRAYS and kind != "block":
        return
    rows, message = {**UNREAD, **ARRAYS}[way]
    model = Net(rows)
    if kind == "hybridised":
        model.hybridize()
    model = exported(model, tmp_path) if kind == "symbols" else model
    with pytest.raises(
        embgrad.errors.PointNotReachedError,
        match=rf"lookup .*scale#0 .* may not be the model's embedding of the ids, .*{message}",
    ):
        embgrad.gradients(model, IDS, embgrad.Logit(1))


@pytest.mark.parametrize("way", ORDINARY)
def test_ordinary_uses_of_ids_are_no_lookups(way: str) -> None:
    found = embgrad.gradients(Net(ORDINARY[way], bias=False), IDS, embgrad.Logit(1))
    assert (found.provenance["path"], found.values.shape) == ("words#0", (2, 4, DIM))


def test_the_other_table_can_be_named_and_a_capture_refuses_word() -> None:
    model = Net(UNREAD["columns"][0])
    assert [point.roles for point in embgrad.points(model, IDS) if point.lookup is not None] == [()]
    found = embgrad.gradients(model, IDS, embgrad.Logit(1), at="scale")
    np.testing.assert_array_equal(found.values, np.ones((2, 4, 1), np.float32))
    with (
        pytest.raises(embgrad.errors.PointNotReachedError, match="may not be the model's embedding"),
        embgrad.capture(model),
        mx.autograd.record(),
    ):
        model(mx.nd.array(IDS)).sum().backward()
