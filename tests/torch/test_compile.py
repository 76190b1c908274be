"""`compile=True`: a kept trace gives what the model gives, for models of every sort and however it is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import embgrad
from tests.torch.kept_traces import IDS, IS_OLD, LONGER, PROJECTION, WITHOUT_A_TRACE, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")


class ByFunction(Net):
    def rows(self, ids: Any) -> Any:
        return functional.embedding(ids, self.table.weight, padding_idx=0)


class ByIndex(Net):
    def rows(self, ids: Any) -> Any:
        return self.table.weight[ids]


class BySelect(Net):
    def rows(self, ids: Any) -> Any:
        return torch.index_select(self.table.weight, 0, ids.flatten()).reshape(*ids.shape, -1)


class ByData(Net):
    def rows(self, ids: Any) -> Any:
        return functional.embedding(ids, self.table.weight.detach())


class Computed(Net):
    def rows(self, ids: Any) -> Any:
        return functional.embedding(ids, self.table.weight * 2)


class Detaching(Net):
    def body(self, rows: Any) -> Any:
        return self.inner(rows).tanh() * self.inner(rows.detach()) * self.inner(rows.data)


class Switching(Net):
    def body(self, rows: Any) -> Any:
        with torch.no_grad():
            fixed = self.inner(rows[:, :]).chunk(2, -1)[0].exp().sum(-1, keepdim=True)
        return self.inner(rows) * fixed


class InPlace(Net):
    def body(self, rows: Any) -> Any:
        rows *= 2
        rows[:, 0] = 1
        bent = self.inner(rows)
        bent.add_(rows)
        return bent


class InPieces(Net):
    """As in place, of other dtypes and shapes than the place has."""

    def body(self, rows: Any) -> Any:
        bent = torch.zeros(rows.shape, dtype=torch.float64)
        for position in range(2):
            bent[:, position] = self.inner(rows[:, position])
        bent[:, 2:] = rows[:, :1].float()
        bent[..., 0] += rows[..., 1].sin()
        return bent.tanh()


class Convolving(Net):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(6, 6, 2, padding=1).double()

    def body(self, rows: Any) -> Any:
        return self.inner(rows.transpose(1, 2)).transpose(1, 2)


class Encoding(Net):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.double().eval()


class Bag(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(12, 6).double()

    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids).tanh())


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.utils.weight_norm(self.inner)


class Compiled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.compile(self.inner, backend="eager")


class Mapped(Net):
    def body(self, rows: Any) -> Any:
        return torch.vmap(self.inner)(rows).tanh()


class Plain(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((6,), 3.0, dtype=torch.float64)

    def body(self, rows: Any) -> Any:
        return self.inner(rows) * self.scale


SORTS = (
    *(Net, ByFunction, ByIndex, BySelect, ByData, Computed, Detaching, Switching, InPlace, Convolving, Encoding),
    *(Bag, Normed, Compiled, Mapped, Plain, InPieces),
)


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__)
def test_sorts_of_models(sort: Any, traces: list[Any]) -> None:
    model = sort()
    if IS_OLD and sort.__name__ in WITHOUT_A_TRACE:
        falls_back(model, WITHOUT_A_TRACE[sort.__name__])
        return
    agree(model, IDS)
    agree(model, LONGER)
    assert len(traces) == 1


def test_each_examples_own_pullback() -> None:
    class Mixing(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows - rows.mean(0)).tanh()

    model = Mixing()
    agree(model, IDS, split=True)
    agree(model, IDS, lambda logits: logits[:, 1], split=True)


def test_several_points() -> None:
    agree(Net(), IDS, at=["word", "inner", "outer"])


def test_an_ambiguous_word_is_told_apart_for_the_batch_that_makes_it_so() -> None:
    class Positions(Net):
        def rows(self, ids: Any) -> Any:
            return self.table(torch.arange(ids.shape[1])[None].expand(len(ids), -1)) + self.table(ids)

    model = Positions()
    for ids in (IDS, np.tile(np.arange(5), (3, 1))):
        assert agree(model, ids).provenance["path"] == "table#1"
    with pytest.raises(embgrad.AmbiguousPointError):
        embgrad.gradients(Twice(), IDS, PROJECTION, compile=True)
    agree(Twice(), IDS, at=["word#0", "word#1"])


class Twice(Net):
    def rows(self, ids: Any) -> Any:
        return self.table(ids) * self.table(ids)


def test_under_no_grad_and_inference_mode() -> None:
    model = Net().requires_grad_(False)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            agree(model, IDS)
