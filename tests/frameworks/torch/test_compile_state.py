"""compile=True leaves the model, what is compiled beside it and other threads alone, and keeps nothing of a model alive."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.compiling import IDS, LONGER, PROJECTION, Net, agree

pytestmark = pytest.mark.usefixtures("graphs")


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


def test_the_model_is_as_found() -> None:
    def writing(body: Any, rows: Any) -> Any:
        body.sums.add_(1)
        body.seen.append(rows)
        body.last = rows
        return body.inner(rows) + body.sums

    class Writing(Net):
        def __init__(self) -> None:
            super().__init__(writing)
            self.body.register_buffer("sums", torch.zeros(6, dtype=torch.float64))
            self.body.seen = []
            self.body.last = None

    model = Writing().train()
    model.body.inner.weight.grad = torch.ones_like(model.body.inner.weight)
    weights = {name: (id(one), one.detach().clone()) for name, one in model.named_parameters()}
    random = torch.get_rng_state()
    for _ in range(2):
        embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert model.body.seen == []
        assert model.body.last is None
        assert not model.body.sums.any()
        assert all(one.training for one in model.modules())
        assert all(id(one) == weights[name][0] for name, one in model.named_parameters())
        assert all(torch.equal(one, weights[name][1]) and one.requires_grad for name, one in model.named_parameters())
        assert torch.equal(model.body.inner.weight.grad, torch.ones_like(model.body.inner.weight))
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        assert torch.equal(torch.get_rng_state(), random)
    agree(model, IDS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("option", ["objective", "override", "add", "edit"])
def test_functions_that_call_parts_of_the_model_find_it_as_in_a_pass(option: str, training: bool) -> None:
    """In evaluation mode, unless another is asked for; and what they write to its buffers is not there afterwards."""
    model = Net()
    model.head = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6)).double()

    def part(value: Any) -> np.ndarray:
        rows = torch.from_numpy(value).reshape(-1, value.shape[-1])
        found: np.ndarray = model.head(rows).detach().reshape(value.shape).numpy()
        return found

    changes = {option: {"word": part}} if option in ("override", "add", "edit") else {}
    objective = PROJECTION if changes else lambda out: model.head(out.repeat(1, 6)[:, :6])[:, 1]
    asked: dict[str, Any] = {"training": training, **changes}
    model.eval()
    embgrad.gradients(model, IDS, objective, compile=True, **asked)
    model.train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    plain, compiled = (embgrad.gradients(model, IDS, objective, compile=one, **asked) for one in (False, True))
    assert compiled.provenance["compiled"]
    np.testing.assert_allclose(compiled.values, plain.values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(compiled.objective, plain.objective, rtol=1e-10)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.training
    assert model.head.training


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


def test_several_threads_compile_modules_of_their_own() -> None:
    failed: list[Any] = []
    shared = Net()

    def work(number: int) -> None:
        try:
            own = Net()
            for batch in (IDS, LONGER):
                agree(own, batch)
                agree(shared, batch, at=("word", "body.inner")[number % 2])
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not failed
