"""`compile=True`: what cannot be traced or compiled runs as without, and says why."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import kept, program
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import embgrad
from embgrad.generators import user_code_beside
from tests.torch.kept_traces import IDS, PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")


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


def _hooking_nodes(model: Any, rows: Any) -> Any:
    bent = model.inner(rows)
    bent.grad_fn.register_prehook(lambda gradients: tuple(one.clamp(-1, 1) for one in gradients))
    return bent


def _hooking_several(model: Any, rows: Any) -> Any:
    bent = model.inner(rows)
    torch.autograd.graph.register_multi_grad_hook([bent], lambda gradients: None)
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
        (_hooking_nodes, "looks at the graph of its gradients, where hooks may be put, in its own forward pass"),
        (_hooking_several, "in its own forward pass"),
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


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: random.uniform(0, 1), lambda: np.random.rand()])
def test_a_part_that_python_leaves_out_at_random(draw: Any) -> None:
    """In evaluation mode the draw has no say, as in Hugging Face's layer drop."""

    class Dropping(Net):
        def body(self, rows: Any) -> Any:
            bent = super().body(rows)
            share = draw()
            return 2 * bent if self.training and share < 0.5 else bent

    model = Dropping()
    agree(model, IDS)
    random.seed(2)
    np.random.seed(0)  # with either, the first draws are above 0.5: those of the model and the trace
    with pytest.warns(embgrad.EmbgradWarning, match="from Python's or NumPy's generator"):
        found = [embgrad.gradients(model, IDS, PROJECTION, training=True, compile=True) for _ in range(12)]
    assert len({one.values.tobytes() for one in found}) == 2


def _by_a_share(model: Any, rows: Any) -> Any:
    return model.inner(rows) * (2 if random.random() < 0.1 else 1)


def _by_a_number(model: Any, rows: Any) -> Any:
    return model.inner(rows) * np.random.uniform(1, 1.0001)


def _by_a_choice(model: Any, rows: Any) -> Any:
    return model.inner(rows) * random.choice([1, 1, 1, 1, 2])


def _by_noise(model: Any, rows: Any) -> Any:
    return model.inner(rows) + torch.from_numpy(np.random.normal(size=rows.shape[-1])) * 1e-9


@pytest.mark.parametrize("body", [_by_a_share, _by_a_number, _by_a_choice, _by_noise])
def test_what_python_draws_counts_in_evaluation_mode_too(body: Any) -> None:
    model = Net()
    model.body = lambda rows: body(model, rows)

    def found(**options: Any) -> Any:
        random.seed(2)  # the first draws leave the model as it is
        np.random.seed(0)
        return embgrad.gradients(model, IDS, PROJECTION, **options)

    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="from Python's or NumPy's generator"):
            compiled = found(compile=True)
        np.testing.assert_array_equal(compiled.values, found().values)


OF_ITS_OWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    "sort", [random.Random, np.random.default_rng, np.random.RandomState, random.SystemRandom, None]
)
def test_a_generator_of_the_models_own(sort: Any) -> None:
    class Drawing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"generator": OF_ITS_OWN if sort is None else sort(0)}

        def body(self, rows: Any) -> Any:
            generator = OF_ITS_OWN if sort is None else self.held["generator"]
            return super().body(rows) * (0 * generator.random() + 1)

    model = Drawing()
    if sort is None:
        model.held.clear()
    falls_back(model, "from Python's or NumPy's generator")


@pytest.mark.slow
def test_draws_beside_user_code_are_no_reason_for_good(traces: list[Any]) -> None:
    """They may be those of the source of a stream."""

    class Drawing(Net):
        draws = True

        def body(self, rows: Any) -> Any:
            if self.draws:
                random.randint(0, 9)
            return super().body(rows)

    model, why = Drawing(), "from Python's or NumPy's generator"
    with user_code_beside():
        falls_back(model, why)
        Drawing.draws = False
        agree(model, IDS)
        Drawing.draws, other = True, Drawing()
        for _ in range(3):
            falls_back(other, why)
    assert len(traces) == 3 + kept.PASSING


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.Tensor.tanh else found


class Counting(TorchDispatchMode):
    counted = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counted += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Doubling, Counting])
def test_modes_of_the_users(mode: Any, traces: list[Any]) -> None:
    model, why = Net(), "a mode that watches PyTorch's functions is in force"
    with mode():
        falls_back(model, why)
    agree(model, IDS)
    with mode():
        falls_back(model, why)
    assert len(traces) == 1


def test_devices_of_new_tensors(traces: list[Any]) -> None:
    model = Net()
    with torch.device("cpu"), BaseTorchFunctionMode():
        agree(model, IDS)
    agree(model, IDS)
    torch.set_default_device("cpu")
    try:
        agree(model, IDS)
    finally:
        torch.set_default_device(None)
    assert len(traces) == 1


def test_what_is_seen_before_a_trace_falls_back() -> None:
    hooked, scripted, scaled = Net(), Net(), Net()
    hooked.inner.register_forward_hook(lambda module, given, gave: gave * 2)
    falls_back(hooked, "inner has a hook")
    heard = Net()
    agree(heard, IDS)
    hook = heard.inner.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 3,))
    falls_back(heard, "inner has a hook")
    hook.remove()
    agree(heard, IDS)
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


@pytest.mark.parametrize(
    "check",
    [
        lambda ids: torch._assert_async((ids > 0).all(), "too small"),
        lambda ids: torch._check((ids > 0).all().item(), lambda: "too small"),
    ],
)
def test_what_a_model_checks_of_values_is_checked_in_each_call(check: Any) -> None:
    class Checking(Net):
        def forward(self, input_ids: Any) -> Any:
            check(input_ids)
            return super().forward(input_ids)

    model, wrong = Checking(), np.array(IDS)
    falls_back(model, "depends on the values of tensors")
    wrong[0, 0] = 0
    with pytest.raises(RuntimeError, match="too small"):
        embgrad.gradients(model, wrong, PROJECTION, compile=True)


def _odd() -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "odd": object()}


def test_a_number_whose_reading_fails_where_nobody_hears_of_it() -> None:
    class Trying(Net):
        def forward(self, input_ids: Any) -> Any:
            rows = self.table(input_ids)
            with contextlib.suppress(Exception):
                if input_ids.min().item() == 0:
                    rows = rows.tanh()
            return self.outer(self.body(rows).mean(1))

    model, padded = Trying(), np.where(IDS == 1, 0, IDS)
    falls_back(model, "depends on the values of tensors, which it reads as numbers")
    falls_back(model, "depends on the values of tensors", batch=padded)


def test_what_parametrizations_keep_is_of_one_call() -> None:
    model = Net()
    nn.utils.parametrizations.weight_norm(model.inner)
    with parametrize.cached():
        falls_back(model, "torch.nn.utils.parametrize.cached is in force")
    with torch.no_grad():
        model.inner.parametrizations.weight.original0 *= 2
    agree(model, IDS)


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


def test_what_a_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("this cannot be had")

    monkeypatch.setattr(program, "FEW", 0)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refusing))
    falls_back(Net(), "torch.compile failed .*: NotImplementedError: this cannot be had")
