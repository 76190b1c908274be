"""A model is walked anew at each call, and nothing of it is kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch.walk import Structure, TablePaths, by_identity, tables, walk
from torch import nn

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, own_gradient, tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 3)
        self.note: Any = None

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(self.table(x)).mean(1))


def net() -> Net:
    torch.manual_seed(0)
    return Net().double().eval()


def _swapped(model: Any) -> None:
    model.inner[0] = nn.Linear(4, 4).double()


def _added(model: Any) -> None:
    model.inner.append(nn.LayerNorm(4).double())


def _removed(model: Any) -> None:
    del model.inner[1]


def _renamed(model: Any) -> None:
    model._modules = {{"table": "words"}.get(name, name): one for name, one in model._modules.items()}
    model.forward = lambda x: model.head(model.inner(model.words(x)).mean(1))


def _another_class(model: Any) -> None:
    model.inner[1].__class__ = nn.Sigmoid


def _another_table(model: Any) -> None:
    model.table.weight = nn.Parameter(torch.randn(VOCAB, 4).double())


def _shared(model: Any) -> None:
    model.other = nn.Embedding(VOCAB, 4)
    model.other.weight = model.table.weight


@pytest.mark.parametrize(
    "change",
    [_swapped, _added, _removed, _renamed, _another_class, _another_table, _shared],
    ids=lambda one: one.__name__,
)
def test_a_changed_model_is_walked_again(change: Callable[[Any], None]) -> None:
    model = net()
    before = embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert before.provenance["path"] == "table#0"
    change(model)
    model.eval()
    found = Structure([model])
    assert [(path, id(one)) for path, one in found.walked] == [(path, id(one)) for path, one in walk([model])]
    assert list(map(id, found.parameters())) == list(map(id, model.parameters()))
    given = embgrad.gradients(model, IDS, embgrad.Logit(1))
    table = next(one for one in model.modules() if isinstance(one, nn.Embedding)).weight
    own = own_gradient(lambda: model(tensor())[:, 1].sum(), table)
    np.testing.assert_allclose(given.values, own, rtol=1e-12, atol=1e-15)
    assert given.provenance["path"] == ("words#0" if change is _renamed else "table#0")


def test_the_model_is_not_kept_alive() -> None:
    model = net()
    embgrad.gradients(model, IDS, embgrad.Logit(1))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Knowing(nn.Module):
    """A module that knows the model that it lies in."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[Any] = []

    def forward(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("knowing", [False, True])
def test_what_was_found_of_a_model_does_not_outlive_it(knowing: bool) -> None:
    model = net()
    model.inner.append(Knowing())
    if knowing:
        model.inner[-1].whole.append(model)
    for _ in range(3):
        embgrad.gradients(model, IDS, embgrad.Logit(1))
    gone = [weakref.ref(model), weakref.ref(model.table), weakref.ref(model.table.weight)]
    gc.disable()
    try:
        del model
        if not knowing:  # without the garbage collector
            assert [one() for one in gone] == [None] * 3
        gc.collect()
    finally:
        gc.enable()
    assert [one() for one in gone] == [None] * 3


def _moved(model: Any) -> None:
    model.inner[0].weight.data = torch.full((4, 4), 0.1).double()


def _written(model: Any) -> None:
    model.state.add_(1)


def _replaced(model: Any) -> None:
    model.state = torch.full((3,), 7.0)


def _listed(model: Any) -> None:
    model.seen.append("the user")


def _graded(model: Any) -> None:
    model.table.weight.grad = torch.ones_like(model.table.weight)


def _frozen(model: Any) -> None:
    model.head.weight.requires_grad_(False)


def _training(model: Any) -> None:
    model.inner[1].train()


class Remembering(Net):
    """Writes wherever a model may between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))
        self.seen = ["at first"]

    def forward(self, x: Any) -> Any:
        self.state += 1
        self.seen.append("a pass")
        self.head.requires_grad_(True)
        self.inner[1].eval()
        return super().forward(x)


@pytest.mark.parametrize(
    "change",
    [_moved, _written, _replaced, _listed, _graded, _frozen, _training],
    ids=lambda one: one.__name__,
)
def test_what_the_user_changes_between_calls_is_what_is_put_back(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    model = Remembering().double().eval()

    def seen() -> list[Any]:
        tensors = [(id(one), one.requires_grad, one.grad) for one in model.parameters()]
        contents = [one.detach().clone().tolist() for one in (*model.parameters(), *model.buffers())]
        return [tensors, contents, id(model.state), list(model.seen), [one.training for one in model.modules()]]

    for _ in range(2):
        embgrad.gradients(model, IDS, embgrad.Logit(1))
    change(model)
    before = seen()
    for _ in range(2):
        given = embgrad.gradients(model, IDS, embgrad.Logit(1))
        assert str(seen()) == str(before)
    table = model.table.weight
    own = own_gradient(lambda: Net.forward(model, tensor())[:, 1].sum(), table)
    np.testing.assert_allclose(given.values, own, rtol=1e-12, atol=1e-15)


def test_tables_go_by_the_same_paths() -> None:
    model = net()
    model.alias = nn.Linear(4, VOCAB, bias=False)
    model.alias.weight = model.table.weight
    model.register_buffer("fixed", torch.zeros(3, 4))
    model._modules = dict(sorted(model._modules.items()))  # the table's other name comes first
    walked = walk([model])
    paths = TablePaths(walked)
    for one in (model.table.weight, model.fixed, model.head.weight, model.inner[0].weight):
        assert paths.of(one) == by_identity(tables(walked))[id(one)]
    assert paths.of(model.table.weight) == "table"
    assert paths.of(model.table.weight.data) == "table"
    assert paths.of(torch.zeros(3, 4)) is None


class Restless(Net):
    """Changes what it keeps in attributes in ways that equality does not see."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.first: Any = None
        self.names: Any = {"a": None}
        self.numbers: Any = [1.0]
        self.one: Any = torch.ones(())
        self.change = change

    def forward(self, x: Any) -> Any:
        self.change(self)
        return super().forward(x)


def _attribute_renamed(model: Any) -> None:
    del model.first
    model.second = None


def _entry_renamed(model: Any) -> None:
    model.names["b"] = model.names.pop("a")


def _equal_list(model: Any) -> None:
    model.numbers = list(model.numbers)


def _equal_tensor(model: Any) -> None:
    model.one = model.one * 1


def _equal_entry(model: Any) -> None:
    model.numbers[0] = float("1.0")


def _filled(model: Any) -> None:
    model.inner[1]._forward_hooks[99] = lambda *_: None


@pytest.mark.parametrize(
    "change",
    [_attribute_renamed, _entry_renamed, _equal_list, _equal_tensor, _equal_entry, _filled],
    ids=lambda one: one.__name__,
)
def test_what_is_equal_and_not_the_same_is_put_back(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    model = Restless(change).double().eval()

    def seen() -> list[Any]:
        inside = [list(model.names.items()), list(map(id, model.numbers)), list(model.inner[1]._forward_hooks)]
        return [[(name, id(value)) for name, value in vars(model).items()], *inside]

    before = seen()
    embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert seen() == before
