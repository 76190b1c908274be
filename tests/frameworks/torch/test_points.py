"""Roles, paths and occurrences on real models, against the hidden states that the models themselves return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.architectures import ARCHITECTURES, IDS, native, weighted
from tests.frameworks.torch.checks import IDS as SMALL_IDS
from tests.frameworks.torch.checks import VOCAB, tensor

#: The last hidden state of these is not what the last layer gives: a norm comes behind.
NORMED = ("GPT2", "Llama", "Gemma", "T5")


def hidden_states(model: Any, batch: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return the model's output and the hidden states that it reports, on the graph."""
    out = model(**native(batch), output_hidden_states=True)
    return out, getattr(out, "encoder_hidden_states", None) or out.hidden_states


def by_hook(model: Any, path: str, batch: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return a module's output and its gradient, by a forward hook written by hand."""
    name, _, occurrence = path.partition("#")
    recorded: list[Any] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        recorded.append(output if isinstance(output, torch.Tensor) else output[0])

    handle = model.get_submodule(name).register_forward_hook(keep)
    loss = weighted(model(**native(batch))).sum()
    handle.remove()
    kept = recorded[int(occurrence or 0)]
    return kept.detach().numpy(), torch.autograd.grad(loss, kept)[0].numpy()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_hidden_states_of_architectures(name: str, layers: int) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.build(layers), architecture.batch()
    out, states = hidden_states(model, batch)
    gradients = torch.autograd.grad(weighted(out).sum(), states, allow_unused=True)
    names = [f"layer.{number}" for number in range(layers)]
    result = embgrad.gradients(model, batch, weighted, at=[*names, "layer.-1"])
    np.testing.assert_array_equal(result["layer.-1"].values, result[names[-1]].values)
    for number, role in enumerate(names):
        if number == layers - 1 and name in NORMED:
            value, gradient = by_hook(model, architecture.layer.format(number), batch)
        else:
            value, gradient = states[number + 1].detach().numpy(), gradients[number + 1].numpy()
        np.testing.assert_allclose(result[role].activations, value, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(result[role].values, gradient, rtol=1e-10, atol=1e-13)
        assert result[role].provenance["path"].startswith(architecture.layer.format(number).partition("#")[0])
    with pytest.raises(embgrad.errors.UnknownPointError, match=f"has {layers} layers"):
        embgrad.gradients(model, batch, weighted, at=f"layer.{layers}")


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_other_roles_of_architectures(name: str, layers: int) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.build(layers), architecture.batch()
    points = embgrad.points(model, batch)
    roles = {role: point for point in points for role in point.roles if not role.startswith("layer")}
    assert set(roles) == set(architecture.roles)
    assert roles["word"].path == architecture.word
    results = embgrad.gradients(model, batch, weighted, at=list(architecture.roles))
    assert all(result.values.shape[:2] == IDS.shape for result in results.values())
    np.testing.assert_array_equal(
        results["word"].activations, model.get_submodule(architecture.word).weight.detach().numpy()[IDS]
    )
    out, states = hidden_states(model, batch)
    if name in ("Albert", "Electra"):  # whose first hidden state is behind the projection to the layers' width
        assert architecture.embeddings is not None
        value, gradient = by_hook(model, architecture.embeddings, batch)
    else:
        value = states[0].detach().numpy()
        gradient = torch.autograd.grad(weighted(out).sum(), states[0])[0].numpy()
    np.testing.assert_allclose(results["embeddings"].activations, value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(results["embeddings"].values, gradient, rtol=1e-10, atol=1e-13)
    if architecture.embeddings is not None:
        again = embgrad.gradients(model, batch, weighted, at=architecture.embeddings)
        np.testing.assert_allclose(again.values, gradient, rtol=1e-10, atol=1e-13)


# Modules of all kinds


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.table(x))[0].mean(1))


class Packed(Recurrent):
    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0].mean(1))


class InPlace(nn.Module):
    """Writes into what its parts give, and gives views."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.inner = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.mid = nn.Linear(4, 4)
        self.flat = nn.Flatten(0, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        rows = self.table(x)
        rows *= 3
        hidden = self.mid(self.relu(self.inner(rows)))
        hidden += 1
        flat = self.flat(hidden) * 1
        flat *= 2
        return self.head(flat.view_as(hidden).mean(1))


def random_model(kind: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return kind().double().eval()


def difference(
    model: Any, loss: Callable[[], Any], module: Any, shape: tuple[int, ...], direction: np.ndarray
) -> float:
    """The difference quotient of a loss when something is added to what a module gives, by a hook written by hand."""
    result = []
    for step in (1e-5, -1e-5):
        change = torch.tensor(direction * step).reshape(shape)

        def hook(_: Any, __: Any, output: Any, change: Any = change) -> Any:
            if isinstance(output, torch.Tensor):
                return output + change
            if isinstance(output[0], nn.utils.rnn.PackedSequence):
                return output[0]._replace(data=output[0].data + change), *output[1:]
            return output[0] + change, *output[1:]

        handle = module.register_forward_hook(hook)
        result.append(float(loss()))
        handle.remove()
    return (result[0] - result[1]) / 2e-5


@pytest.mark.parametrize(
    ("kind", "path", "extra"),
    [(Recurrent, "lstm", {}), (Recurrent, "table", {}), (Packed, "lstm", {"lengths": torch.tensor([4, 2])}),
        (InPlace, "inner", {}), (InPlace, "mid", {}), (InPlace, "flat", {})],
)  # fmt: skip
def test_the_output_of_a_module(kind: Any, path: str, extra: dict[str, Any]) -> None:
    model = random_model(kind)
    result = embgrad.gradients(model, {"input_ids": SMALL_IDS, **extra}, embgrad.Logit(1), at=f"{path}:output")
    direction = np.random.default_rng(0).normal(size=result.values.shape)
    loss = lambda: model(tensor(), **extra)[:, 1].sum()  # noqa: E731
    slope = difference(model, loss, model.get_submodule(path), result.values.shape, direction)
    assert (result.values * direction).sum() == pytest.approx(slope, rel=1e-6)
    assert abs(slope) > 1e-3


def test_a_tensor_that_is_written_to_later_is_reported_as_it_was() -> None:
    model = random_model(InPlace)
    result = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="inner")
    rows = 3 * model.table(tensor())
    np.testing.assert_array_equal(result.activations, model.inner(rows).detach().numpy())
    taken = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="inner:input")
    np.testing.assert_array_equal(taken.activations, rows.detach().numpy())


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.second = self.first
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.second(self.first(self.second(self.table(x)))).mean(1))


def test_modules_that_contain_each_other() -> None:
    model = random_model(Shared)
    model.head.above = model
    assert [point.name for point in embgrad.points(model, SMALL_IDS)][-1] == "head#0"
    assert embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="head").values.shape == (2, 3)


def test_a_shared_module_has_several_names_and_occurrences() -> None:
    model = random_model(Shared)
    names = [point.name for point in embgrad.points(model, SMALL_IDS)]
    assert [name for name in names if name.startswith("first#")] == ["first#0", "first#1", "first#2"]
    assert not any(name.startswith("second") for name in names)
    for path in ("first", "second"):
        with pytest.raises(embgrad.errors.AmbiguousPointError, match="fits 3 points"):
            embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at=path)
    both = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at=["first#1", "second#1", "second.0#1"])
    np.testing.assert_array_equal(both["first#1"].values, both["second#1"].values)
    states = [model.table(tensor())]
    for _ in range(3):
        states.append(model.first(states[-1]))
    expected = torch.autograd.grad(model.head(states[-1].mean(1))[:, 1].sum(), states[2])[0]
    np.testing.assert_allclose(both["first#1"].values, expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
def test_no_pass_takes_the_fast_path_of_a_transformer(frozen: bool) -> None:
    """Without gradients nn.TransformerEncoder calls none of its parts; whoever names them must find them."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB, 4)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            hidden = None if attention_mask is None else attention_mask == 0
            return self.encoder(self.table(input_ids), src_key_padding_mask=hidden)[:, 0]

    model = random_model(Encoder).requires_grad_(not frozen)
    batch = {"input_ids": SMALL_IDS, "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]])}
    inside = "encoder.layers.0.linear1#0"
    assert inside in [point.name for point in embgrad.points(model, batch)]
    for at in (inside, "encoder.layers.1.linear1#0", "layer.0"):
        result = embgrad.gradients(model.requires_grad_(not frozen), batch, embgrad.Logit(1), at=at)
        model.requires_grad_(True)
        path = "encoder.layers.0" if at == "layer.0" else at.partition("#")[0]
        direction = np.random.default_rng(0).normal(size=result.values.shape)
        mask = torch.tensor(batch["attention_mask"])
        loss = lambda: model(tensor(), mask)[:, 1].sum()  # noqa: B023, E731
        slope = difference(model, loss, model.get_submodule(path), result.values.shape, direction)
        assert (result.values * direction).sum() == pytest.approx(slope, rel=1e-6)


class Passing(nn.Module):
    """Modules that return their argument or a view of it, which the model uses, too."""

    def __init__(self, *, write: bool = False) -> None:
        super().__init__()
        self.table, self.inner, self.same, self.flat = (
            nn.Embedding(VOCAB, 4),
            nn.Linear(4, 4),
            nn.Dropout(),
            nn.Flatten(0, 1),
        )
        self.write = write

    def forward(self, x: Any) -> Any:
        hidden = self.inner(self.table(x))
        flat = self.flat(hidden)
        if self.write:
            flat *= 2
        return (hidden + 2 * self.same(hidden) + 3 * flat.view_as(hidden)).mean(1)


def test_a_module_that_returns_its_argument_has_its_own_gradient() -> None:
    model = random_model(Passing)
    names = {"inner": 6, "same": 2, "same:input": 2, "flat": 3, "flat:input": 3}
    result = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at=list(names))
    for name, factor in names.items():
        assert (
            embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at=name).values.reshape(8, 4)[:, 1].tolist()
            == [factor / 4] * 8
        )
        assert result[name].values.reshape(8, 4)[:, 1].tolist() == [factor / 4] * 8


def test_writing_into_a_shared_tensor_at_a_point_is_refused() -> None:
    """A write into the view changes its base, and a write into a clone would not."""
    model = random_model(lambda: Passing(write=True))
    for name in ("flat", "flat:output#0"):
        with pytest.raises(embgrad.errors.UnsupportedError, match=r"'flat:output#0' shares its memory with another"):
            embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at=name)
    result = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="inner")
    assert result.values[..., 1].ravel().tolist() == [12 / 4] * 8
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"'relu:input#0' shares its memory"):
        embgrad.gradients(random_model(InPlace), SMALL_IDS, embgrad.Logit(1), at="relu:input")


class Branching(nn.Module):
    """Goes another way where no gradients are taken, as models with a fast path do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.slow, self.fast = nn.Embedding(VOCAB, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        rows = self.table(x)
        return (self.slow if rows.requires_grad else self.fast)(rows).tanh().mean(1)


@pytest.mark.parametrize("frozen", [False, True])
def test_every_pass_takes_the_branch_of_one_with_gradients(frozen: bool) -> None:
    model = random_model(Branching).requires_grad_(not frozen)
    assert [point.name for point in embgrad.points(model, SMALL_IDS)] == ["table#0", "slow#0"]
    at_layer = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="slow")
    at_word = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1))
    np.testing.assert_allclose(at_word.values, at_layer.values @ model.slow.weight.detach().numpy(), rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_model() -> None:
    model = random_model(Recurrent).float()
    model.lstm = nn.Sequential(nn.Linear(4, 3), nn.Identity())
    model.forward = lambda x: model.head(model.lstm(model.table(x)).mean(1))
    model.lstm = torch.ao.quantization.quantize_dynamic(model.lstm, {nn.Linear})
    names = [point.name for point in embgrad.points(model, SMALL_IDS)]
    assert "lstm.0#0" in names
    result = embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1), at="lstm")
    np.testing.assert_allclose(result.values, np.broadcast_to(model.head.weight[1].detach() / 4, (2, 4, 3)), rtol=1e-6)
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"quantised weights .* without a backward pass"):
        embgrad.gradients(model, SMALL_IDS, embgrad.Logit(1))


def test_a_call_in_another_thread_is_left_alone() -> None:
    model = random_model(Shared)
    plain = model(tensor()).detach()
    others: list[Any] = []

    def call_elsewhere() -> None:
        thread = threading.Thread(target=lambda: others.append(model(tensor()).detach()))
        thread.start()
        thread.join()

    def objective(logits: Any) -> Any:
        call_elsewhere()
        model.first(model.table(tensor()))  # the user's own use of it, in this thread
        return logits[:, 1]

    def change(value: np.ndarray) -> np.ndarray:
        call_elsewhere()
        return value * 0

    def hook(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            call_elsewhere()

    handle = model.first[0].register_forward_hook(hook)
    result = embgrad.gradients(model, SMALL_IDS, objective, at="first#1", override={"first#1": change})
    handle.remove()
    assert not result.activations.any()
    assert len(others) > 6
    assert all(torch.equal(other, plain) for other in others)


SLICES = {
    "rows": lambda table, count: table[:count],
    "rows and all columns": lambda table, count: table[:count, :],
    "rows and every column by number": lambda table, count: table[0:count, 0:8],
    "rows after two": lambda table, count: table[2 : count + 2],
}


class Sliced(nn.Module):
    """Words and positions whose table is sliced, and layers that slice cached sines and a weight."""

    def __init__(self, taken: Any) -> None:
        super().__init__()
        self.taken = taken
        self.words, self.places = nn.Embedding(20, 8), nn.Parameter(torch.randn(16, 8))
        self.layers = nn.ModuleList(Slicing() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.taken(self.places, ids.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Slicing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sines", torch.randn(16, 4))
        self.mix, self.bend = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        turned = x * torch.cat([self.sines[: x.shape[1]]] * 2, -1)
        return torch.tanh(self.bend(turned) + torch.softmax(x @ self.mix[:5].T, -1) @ self.mix[:5])


@pytest.mark.parametrize("name", SLICES)
def test_positions_that_are_sliced_off_their_table(name: str) -> None:
    torch.manual_seed(3)
    model, ids = Sliced(SLICES[name]).double(), np.array([[2, 7, 4, 9, 3], [5, 6, 3, 11, 13]])
    points = {role: point.name for point in embgrad.points(model, ids) for role in point.roles}
    assert points["position"] == "places#0"
    assert [point.name for point in embgrad.points(model, ids) if point.lookup] == ["words#0", "places#0"]
    added = np.random.default_rng(4).normal(size=(5, 8))
    options: dict[str, Any] = {"at": ["word", "position"], "add": {"position": added}}
    found = embgrad.gradients(model, ids, embgrad.Logit(1), **options)
    first = 2 if "two" in name else 0
    with torch.no_grad():
        model.places[first : first + 5] += torch.tensor(added)
    total = model(torch.tensor(ids))[:, 1].sum()
    words, places = (gradient.numpy() for gradient in torch.autograd.grad(total, [model.words.weight, model.places]))
    np.testing.assert_allclose(found["position"].values.sum(0), places[first : first + 5], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["position"].table().to_dense(), places, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["word"].table().to_dense(), words, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found["position"].ids, np.broadcast_to(np.arange(first, first + 5), (2, 5)))
