"""Lookups of the ids that PyTorch's mode does not read as lookups, beside one that it does: errors instead of wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import embgrad

IDS = np.array([[3, 5, 8, 1], [2, 2, 7, 1]])
VOCAB, DIM = 10, 4


class Net(nn.Module):
    """A mean of rows that are made in some way, with a bias of one number for each token."""

    def __init__(self, rows: Callable[[Any, Any], Any], *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.bias, self.words = rows, bias, nn.Embedding(VOCAB, DIM)
        self.table, self.columns = nn.Parameter(torch.randn(VOCAB, DIM)), nn.Parameter(torch.randn(DIM, VOCAB))
        self.blocks, self.stack = nn.Parameter(torch.randn(VOCAB, 2, 2)), nn.Parameter(torch.randn(2, VOCAB, DIM))
        self.scale, self.classes = nn.Parameter(torch.randn(VOCAB, 1)), nn.Parameter(torch.randn(VOCAB))
        self.register_buffer("whole", torch.randint(-9, 9, (VOCAB, DIM), dtype=torch.int8))
        self.loose = self.whole.clone()
        self.characters = torch.randint(0, VOCAB, (VOCAB, 3))
        self.head = nn.Linear(DIM, 2)

    def forward(self, input_ids: Any) -> Any:
        logits = self.head(torch.tanh(self.rows(self, input_ids).mean(1)))
        return logits + self.scale[input_ids].sum(1) if self.bias else logits


def hot(ids: Any) -> Any:
    return functional.one_hot(ids, VOCAB).float()


def sparse(net: Net, ids: Any, layout: torch.layout) -> Any:
    places = torch.stack([torch.arange(ids.numel()), ids.flatten()])
    rows = torch.sparse_coo_tensor(places, torch.ones(ids.numel()), (ids.numel(), VOCAB))
    rows = rows if layout is torch.sparse_coo else rows.to_sparse_csr()
    return (rows @ net.table).reshape(*ids.shape, DIM)


UNREAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "columns": (lambda net, ids: net.columns[:, ids].permute(1, 2, 0),
        r"entries along axis 1 of 'columns', of shape \(4, 10\)"),
    "columns after an ellipsis": (lambda net, ids: net.columns[..., ids].permute(1, 2, 0),
        "entries along axis 1 of 'columns'"),
    "columns inside of a transform": (
        lambda net, ids: torch.vmap(lambda scale: net.columns[:, ids] * scale)(torch.ones(1))[0].permute(1, 2, 0),
        "entries along axis 1 of 'columns'",
    ),
    "selected columns": (lambda net, ids: net.columns.index_select(1, ids.flatten()).T.reshape(*ids.shape, DIM),
        r"entries along axis 1 of 'columns', .* \(TensorBase\.index_select\)"),
    "three axes": (lambda net, ids: net.blocks[ids].flatten(2),
        r"entries of 'blocks', of shape \(10, 2, 2\) .* rows of a matrix"),
    "a view of three axes": (lambda net, ids: net.table.view(VOCAB, 2, 2)[ids].flatten(2), "entries of 'table'"),
    "one of a stack": (lambda net, ids: net.stack[1, ids], "entries along axis 1 of 'stack'"),
    "whole numbers": (lambda net, ids: net.whole[ids].float(),
        "rows of 'whole', of shape .* int8, which is not floating point"),
    "whole numbers outside of the state": (lambda net, ids: net.loose[ids].float(),
        "rows of 'lookup', of shape .* int8"),
    "gathered rows": (lambda net, ids: net.table.gather(0, ids.reshape(-1, 1).expand(-1, DIM)).reshape(*ids.shape, DIM),
        "entries of 'table'"),
    "rows taken along an axis": (
        lambda net, ids: torch.take_along_dim(net.table[None], ids.reshape(1, -1, 1), 1).reshape(*ids.shape, DIM),
        "entries along axis 1 of 'table'",
    ),
    "a product": (lambda net, ids: hot(ids) @ net.table, "one-hot rows of a product .* with 'table'"),
    "a product from the right": (lambda net, ids: (net.columns @ hot(ids.flatten()).T).T.reshape(*ids.shape, DIM),
        "one-hot rows of a product .* with 'columns'"),
    "a linear map": (lambda net, ids: functional.linear(hot(ids), net.columns), r"product \(linear\) with 'columns'"),
    "an Einstein sum": (lambda net, ids: torch.einsum("bsv,vd->bsd", hot(ids), net.table),
        r"product \(einsum\) with 'table'"),
    "a comparison": (lambda net, ids: (ids[..., None] == torch.arange(VOCAB)).float() @ net.table, "one-hot rows"),
    "a sparse product": (lambda net, ids: sparse(net, ids, torch.sparse_coo), "one-hot rows of a product"),
    "a product of sparse rows": (lambda net, ids: sparse(net, ids, torch.sparse_csr), "one-hot rows of a product"),
    "distinct ids": (
        lambda net, ids: (lambda each, which: net.table[each][which])(*torch.unique(ids, return_inverse=True)),
        r"the rows of the ids in 'table', of shape \(10, 4\), are looked up in another order or number",
    ),
}  # fmt: skip

#: Other uses of ids in ordinary models.
ORDINARY: dict[str, Callable[[Any, Any], Any]] = {
    "a mask": lambda net, ids: net.words(ids) * (ids != 0)[..., None].float(),
    "characters": lambda net, ids: net.words(ids) + net.words.weight[net.characters[ids]].mean(-2),
    "a number for each token": lambda net, ids: net.words(ids) * net.classes[ids][..., None],
    "a number by position and token": lambda net, ids: net.words(ids) + net.columns[torch.arange(4), ids][..., None],
    "a number of one row": lambda net, ids: net.words(ids) + net.columns[0, ids][..., None],
    "log-probabilities of the ids": lambda net, ids: (
        net.words(ids)
        + (net.words.weight.sum() + net.columns.T[None, :4])
        .expand(2, 4, 4)
        .log_softmax(-1)
        .gather(-1, ids[..., None] % 4)
    ),
    "labels": lambda net, ids: (
        lambda rows: rows + functional.cross_entropy((rows @ net.columns).flatten(0, 1), ids.flatten())
    )(net.words(ids)),
    "smoothed labels": lambda net, ids: (
        lambda rows: rows + ((rows @ net.columns).log_softmax(-1) * hot(ids)).sum(-1, keepdim=True)
    )(net.words(ids)),
    "class weights": lambda net, ids: net.words(ids) + hot(ids) @ net.classes[:, None],
    "positions": lambda net, ids: net.words(ids) + net.table[(ids != 0).cumsum(1)],
}


@pytest.mark.parametrize("way", UNREAD)
def test_another_lookup_is_not_word(way: str) -> None:
    rows, message = UNREAD[way]
    with pytest.raises(
        embgrad.errors.PointNotReachedError,
        match=rf"lookup scale#0 .* may not be the model's embedding of the ids, .*{message}",
    ):
        embgrad.gradients(Net(rows), IDS, embgrad.Logit(1))


@pytest.mark.parametrize("way", ORDINARY)
def test_ordinary_uses_of_ids_are_no_lookups(way: str) -> None:
    model = Net(ORDINARY[way], bias=False)
    found = embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert (found.provenance["path"], found.values.shape) == ("words#0", (2, 4, DIM))
    rows = model.words(torch.tensor(IDS)).detach().requires_grad_()
    model.words.forward = lambda ids: rows
    expected = torch.autograd.grad(model(torch.tensor(IDS))[:, 1].sum(), rows)[0]
    np.testing.assert_allclose(found.values, expected.numpy(), rtol=1e-5, atol=1e-7)


def test_the_other_table_can_be_named_and_a_capture_refuses_word() -> None:
    model = Net(UNREAD["columns"][0])
    assert [point.roles for point in embgrad.points(model, IDS) if point.lookup is not None] == [()]
    found = embgrad.gradients(model, IDS, embgrad.Logit(1), at="scale")
    np.testing.assert_array_equal(found.values, np.ones((2, 4, 1), np.float32))
    with (
        pytest.raises(embgrad.errors.PointNotReachedError, match="may not be the model's embedding of the ids"),
        embgrad.capture(model),
    ):
        model(torch.tensor(IDS)).sum().backward()
