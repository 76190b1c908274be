"""A small pass is watched only where rows are looked up once its way is known, and as a whole wherever it goes another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import libraries, ways
from embgrad_torch.lookup import LookupMode
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import embgrad
from tests.torch.checks import IDS, VOCAB, own_gradient, tensor

OBJECTIVE = embgrad.Logit(1)
OTHER = np.array([[7, 8, 10, 11], [12, 13, 14, 16]])


@pytest.fixture(autouse=True)
def _as_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are taken for a library's; where code of the user's runs all passes are watched as a whole."""
    monkeypatch.setattr(libraries, "LIBRARIES", libraries.LIBRARIES | {"tests"})


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


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of which the watching is asked."""
    names: list[str] = []
    original = LookupMode.__torch_function__

    def listening(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(getattr(func, "__name__", ""))
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(LookupMode, "__torch_function__", listening)
    return names


class Scaled(nn.Embedding):
    """Gives more than the rows that it looks up."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def _reference(model: Any, ids: np.ndarray = IDS) -> np.ndarray:
    return own_gradient(lambda: model(tensor(ids))[:, 1].sum(), model.table.weight, ids)


def test_only_the_lookup_is_watched_the_second_time(heard: list[str]) -> None:
    model = net()
    model.table = Scaled(VOCAB, 4).double()
    first = gradient(model)
    assert "linear" in heard
    heard.clear()
    np.testing.assert_array_equal(gradient(model), first)
    assert "embedding" in heard
    assert "linear" not in heard
    np.testing.assert_allclose(first, _reference(model), rtol=1e-12)


def test_a_plain_lookup_is_taken_from_what_its_module_gives(heard: list[str]) -> None:
    model = net()
    first = embgrad.gradients(model, IDS, OBJECTIVE)
    heard.clear()
    for trainable in (True, False):
        model.requires_grad_(trainable)
        again = [embgrad.gradients(model, IDS, OBJECTIVE) for _ in range(2)][1]
        np.testing.assert_array_equal(again.values, first.values)
        np.testing.assert_array_equal(again.activations, first.activations)
        heard.clear()
    gradient(model)
    assert heard == []
    np.testing.assert_allclose(first.values, _reference(model), rtol=1e-12)
    for hooks in (model.table._forward_hooks, model.table._forward_pre_hooks):
        assert not hooks


def _patched_module(model: Any, patched: pytest.MonkeyPatch) -> None:
    original = nn.Embedding.forward
    patched.setattr(nn.Embedding, "forward", lambda self, x: original(self, x) * 3)


def _patched_object(model: Any, patched: pytest.MonkeyPatch) -> None:
    original = model.table.forward
    patched.setattr(model.table, "forward", lambda x: original(x) * 3, raising=False)


def _hooked(model: Any, patched: pytest.MonkeyPatch) -> None:
    model.table.register_forward_hook(lambda module, args, rows: rows * 3)


def _hooked_everywhere(model: Any, patched: pytest.MonkeyPatch) -> None:
    def tripled(module: Any, args: Any, gave: Any) -> Any:
        return gave * 3 if isinstance(module, nn.Embedding) else None

    handle = nn.modules.module.register_module_forward_hook(tripled)
    patched.setattr(model, "handle", handle, raising=False)


def _limited(model: Any, patched: pytest.MonkeyPatch) -> None:
    model.table.max_norm = 0.5


@pytest.mark.parametrize(
    "change",
    [_patched_module, _patched_object, _hooked, _hooked_everywhere, _limited],
    ids=lambda one: one.__name__,
)
def test_a_lookup_that_is_no_longer_plain(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    for _ in range(2):
        gradient(model)
    with monkeypatch.context() as patched:
        change(model, patched)
        try:
            given = [embgrad.gradients(model, IDS, OBJECTIVE) for _ in range(3)]
            with monkeypatch.context() as small:
                small.setattr(ways, "SMALL", 0)
                whole = embgrad.gradients(model, IDS, OBJECTIVE)
        finally:
            if "handle" in vars(model):
                model.handle.remove()
    for one in given:
        np.testing.assert_array_equal(one.values, whole.values)
        np.testing.assert_array_equal(one.activations, whole.activations)


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


@pytest.mark.parametrize("tokens", [8, 4000])
def test_large_passes_are_watched_as_a_whole(heard: list[str], monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    model = net()
    monkeypatch.setattr(ways, "SMALL", 500 * 1000)
    ids = np.tile(IDS, (1, tokens // IDS.size))
    for _ in range(3):
        heard.clear()
        gradient(model, ids)
    assert ("linear" in heard) is (tokens == 4000)


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


@pytest.mark.parametrize(
    "make",
    [lambda: BertModel(BertConfig(**SMALL)), lambda: LlamaForCausalLM(LlamaConfig(**SMALL))],
    ids=["bert", "llama"],
)
def test_models_as_with_the_whole_watched(make: Any, heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, random = make().eval(), np.random.default_rng(0)
    objective = embgrad.Sum(output="pooled") if isinstance(model, BertModel) else embgrad.Logit(3, position=-1)
    for examples, positions in ((2, 7), (1, 7), (3, 5), (2, 7)):
        ids = random.integers(1, 50, (examples, positions))
        mask = np.ones_like(ids)
        mask[-1, -2:] = 0
        for given in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            parts = [embgrad.gradients(model, given, objective) for _ in range(2)]
            heard.clear()
            parts.append(embgrad.gradients(model, given, objective))
            assert "linear" not in heard
            with monkeypatch.context() as patched:
                patched.setattr(ways, "SMALL", 0)
                whole = embgrad.gradients(model, given, objective)
            for one in parts:
                np.testing.assert_allclose(one.values, whole.values, rtol=1e-5, atol=1e-7)
                np.testing.assert_array_equal(one.activations, whole.activations)
