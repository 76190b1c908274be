"""Where code of the user's runs in a small pass, the whole of it is watched, however many passes have gone the same way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings

import embgrad
from tests.frameworks.torch.checks import VOCAB, own_gradient, tensor

#: The second has an id that models here take another way for.
USUAL, RARE = np.array([[1, 5, 9], [2, 4, 7]]), np.array([[1, 16, 9], [2, 4, 7]])


class Net(nn.Module):
    """Embedding, something, linear; `rows` makes the rows, knowing whether an id is rare."""

    def __init__(self, rows: Callable[[Any, Any, bool], Any]) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(VOCAB, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.other, self.bias = nn.Parameter(torch.randn(VOCAB, 6)), nn.Parameter(torch.randn(6))
        self.register_buffer("fixed", torch.randn(VOCAB, 6))
        self.rows = rows

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.inner(self.rows(self, x, bool((x > 15).any()))))).sum((1, 2))


def net(rows: Callable[[Any, Any, bool], Any] = lambda net, x, rare: net.table(x)) -> Net:
    torch.manual_seed(0)
    return Net(rows).double().eval()


#: A second lookup in some batches, of as many operations as there are in the others.
TWICE: dict[str, Callable[[Any, Any, bool], Any]] = {
    "the same table": lambda net, x, rare: net.table(x) + (net.table.weight[x] if rare else net.table.weight[0]),
    "a bare table": lambda net, x, rare: net.table(x) + (net.other[x] if rare else net.bias.view(6)),
    "a function": lambda net, x, rare: net.table(x) + (functional.embedding(x, net.other) if rare else net.other[0]),
    "a buffer": lambda net, x, rare: net.table(x) + (net.fixed[x] if rare else net.bias),
    "a table by its values": lambda net, x, rare: net.table(x) + (net.other.data[x] if rare else net.bias),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", TWICE)
def test_a_second_lookup_that_takes_as_many_operations_is_seen(rows: str, frozen: bool) -> None:
    model = net(TWICE[rows]).requires_grad_(not frozen)
    for _ in range(2):
        embgrad.gradients(model, USUAL, embgrad.Sum())
    for _ in range(2):
        with pytest.raises(embgrad.AmbiguousPointError, match="'word' fits 2 lookups"):
            embgrad.gradients(model, RARE, embgrad.Sum())


class Scaled(TorchFunctionMode):
    """Scales what lookups give."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 3 if func is functional.embedding else found


def test_a_mode_that_the_model_enters_is_the_same_in_each_call() -> None:
    def scaled(net: Any, x: Any, rare: bool) -> Any:
        with Scaled():
            return net.table(x)

    model = net(scaled)
    own = own_gradient(lambda: model(tensor(USUAL)).sum(), model.table.weight, USUAL)
    for _ in range(3):
        given = embgrad.gradients(model, USUAL, embgrad.Sum())
        np.testing.assert_allclose(given.values, own, rtol=1e-12)
        np.testing.assert_array_equal(given.activations, model.table.weight.detach().numpy()[USUAL])


def bert() -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertModel(BertConfig(vocab_size=VOCAB, **size)).double().eval()


def _class_patched(model: Any, patched: pytest.MonkeyPatch, second: Callable[..., Any]) -> None:
    original = BertEmbeddings.forward

    @functools.wraps(original)
    def forward(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, input_ids, *args, **kwargs) + second(self, input_ids)

    patched.setattr(BertEmbeddings, "forward", forward)


def _object_patched(model: Any, patched: pytest.MonkeyPatch, second: Callable[..., Any]) -> None:
    one, original = model.embeddings, model.embeddings.forward
    patched.setattr(
        one,
        "forward",
        lambda input_ids, **kwargs: original(input_ids, **kwargs) + second(one, input_ids),
        raising=False,
    )


def _hooked(model: Any, patched: pytest.MonkeyPatch, second: Callable[..., Any]) -> None:
    model.embeddings.register_forward_hook(
        lambda module, args, kwargs, gave: gave + second(module, kwargs["input_ids"]), with_kwargs=True
    )


def _hooked_everywhere(model: Any, patched: pytest.MonkeyPatch, second: Callable[..., Any]) -> None:
    def added(module: Any, args: Any, kwargs: Any, gave: Any) -> Any:
        return gave + second(module, kwargs["input_ids"]) if isinstance(module, BertEmbeddings) else None

    # PyTorch's handle leaves its entry of this dict behind, of which torch.compile warns for ever after.
    patched.setattr(nn.modules.module, "_global_forward_hooks_with_kwargs", {})
    handle = nn.modules.module.register_module_forward_hook(added, with_kwargs=True)
    patched.setattr(model, "remove", handle.remove, raising=False)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "change", [_class_patched, _object_patched, _hooked, _hooked_everywhere], ids=lambda one: one.__name__
)
def test_code_of_the_users_in_a_model_of_a_librarys(change: Any, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(module: Any, x: Any) -> Any:
        weight = module.word_embeddings.weight
        return weight[x] if (x > 15).any() else weight[0]

    model = bert().requires_grad_(False)
    objective = embgrad.Sum(output="pooled")
    if late:
        for _ in range(2):
            embgrad.gradients(model, USUAL, objective)
    with monkeypatch.context() as patched:
        change(model, patched, second)
        try:
            for _ in range(2):
                embgrad.gradients(model, USUAL, objective)
            with pytest.raises(embgrad.AmbiguousPointError, match="'word' fits 2 lookups"):
                embgrad.gradients(model, RARE, objective)
        finally:
            if "remove" in vars(model):
                model.remove()
    model = bert()
    own = own_gradient(lambda: model(tensor(USUAL)).pooler_output.sum(), model.embeddings.word_embeddings.weight, USUAL)
    for _ in range(3):
        np.testing.assert_allclose(embgrad.gradients(model, USUAL, objective).values, own, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("kind", ["the user's", "a library's"])
def test_hooks_are_called_once_in_each_call(kind: str, everywhere: bool) -> None:
    model: Any = net(lambda net, x, rare: torch.tanh(net.table(x)) if rare else net.table(x))
    layer, objective = model.inner, embgrad.Sum()
    if kind == "a library's":
        model, objective = bert(), embgrad.Sum(output="pooled")
        layer = model.pooler.dense
    seen: list[int] = []

    def hook(module: Any, args: Any, gave: Any) -> None:
        seen.append(1) if module is layer else None

    for ids in (USUAL, USUAL):  # whose way is then known
        embgrad.gradients(model, ids, objective)
    register = nn.modules.module.register_module_forward_hook if everywhere else layer.register_forward_hook
    handle = register(hook)
    try:
        for mask in (None, np.array([[1, 1, 0], [1, 1, 1]])):  # the second leads a library's model another way
            for ids in (USUAL, USUAL + 1, RARE, RARE):
                seen.clear()
                given = ids if mask is None or kind == "the user's" else {"input_ids": ids, "attention_mask": mask}
                embgrad.gradients(model, given, objective)
                assert seen == [1]
    finally:
        handle.remove()
