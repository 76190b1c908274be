"""`compile=True`: a kept trace gives what the model gives, for every call's own values, and leaves everything as it was."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import kept, program
from torch import nn
from torch.nn import functional

import embgrad

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 6, 10], [6, 10, 11, 2, 2]])
LONGER = np.array([[5, 2, 9, 4, 1, 11, 7], [3, 8, 7, 0, 0, 0, 0]])
PROJECTION = embgrad.Projection([1.0, -2.0, 0.5])


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: Any) -> None:
    """The pieces of a graph run operator by operator; what compiling them changes is seen in `test_compile_models`."""
    monkeypatch.setattr(program, "FEW", 10**6)


@pytest.fixture
def traces(monkeypatch: Any) -> list[Any]:
    """The traces that are made meanwhile."""
    made: list[Any] = []

    def counted(*args: Any) -> Any:
        made.append(args)
        return exported(*args)

    exported = kept.exported
    monkeypatch.setattr(kept, "exported", counted)
    return made


class Net(nn.Module):
    """Looks rows up, bends them, and reads off three numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(12, 6, padding_idx=0)
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 3)
        self.double().eval()
        self.ran = 0

    def rows(self, ids: Any) -> Any:
        return self.table(ids)

    def body(self, rows: Any) -> Any:
        return self.inner(rows).tanh()

    def forward(self, input_ids: Any) -> Any:
        self.ran += 1
        return self.outer(self.body(self.rows(input_ids)).mean(1))


def same(plain: Any, compiled: Any, rel: float = 1e-10) -> None:
    assert compiled.provenance["compiled"] is True, compiled.provenance["uncompiled"]
    assert compiled.provenance["uncompiled"] is None
    for name in ("values", "activations", "objective"):
        one, other = getattr(plain, name), getattr(compiled, name)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=0, atol=rel * max(np.abs(one).max(), 1e-30))
    assert plain.provenance["path"] == compiled.provenance["path"]
    assert plain.provenance["compute_dtype"] == compiled.provenance["compute_dtype"]


def agree(model: Any, batch: Any, objective: Any = PROJECTION, **options: Any) -> Any:
    """A call with a trace gives what one without gives, the first time and later."""
    plain = embgrad.gradients(model, batch, objective, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        for _ in range(2):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
            if isinstance(plain, dict):
                for name, one in plain.items():
                    same(one, compiled[name])
            else:
                same(plain, compiled)
    return compiled


def falls_back(model: Any, why: str, batch: Any = IDS, objective: Any = PROJECTION, **options: Any) -> None:
    """A call with a trace warns that there is none, and gives bit for bit what one without gives."""
    plain = embgrad.gradients(model, batch, objective, **options)
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match=f"compile=True: .*{why}"):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
        np.testing.assert_array_equal(compiled.values, plain.values)
        assert compiled.provenance["compiled"] is False


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
    *(Bag, Normed, Compiled, Mapped, Plain),
)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__)
def test_sorts_of_models(sort: Any, traces: list[Any]) -> None:
    model = sort()
    agree(model, IDS)
    agree(model, LONGER)
    assert len(traces) == 1


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


def test_each_examples_own_pullback() -> None:
    class Mixing(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows - rows.mean(0)).tanh()

    model = Mixing()
    agree(model, IDS, split=True)
    agree(model, IDS, lambda logits: logits[:, 1], split=True)


def test_several_points() -> None:
    agree(Net(), IDS, at=["word", "inner", "outer"])


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


def test_what_is_wrong_is_said_as_without() -> None:
    model = Net()
    agree(model, IDS)
    wrong = np.array(IDS)
    wrong[1, 2] = 99
    with pytest.raises(embgrad.BatchError, match="id 99 at example 1, position 2 is outside the table"):
        embgrad.gradients(model, wrong, PROJECTION, compile=True)
    with torch.no_grad():
        model.outer.bias[0] = float("nan")
    with pytest.raises(embgrad.ObjectiveError, match="finite"):
        embgrad.gradients(model, IDS, PROJECTION, compile=True)


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


@pytest.mark.parametrize("option", ["override", "add", "edit", "objective"])
def test_exceptions_of_the_users_functions_come_out(option: str) -> None:
    model = Net()
    raising = [False]

    def change(value: Any) -> Any:
        if raising:
            raise raising[0]
        return value

    def ask() -> Any:
        if option == "objective":
            return embgrad.gradients(model, IDS, lambda out: change(out)[:, 0], compile=True)
        return embgrad.gradients(model, IDS, PROJECTION, at="outer", compile=True, **{option: {"word": change}})

    raising.clear()
    ask()
    for error in (KeyboardInterrupt("stop"), RuntimeError("stop"), ValueError("stop")):
        raising[:] = [error]
        with pytest.raises(type(error), match=r"^stop$"):
            ask()


class Clamped(torch.autograd.Function):
    """Its backward pass does something else only where gradients are large."""

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient.clamp(-1, 1)


def _clamped(model: Any, rows: Any) -> Any:
    return Clamped.apply(model.inner(rows))


def _hooked(model: Any, rows: Any) -> Any:
    bent = model.inner(rows)
    bent.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return bent


def _deciding(model: Any, rows: Any) -> Any:
    return model.inner(rows) * (2 if rows.sum().item() > 0 else 1)


def _counting(model: Any, rows: Any) -> Any:
    return model.inner(rows) * rows.sum().item()


def _choosing(model: Any, rows: Any) -> Any:
    return model.inner(rows) + rows[rows > 0].sum()


def _differentiating(model: Any, rows: Any) -> Any:
    leaf = rows.detach().requires_grad_()
    return model.inner(rows) * torch.autograd.grad(model.inner(leaf).sum(), leaf)[0]


def _drawing(model: Any, rows: Any) -> Any:
    return model.inner(rows) + 0 * torch.randn_like(rows)


def _leaving(model: Any, rows: Any) -> Any:
    return model.inner(torch.tensor(rows.detach().numpy()) + rows)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_clamped, "Clamped is a torch.autograd.Function, whose own backward pass"),
        (_hooked, "registers a hook on a gradient"),
        (_deciding, "depends on the values of tensors"),
        (_counting, "depends on the values of tensors"),
        (_choosing, "depends on the values of tensors"),
        (_differentiating, "takes gradients in its own forward pass"),
        (_drawing, "draws random numbers"),
        (_leaving, "cannot be followed without values"),
    ],
)
def test_what_cannot_be_traced_falls_back(body: Any, why: str, capfd: Any) -> None:
    model = Net()
    model.body = lambda rows: body(model, rows)
    falls_back(model, why)
    assert "def forward" not in capfd.readouterr().err


def test_what_is_seen_before_a_trace_falls_back() -> None:
    hooked, scripted, scaled = Net(), Net(), Net()
    hooked.inner.register_forward_hook(lambda module, given, gave: gave * 2)
    falls_back(hooked, "inner has a hook")
    scripted.inner = torch.jit.script(scripted.inner)
    falls_back(scripted, "inner is a TorchScript module")
    scaled.table = nn.Embedding(12, 6, max_norm=0.5).double()
    falls_back(scaled, "max_norm")
    model = Net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        falls_back(model, "torch.autocast is in force")
    with torch.inference_mode():
        made = Net()
    falls_back(made, "is no ordinary tensor")
    falls_back(
        Net(), "the model is given a object", call=lambda model, inputs: model(inputs["input_ids"]), batch=_odd()
    )


def _odd() -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "odd": object()}


def test_training_mode() -> None:
    class Dropping(Net):
        def body(self, rows: Any) -> Any:
            return functional.dropout(self.inner(rows), 0.5, self.training)

    model = Dropping()
    agree(model, IDS)
    torch.manual_seed(3)
    with pytest.warns(embgrad.EmbgradWarning, match="draws random numbers"):
        first = embgrad.gradients(model, IDS, PROJECTION, training=True, compile=True)
    torch.manual_seed(3)
    np.testing.assert_array_equal(first.values, embgrad.gradients(model, IDS, PROJECTION, training=True).values)
    normal = Net()
    normal.inner = nn.Sequential(nn.Linear(6, 6), nn.Flatten(0, 1), nn.BatchNorm1d(6)).double()
    normal.body = lambda rows: normal.inner(rows).reshape(rows.shape)
    before = normal.inner[2].running_mean.clone()
    agree(normal, IDS, training=True)
    assert torch.equal(normal.inner[2].running_mean, before)
    assert normal.inner[2].num_batches_tracked == 0


def test_the_model_is_as_found() -> None:
    class Writing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.zeros(6, dtype=torch.float64))
            self.seen: list[Any] = []
            self.last = None

        def body(self, rows: Any) -> Any:
            self.sums.add_(1)
            self.seen.append(rows)
            self.last = rows
            return self.inner(rows) + self.sums

    model = Writing().train()
    model.inner.weight.grad = torch.ones_like(model.inner.weight)
    weights = {name: (id(one), one.detach().clone()) for name, one in model.named_parameters()}
    random = torch.get_rng_state()
    for _ in range(2):
        embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert model.seen == []
        assert model.last is None
        assert not model.sums.any()
        assert all(one.training for one in model.modules())
        assert all(id(one) == weights[name][0] for name, one in model.named_parameters())
        assert all(torch.equal(one, weights[name][1]) and one.requires_grad for name, one in model.named_parameters())
        assert torch.equal(model.inner.weight.grad, torch.ones_like(model.inner.weight))
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        assert torch.equal(torch.get_rng_state(), random)
    agree(model, IDS)


def test_the_model_is_not_kept_alive() -> None:
    model = Net()
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    embgrad.gradients(model, IDS, lambda logits: logits[:, 0], compile=True)
    reference, weight = weakref.ref(model), weakref.ref(model.inner.weight)
    del model
    gc.collect()
    assert reference() is None
    assert weight() is None


def test_what_the_user_has_compiled_stays_compiled() -> None:
    compiled: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 3)).double()
    called = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        called(torch.tensor(IDS))
        found = len(compiled)
        agree(called, IDS, embgrad.Sum())
        called(torch.tensor(IDS))
    assert len(compiled) == found == 1


def test_a_call_of_ones_own(traces: list[Any]) -> None:
    encoder, head = Net(), nn.Linear(6, 3).double()
    for factor in (1, 1, 2):
        agree(
            [encoder, head],
            IDS,
            call=lambda parts, inputs, factor=factor: parts[1](parts[0].table(inputs).mean(1)) * factor,
        )
    assert len(traces) == 2


def test_under_no_grad_and_inference_mode() -> None:
    model = Net().requires_grad_(False)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            agree(model, IDS)


def test_several_threads() -> None:
    model, other, failed = Net(), Net(), []
    plain = {len(batch): embgrad.gradients(model, batch, PROJECTION).values for batch in (IDS, LONGER)}

    def work(own: Any, compile: bool) -> None:
        try:
            for batch in (IDS, LONGER) * 2:
                values = embgrad.gradients(own, batch, PROJECTION, compile=compile).values
                np.testing.assert_allclose(values, plain[len(batch)], rtol=1e-9)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=one) for one in ((model, True), (model, True), (other, False)) * 2]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


@pytest.fixture
def without_compiler() -> dict[str, str]:
    return {**os.environ, "CXX": "/nowhere/g++", "PATH": "", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}


def test_without_a_compiler(without_compiler: dict[str, str]) -> None:
    source = """
import warnings, numpy as np, torch, embgrad
from torch import nn
model = nn.Sequential(nn.Embedding(9, 4), *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(12)))
ids = np.array([[1, 2, 3], [4, 5, 6]])
plain = embgrad.gradients(model, ids, embgrad.Sum())
for _ in range(2):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = embgrad.gradients(model, ids, embgrad.Sum(), compile=True)
    print([str(one.message) for one in said if issubclass(one.category, embgrad.EmbgradWarning)])
    assert np.array_equal(found.values, plain.values) and found.provenance["compiled"] is False
"""
    run = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=without_compiler, check=False
    )
    assert run.returncode == 0, run.stderr
    said = run.stdout.strip().splitlines()
    assert len(said) == 2
    assert all("compile=True: no C++ compiler (g++) is on the path, which torch.compile needs" in line for line in said)
