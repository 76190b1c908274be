"""Passes that go another way than the call before: other tables, other hooks, other threads, frozen weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, own_gradient, tensor

OBJECTIVE = embgrad.Logit(1)
OTHER = np.array([[7, 8, 10, 11], [12, 13, 14, 16]])


class Net(nn.Module):
    """Embedding, some layers, mean, linear; `rows` makes the rows."""

    def __init__(self, rows: Callable[[Any, Any], Any] = lambda net, x: net.table(x)) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.second = nn.Embedding(VOCAB, 4)
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(4, 3)
        self.rows = rows
        self.both = False

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(self.rows(self, x)).mean(1))


def net(*rows: Any) -> Net:
    torch.manual_seed(0)
    return Net(*rows).double().eval()


def gradient(model: Any, ids: np.ndarray = IDS, **options: Any) -> np.ndarray:
    found: np.ndarray = embgrad.gradients(model, ids, OBJECTIVE, **options).values
    return found


class Scaled(nn.Embedding):
    """Gives more than the rows that it looks up."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def _reference(model: Any, ids: np.ndarray = IDS) -> np.ndarray:
    return own_gradient(lambda: model(tensor(ids))[:, 1].sum(), model.table.weight, ids)


def test_a_lookup_that_only_some_passes_checkpoint() -> None:
    flags = {"checkpoint": False}

    def rows(net: Any, x: Any) -> Any:
        return checkpoint(net.table, x, use_reentrant=False) if flags["checkpoint"] else net.table(x)

    model = net(rows)
    for flag in (False, True, False, True, True):
        flags["checkpoint"] = flag
        for _ in range(2):
            np.testing.assert_allclose(gradient(model), _reference(net()), rtol=1e-12)


def test_a_table_given_its_ids_by_name_and_one_called_in_another_thread() -> None:
    model = net(lambda net, x: net.table(input=x))
    for _ in range(3):
        np.testing.assert_allclose(gradient(model), _reference(model), rtol=1e-12)

    def elsewhere(net: Any, x: Any) -> Any:
        thread = threading.Thread(target=net.table, args=(x + 1,))
        thread.start()
        thread.join()
        return net.table(x)

    model = net(elsewhere)
    for _ in range(3):
        np.testing.assert_allclose(gradient(model), _reference(model), rtol=1e-12)


def _sometimes(net: Any, x: Any) -> Any:
    rows = net.table(x)
    return rows + functional.embedding(x, net.second.weight) if net.both else rows


def _sometimes_frozen(net: Any, x: Any) -> Any:
    rows = net.table(x)
    return rows + net.second.weight.detach()[x] if net.both else rows


def _sometimes_the_other(net: Any, x: Any) -> Any:
    return net.table(x) if int(x[0, 0]) != 7 else net.second(x)


@pytest.mark.parametrize("rows", [_sometimes, _sometimes_frozen])
def test_a_second_lookup_that_only_some_passes_come_by(rows: Any) -> None:
    model = net(rows)
    for _ in range(2):
        gradient(model)
    for _ in range(2):
        model.both = True
        with pytest.raises(embgrad.AmbiguousPointError, match="'word' fits 2 lookups"):
            gradient(model, OTHER)
        model.both = False
        gradient(model)


def test_another_table_that_only_some_batches_come_by() -> None:
    model = net(_sometimes_the_other)
    for _ in range(2):
        for ids, table in ((IDS, model.table), (OTHER, model.second)):
            found = embgrad.gradients(model, ids, OBJECTIVE)
            reference = own_gradient(lambda ids=ids: model(tensor(ids))[:, 1].sum(), table.weight, ids)
            np.testing.assert_allclose(found.values, reference, rtol=1e-12)
            assert found.provenance["path"] == ("table#0" if table is model.table else "second#0")


def test_a_forward_that_is_replaced_between_calls() -> None:
    model = net()
    for _ in range(2):
        gradient(model)
    model.rows = lambda net, x: functional.embedding(x, net.second.weight)
    found = gradient(model)
    np.testing.assert_allclose(
        found, own_gradient(lambda: model(tensor())[:, 1].sum(), model.second.weight), rtol=1e-12
    )
    model.rows = lambda net, x: torch.tanh(net.table(x))
    for _ in range(3):
        reference = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
        np.testing.assert_allclose(gradient(model), reference, rtol=1e-12)


def test_what_is_wrong_is_said_as_ever() -> None:
    def second_too(net: Any, x: Any) -> Any:
        return net.table(x) + functional.embedding(x + 3, net.second.weight)

    for model in (net(), net(second_too)):
        for _ in range(2):
            gradient(model, IDS % 9)
        with pytest.raises(embgrad.BatchError, match="id 20 at example 1, position 2 is outside the table"):
            gradient(model, np.where(IDS == 6, 20, IDS % 9))
    with pytest.raises(embgrad.BatchError, match="looks up index 21"):
        gradient(model, np.where(IDS == 6, 18, IDS % 9))

    def refusing(net: Any, x: Any) -> Any:
        if int(x[0, 0]) == 7:
            raise LookupError("not seven")
        return net.table(x)

    model = net(refusing)
    for _ in range(2):
        gradient(model)
    with pytest.raises(LookupError, match="not seven"):
        gradient(model, OTHER)
    gradient(model)


def test_weights_frozen_between_calls() -> None:
    model = net()
    first = gradient(model)
    for trainable in (False, True, False):
        model.requires_grad_(trainable)
        for _ in range(2):
            np.testing.assert_array_equal(gradient(model), first)


def test_no_hook_stays_and_the_users_own_are_called() -> None:
    model, called = net(), []
    model.table.register_forward_hook(lambda *_: called.append("after"))
    model.table.register_forward_pre_hook(lambda *_: called.append("before"))
    for _ in range(3):
        gradient(model)
    assert called == ["before", "after"] * 3
    assert len(model.table._forward_hooks) == len(model.table._forward_pre_hooks) == 1


def test_a_user_hook_that_replaces_the_rows_and_one_that_stops_the_pass() -> None:
    model = net()
    for _ in range(2):
        gradient(model)
    handle = model.table.register_forward_hook(lambda module, args, rows: rows * 2)
    for _ in range(2):
        reference = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
        np.testing.assert_allclose(gradient(model), reference, rtol=1e-12)
    handle.remove()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt("stopped")

    handle = model.table.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        gradient(model)
    handle.remove()
    assert not torch.overrides._get_current_function_mode_stack()
    gradient(model)


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
