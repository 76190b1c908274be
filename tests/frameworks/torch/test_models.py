"""Any model of the user's: the gradient at the lookup against float64 finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, finite_differences, own_gradient, tensor


class Net(nn.Module):
    def __init__(self, between: Callable[[Any, Any], Any] | None = None, **embedding: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4, **embedding)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.between = between or (lambda net, rows: net.inner(rows).tanh())

    def look_up(self, x: Any) -> Any:
        return self.table(x)

    def forward(self, x: Any) -> Any:
        return self.head(self.between(self, self.look_up(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: str, *, time_major: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.recurrent = getattr(nn, kind)(
            4, 3, num_layers=2, bidirectional=True, batch_first=not time_major, dropout=0.3
        )
        self.head = nn.Linear(6, 3)
        self.time_major, self.packed = time_major, packed

    def forward(self, x: Any, lengths: Any) -> Any:
        rows = self.table(x.T if self.time_major else x)
        if self.packed:
            rows = nn.utils.rnn.pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
            states = nn.utils.rnn.pad_packed_sequence(self.recurrent(rows)[0], batch_first=True)[0]
        else:
            states = self.recurrent(rows)[0]
        return self.head(states.amax(0 if self.time_major else 1))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"words": nn.Embedding(VOCAB, 4), "conv": nn.Conv1d(4, 5, 2)})
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Any) -> Any:
        rows = self.body["words"](tokens).transpose(1, 2)
        return self.head(self.norm(self.body["conv"](rows)).relu().amax(2))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(VOCAB, 4), nn.Parameter(torch.randn(8, 4))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        rows = self.word(input_ids) * 2 + self.place[torch.arange(input_ids.shape[1])]
        hidden = None if attention_mask is None else attention_mask == 0
        return self.head(self.encoder(rows, src_key_padding_mask=hidden)[:, 0])


class Bare(nn.Module):
    def __init__(self, look_up: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(VOCAB, 4))
        self.head = nn.Linear(4, 3)
        self.look_up = look_up

    def forward(self, ids: Any) -> Any:
        return self.head(self.look_up(self.words, ids).tanh().mean(1))


class Bag(nn.Module):
    def __init__(self, *, flat: bool = False, weighted: bool = False, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, 4, **options)
        self.head = nn.Linear(4, 3)
        self.flat, self.weighted = flat, weighted

    def forward(self, x: Any) -> Any:
        if self.weighted:
            return self.head(
                self.bag(x, per_sample_weights=torch.linspace(-1, 2, x.numel()).view_as(x).double()).tanh()
            )
        if self.flat:
            return self.head(self.bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1])).tanh())
        return self.head(self.bag(x).tanh())


def in_place(net: Any, rows: Any) -> Any:
    rows *= 3
    rows[:, 0] += 1
    return net.inner(rows).tanh()


def without_gradient(net: Any, x: Any) -> Any:
    with torch.no_grad():
        return net.table(x)


def under_inference(net: Any, x: Any) -> Any:
    with torch.inference_mode():
        return net.table(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lstm": (lambda: Recurrent("LSTM"), "table"),
    "gru, time-major": (lambda: Recurrent("GRU", time_major=True), "table"),
    "rnn, packed": (lambda: Recurrent("RNN", packed=True), "table"),
    "convolution": (Convolutional, "body.words"),
    "transformer": (Transformer, "word"),
    "written in place": (lambda: Net(in_place), "table"),
    "padding_idx": (lambda: Net(padding_idx=4), "table"),
    "sparse": (lambda: Net(sparse=True), "table"),
    "scale_grad_by_freq": (lambda: Net(scale_grad_by_freq=True), "table"),
    "functional": (lambda: Bare(lambda w, ids: functional.embedding(ids, w)), "words"),
    "torch.embedding": (lambda: Bare(torch.embedding), "words"),
    "aten": (lambda: Bare(torch.ops.aten.embedding.default), "words"),
    "indexed": (lambda: Bare(lambda w, ids: w[ids]), "words"),
    "indexed with more axes": (lambda: Bare(lambda w, ids: w[ids, :]), "words"),
    "index_select": (lambda: Bare(lambda w, ids: w.index_select(0, ids.flatten()).view(*ids.shape, -1)), "words"),
    "a function's index_select": (
        lambda: Bare(lambda w, ids: torch.index_select(w, 0, ids.flatten()).view(2, 4, 4)),
        "words",
    ),
    "the parameter's data": (lambda: Bare(lambda w, ids: w.data[ids]), "words"),
    "flattened": (lambda: Bare(lambda w, ids: functional.embedding(ids.reshape(-1), w).view(*ids.shape, -1)), "words"),
    "a bag, summed": (lambda: Bag(mode="sum"), "bag"),
    "a bag, averaged, without padding": (lambda: Bag(mode="mean", padding_idx=15), "bag"),
    "a bag, maximum": (lambda: Bag(mode="max", padding_idx=-VOCAB), "bag"),
    "a bag, flat": (lambda: Bag(mode="mean", flat=True), "bag"),
    "a bag, weighted": (lambda: Bag(mode="sum", weighted=True, padding_idx=6, sparse=True), "bag"),
    "sequential": (lambda: nn.Sequential(nn.Embedding(VOCAB, 3), nn.Tanh(), nn.Flatten(1), nn.Linear(12, 3)), "0"),
    "wrapped": (lambda: Wrapper(Wrapper(Convolutional())), "inner.inner.body.words"),
    "data parallel": (lambda: nn.DataParallel(Net()), "module.table"),
}


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class ByKeyword(Wrapper):
    def forward(self, **kwargs: Any) -> Any:
        return self.inner(**kwargs)


class ByPosition(Wrapper):
    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


class Typed(Transformer):
    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        return super().forward(input_ids, attention_mask) * token_type_ids.sum(1, keepdim=True)


@pytest.mark.parametrize("wrapper", [ByKeyword, ByPosition])
@pytest.mark.parametrize("kind", [Transformer, Typed])
def test_a_wrapper_takes_the_arguments_of_the_model_inside(wrapper: Any, kind: Any) -> None:
    model = kind().double().eval()
    typed = {"input_ids": IDS, "token_type_ids": np.array([[0, 0, 1, 1], [0, 1, 1, 1]])}
    masked = {**typed, "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]])}
    for batch in (typed, masked) if kind is Typed else (IDS, masked):
        expected = embgrad.gradients(model, batch, embgrad.Logit(1))
        result = embgrad.gradients(wrapper(wrapper(model)), batch, embgrad.Logit(1))
        np.testing.assert_array_equal(result.values, expected.values)
        assert result.provenance["path"] == "inner.inner.word#0"
        assert result.provenance["unused"] == expected.provenance["unused"]


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_at_the_lookup(name: str) -> None:
    torch.manual_seed(0)
    build, path = MODELS[name]
    model = build().double().eval()
    table = model.get_parameter(path if hasattr(model, "words") else f"{path}.weight")
    is_recurrent = isinstance(model, Recurrent)
    kwargs = {"lengths": torch.full((2,), 4)} if is_recurrent else {}
    batch = embgrad.TokenBatch(IDS, np.ones_like(IDS)) if is_recurrent else IDS  # lengths are counted from the mask
    result = embgrad.gradients(model, batch, embgrad.Logit(1))
    expected = finite_differences(lambda: model(tensor(), **kwargs)[:, 1].sum(), table)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(result.activations, table.detach().numpy()[IDS])
    assert result.provenance["path"] == f"{path}#0"
    assert np.abs(result.values).max() > 1e-3


@pytest.mark.parametrize("look_up", [without_gradient, under_inference])
def test_a_lookup_made_without_gradients_inside_the_model(look_up: Any) -> None:
    torch.manual_seed(0)
    model = Net(sparse=True).double().eval()
    expected = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    model.look_up = lambda x: look_up(model, x)
    np.testing.assert_array_equal(embgrad.gradients(model, IDS, embgrad.Logit(1)).values, expected)


def test_indices_of_a_bare_table_may_count_from_the_end() -> None:
    class FromTheEnd(Bare):
        def __init__(self) -> None:
            super().__init__(lambda w, ids: w[ids])
            self.places = nn.Parameter(torch.randn(6, 4))

        def forward(self, ids: Any) -> Any:
            return self.head((self.words[ids] + self.places[torch.arange(-ids.shape[1], 0)]).tanh().mean(1))

    model = FromTheEnd().double()
    places = [point for point in embgrad.points(model, IDS) if point.lookup and "word" not in point.roles]
    assert [point.name for point in places] == ["places#0"]
    np.testing.assert_array_equal(places[0].lookup.indices, [2, 3, 4, 5])
