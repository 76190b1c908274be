"""`compile=True`: what takes a trace of its own, and what is no part of a trace but of each call."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import kept
from torch import nn

import embgrad
from embgrad.traces import Traces
from tests.compiled import calls_that_change, same
from tests.torch.kept_traces import IDS, LONGER, PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")


def test_recurrent_layers_take_a_trace_a_length(traces: list[Any]) -> None:
    model = Net()
    model.inner = nn.LSTM(6, 6, batch_first=True).double()
    model.body = lambda rows: model.inner(rows)[0]
    for batch in (IDS, LONGER, IDS[:2]):
        agree(model, batch)
    assert len(traces) == 2


def test_few_traces_serve_every_length_and_number_of_examples(traces: list[Any]) -> None:
    model = Net()
    random = np.random.default_rng(0)
    for shape in ((3, 5), (2, 2), (2, 7), (5, 33), (1, 5), (1, 7), (5, 1), (2, 1), (1, 1)):
        agree(model, random.integers(1, 12, shape))
    assert len(traces) == 4  # several of both, one of either, one of both
    ran = model.ran
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    assert model.ran == ran  # none of its Python


def test_a_length_that_python_reads_takes_another_trace(traces: list[Any]) -> None:
    class Branching(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows) * (2 if rows.shape[1] > 5 else 1)

    model = Branching()
    for batch in (IDS, LONGER, IDS[:2], LONGER[:, :6]):
        agree(model, batch)
    assert len(traces) == 2


def test_too_many_lengths(monkeypatch: Any) -> None:
    class Reading(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows) * torch.tensor(np.linspace(1, 2, rows.shape[1]))[:, None]

    monkeypatch.setattr(kept, "LENGTHS", 2)
    model = Reading()
    agree(model, IDS)
    agree(model, LONGER)
    falls_back(model, "its lengths take a trace each, and 2 are kept", IDS[:, :3])
    agree(model, IDS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("at", ["word", "inner", "inner:input"])
def test_changes_are_no_part_of_the_trace(traces: list[Any], option: str, at: str) -> None:
    model = Net()
    for by in (2.0, -3.0):
        called: list[Any] = []

        def change(value: Any, by: float = by, called: list[Any] = called) -> Any:
            called.append(value)
            return value * by

        plain = embgrad.gradients(model, IDS, PROJECTION, at=at, **{option: {at: change}})
        assert called
        called.clear()
        same(plain, embgrad.gradients(model, IDS, PROJECTION, at=at, compile=True, **{option: {at: change}}))
        assert len(called) == 1  # also by the call that made the trace
    assert len(traces) == 1


def test_labels_are_no_part_of_the_trace(traces: list[Any]) -> None:
    model = Net()
    for labels in ([0, 1, 2], [2, 2, 0]):
        agree(model, IDS, embgrad.CrossEntropy(labels))
    for index in (0, 2):
        agree(model, IDS, embgrad.Logit(index))
    assert len(traces) == 1


@pytest.mark.slow
def test_native_objectives(traces: list[Any]) -> None:
    class Several(Net):
        def forward(self, input_ids: Any) -> Any:
            hidden = self.body(self.rows(input_ids))
            return {"logits": self.outer(hidden.mean(1)), "hidden": (hidden, 3, None)}

    model = Several()
    for index in (0, 2):
        agree(model, IDS, lambda out, index=index: out["logits"][:, index])
        agree(model, IDS, embgrad.Scalar(lambda out, index=index: out["logits"][:, index].sum()))
    assert len(traces) == 2
    agree(model, IDS, lambda out: out["hidden"][0].sum((1, 2)) * out["hidden"][1])
    assert len(traces) == 3
    both = [True]

    def objective(out: Any) -> Any:
        return out["logits"][:, 0] + (out["hidden"][0].sum((1, 2)) if both else 0)

    agree(model, IDS, objective)
    both.clear()
    agree(model, IDS, objective)
    both.append(True)
    agree(model, IDS, objective)
    with pytest.raises(embgrad.NoGradientError):
        embgrad.gradients(model, IDS, lambda out: out["logits"].detach()[:, 0], compile=True)


def test_weights_may_change(traces: list[Any]) -> None:
    model = Net()
    before = agree(model, IDS)
    with torch.no_grad():
        model.inner.weight.mul_(1.5)
    agree(model, IDS)
    model.inner.weight = nn.Parameter(model.inner.weight.detach() * 2)
    agree(model, IDS)
    model.inner.weight.data = model.inner.weight.data * 2
    after = agree(model, IDS)
    assert np.abs(after.values - before.values).max() > 0.01 * np.abs(before.values).max()
    model.inner.weight.data = model.inner.weight.data.t()  # the same memory, and the same shape
    turned = agree(model, IDS)
    assert np.abs(turned.values - after.values).max() > 0.01 * np.abs(after.values).max()
    assert len(traces) == 1
    model.float()
    same(*(embgrad.gradients(model, IDS, PROJECTION, compile=one) for one in (False, True)), rel=1e-5)
    assert len(traces) == 2


def test_tensors_in_plain_attributes_may_change(traces: list[Any]) -> None:
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = torch.tensor([2.0, 1.0, 1.0]), torch.zeros(3)

        def forward(self, input_ids: Any) -> Any:
            return super().forward(input_ids) * self.scale + self.shift

    model = Scaled()
    first = agree(model, IDS).values
    model.scale = torch.tensor([6.0, 3.0, 3.0])
    np.testing.assert_allclose(agree(model, IDS).values, first * 3, rtol=1e-6)
    model.scale.mul_(2)
    np.testing.assert_allclose(agree(model, IDS).values, first * 6, rtol=1e-6)
    assert len(traces) == 1
    model.scale = torch.full((1,), 2.0)  # of another shape
    agree(model, IDS)
    model.scale = 2.0
    agree(model, IDS)


def test_weights_that_were_one_may_become_two(traces: list[Any]) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 12, bias=False).double()
            self.head.weight = self.table.weight

        def forward(self, input_ids: Any) -> Any:
            return self.head(self.body(self.rows(input_ids)).mean(1))

    model, objective = Tied(), embgrad.Logit(1)
    tied = agree(model, IDS, objective)
    model.head.weight = nn.Parameter(model.head.weight.detach() * 2 + 0.3)
    apart = agree(model, IDS, objective)
    assert np.abs(apart.values - tied.values).max() > 0.1 * np.abs(tied.values).max()
    model.head.weight = model.table.weight
    agree(model, IDS, objective)
    model.table.weight = nn.Parameter(model.table.weight.detach() * 1.7)
    agree(model, IDS, objective)
    assert len(traces) == 2


def test_weights_may_come_and_go() -> None:
    model = Net()
    bias = model.inner.bias
    model.inner.bias = None
    agree(model, IDS)
    model.inner.bias = nn.Parameter(torch.full_like(bias, 3.0))
    agree(model, IDS)
    model.inner.bias = None
    agree(model, IDS)


#: What the call of a test below reads.
FACTOR = 2.0


def test_what_a_call_of_ones_own_reads_may_change(monkeypatch: Any) -> None:
    def helper(value: Any) -> Any:
        return value * factor

    factor, array, listed = 2.0, np.array(2.0), [2.0]

    def call(model: Any, inputs: Any) -> Any:
        return helper(model(inputs)) * float(array) * listed[0] * FACTOR

    model = Net()
    first = agree(model, IDS, call=call).values
    factor = 3.0
    np.testing.assert_allclose(agree(model, IDS, call=call).values, first * 1.5)
    array[...] = 4
    np.testing.assert_allclose(agree(model, IDS, call=call).values, first * 3)
    listed[0] = -2.0
    np.testing.assert_allclose(agree(model, IDS, call=call).values, first * -3)
    monkeypatch.setitem(globals(), "FACTOR", 6.0)
    np.testing.assert_allclose(agree(model, IDS, call=call).values, first * -9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("read", list(calls_that_change()))
def test_what_a_call_of_ones_own_reads_of_objects_may_change(read: str) -> None:
    model, (call, change) = Net(), calls_that_change()[read]
    first = agree(model, IDS, call=call).values
    change()
    np.testing.assert_allclose(agree(model, IDS, call=call).values, first * 3)


def test_a_call_of_ones_own_that_changes_what_it_reads_runs_without_a_trace() -> None:
    model, times, drawn = Net(), [0], np.random.default_rng(0)

    def counting(model: Any, inputs: Any) -> Any:
        times[0] += 1
        return model(inputs) * times[0]

    for number in range(1, 4):
        with pytest.warns(embgrad.EmbgradWarning, match="the function call changes, as it runs, what it reads"):
            found = embgrad.gradients(model, IDS, PROJECTION, call=counting, compile=True)
        times[0] = number - 1
        np.testing.assert_array_equal(found.values, embgrad.gradients(model, IDS, PROJECTION, call=counting).values)
    with pytest.warns(embgrad.EmbgradWarning, match="made around an object of the class 'Generator', of which nothing"):
        embgrad.gradients(
            model, IDS, PROJECTION, call=lambda model, inputs: model(inputs) * drawn.normal(), compile=True
        )


def test_a_call_of_ones_own_around_equal_values_takes_one_trace(traces: list[Any]) -> None:
    model = Net()
    for _ in range(3):
        by = {"factors": [2.0], "array": np.arange(3.0), "dtype": torch.float64}
        agree(
            model,
            IDS,
            call=lambda model, inputs, *, by=by: (
                model(inputs) * by["factors"][0] * torch.tensor(by["array"], dtype=by["dtype"])
            ),
        )
    assert len(traces) == 1


def test_a_call_of_ones_own_that_reads_something_else_each_time_is_not_traced_for_ever(
    traces: list[Any], monkeypatch: Any
) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.losses: list[float] = []

        def call(self, model: Any, inputs: Any) -> Any:
            return model(inputs)

    monkeypatch.setattr(kept, "_forms", Traces(patience=2))
    model, trainer = Net(), Trainer()
    for made in (1, 2, 2, 2):
        trainer.losses.append(1.0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            embgrad.gradients(model, IDS, PROJECTION, call=trainer.call, compile=True)
        assert len(traces) == made
    assert "the last 2 calls each asked for something else" in str(said[-1].message)
    agree(model, IDS, call=trainer.call)


class Layered(Net):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.body(self.rows(input_ids))
        return {"hidden": hidden, "logits": self.outer(self.inner(hidden).tanh().mean(1))}


def test_objectives_that_take_gradients_run_without_a_trace(traces: list[Any]) -> None:
    def weighted(out: Any) -> Any:
        (gradient,) = torch.autograd.grad(out["logits"].pow(2).sum(), out["hidden"], create_graph=True)
        return (gradient * out["hidden"]).sum((1, 2))

    def perhaps(out: Any) -> Any:
        (gradient,) = torch.autograd.grad(out["logits"].sum(), out["hidden"], retain_graph=True, allow_unused=True)
        return out["hidden"].sum((1, 2)) * (1 if gradient is None else 2)

    def hooked(out: Any) -> Any:
        out["hidden"].register_hook(lambda gradient: gradient * 2)
        return out["logits"].sum(1)

    model = Layered()
    for objective, why in (
        (weighted, "the objective takes gradients by itself"),
        (perhaps, "the objective takes gradients by itself"),
        (hooked, "the objective hooks the gradient of an output"),
    ):
        falls_back(model, why, objective=objective)
        agree(model, IDS, lambda out: out["logits"].sum(1))  # which has a trace before and after
        agree(model, IDS, lambda out: out["hidden"].sum((1, 2)))
        falls_back(model, why, objective=objective)
    assert len(traces) == 2


def test_objectives_may_take_entries_out_of_what_the_model_returns() -> None:
    def objective(out: Any) -> Any:
        out.pop("hidden")
        return out["logits"][:, 0]

    agree(Layered(), IDS, objective)


@pytest.mark.slow
def test_an_objective_that_depends_on_others_each_time_runs_without_a_trace() -> None:
    model, turn = Layered(), [0]

    def objective(out: Any) -> Any:
        turn[0] += 1
        return out["logits"][:, 0] if turn[0] % 2 else out["hidden"].sum((1, 2))

    either = [
        agree(model, IDS, lambda out: out["logits"][:, 0]).values,
        agree(model, IDS, lambda out: out["hidden"].sum((1, 2))).values,
    ]
    for _ in range(3):
        with pytest.warns(embgrad.EmbgradWarning, match="the objective depends on other outputs"):
            found = embgrad.gradients(model, IDS, objective, compile=True)
        assert any(np.allclose(found.values, one, rtol=1e-9) for one in either)


def _drawing_of_torch(out: Any) -> Any:
    return (out * torch.randn_like(out)).sum(1)


def _drawing_of_numpy(out: Any) -> Any:
    return (out * torch.from_numpy(np.random.normal(size=out.shape))).sum(1)


@pytest.mark.parametrize("objective", [_drawing_of_torch, _drawing_of_numpy])
def test_objectives_that_draw(objective: Any, traces: list[Any]) -> None:
    """They have a trace, draw what they draw without one, and something else each time."""
    model, found = Net(), []
    for compile in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)
        found.append([embgrad.gradients(model, IDS, objective, compile=compile) for _ in range(3)])
    for plain, compiled in zip(*found, strict=True):
        same(plain, compiled)
    assert len({one.objective.tobytes() for one in found[1]}) == 3
    assert len(traces) == 1


def test_an_objective_that_is_another_each_time_leaves_others_their_traces() -> None:
    model, own = Net(), np.random.default_rng(0)

    def changing(out: Any) -> Any:
        return out[:, 0] * own.normal()

    why = "the objective gives something else each time"
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match=why):
            embgrad.gradients(model, IDS, changing, compile=True)
    agree(model, IDS, lambda out: out[:, 0])


@pytest.mark.parametrize("option", ["override", "add"])
def test_functions_are_called_once_where_a_trace_turns_out_not_to_serve(option: str) -> None:
    model, called = Layered(), [0]

    def other_each_time(value: Any) -> Any:
        called[0] += 1
        return value * called[0]

    def asked(name: str, compiled: bool) -> Any:
        return embgrad.gradients(
            model, IDS, lambda out: out[name].flatten(1).sum(1), compile=compiled, **{option: {"word": other_each_time}}
        )

    for number, name in enumerate(("logits", "hidden", "hidden", "logits", "hidden")):
        called[0] = number
        compiled = asked(name, True)
        assert called == [number + 1]
        called[0] = number
        same(asked(name, False), compiled)


def test_a_call_of_ones_own(traces: list[Any]) -> None:
    encoder, head = Net(), nn.Linear(6, 3).double()
    for factor in (1, 1, 2):
        agree(
            [encoder, head],
            IDS,
            call=lambda parts, inputs, factor=factor: parts[1](parts[0].table(inputs).mean(1)) * factor,
        )
    assert len(traces) == 2
