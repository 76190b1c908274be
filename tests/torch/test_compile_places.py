"""`compile=True`: tensors that lie in containers and objects of a model's count as they are at each call, as its weights do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.torch.kept_traces import IDS, PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")


class Holder:
    """An object of the user's, as a helper of a model is."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def shifted(self, value: Any) -> Any:
        return value + self.shift


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: Any) -> None:
        self.factor = factor


def _numbers(by: float = 1.0) -> Any:
    return torch.linspace(0.5, by, 6, dtype=torch.float64)


class Unregistered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.adapters = [nn.Linear(6, 6).double()]
        self.extra: dict[str, Any] = {"scale": (_numbers(), 1)}
        self.helper = Holder(shift=_numbers(), inner=Slotted(_numbers()))
        self.method = self.helper.shifted
        by = _numbers()
        self.function = lambda value: value * by
        self.part = partial(torch.add, _numbers())

    def body(self, rows: Any) -> Any:
        bent = self.method(super().body(rows)) * self.extra["scale"][0] * self.helper.inner.factor
        return self.part(self.function(self.adapters[0](bent)))


def _other_state(model: Any) -> None:
    held = model.adapters[0]
    held.load_state_dict({name: one * 3 for name, one in held.state_dict().items()}, assign=True)


def _in_place(model: Any) -> None:
    model.adapters[0].weight.data.mul_(2)


def _other_entry(model: Any) -> None:
    model.extra["scale"] = (_numbers(3.0), 1)


def _other_attribute(model: Any) -> None:
    model.helper.shift = _numbers(3.0)


def _other_slot(model: Any) -> None:
    model.helper.inner.factor = _numbers(3.0)


def _other_cell(model: Any) -> None:
    model.function.__closure__[0].cell_contents = _numbers(3.0)


def _other_argument(model: Any) -> None:
    model.part = partial(torch.add, _numbers(3.0))


def _other_module(model: Any) -> None:
    model.adapters[0] = nn.Linear(6, 6).double()


CHANGES = (
    *(
        _other_state,
        _in_place,
        _other_entry,
        _other_attribute,
        _other_slot,
        _other_cell,
        _other_argument,
        _other_module,
    ),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
def test_tensors_anywhere_in_a_model_may_change(change: Callable[[Any], None], traces: list[Any]) -> None:
    model = Unregistered()
    before = agree(model, IDS)
    change(model)
    after = agree(model, IDS)
    assert np.abs(after.objective - before.objective).max() > 1e-3
    assert len(traces) == 1


def test_one_tensor_in_two_places_may_become_two() -> None:
    class Twice(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = _numbers()

        def body(self, rows: Any) -> Any:
            return super().body(rows * self.first) * self.second

    model = Twice()
    agree(model, IDS)
    model.second = _numbers(3.0)
    agree(model, IDS)
    model.first = _numbers(4.0)
    agree(model, IDS)


def test_weights_that_nothing_leads_to() -> None:
    beside, among = nn.Linear(3, 3).double(), {_numbers()}

    class Around(Net):
        def __init__(self) -> None:
            super().__init__()
            self.among = among

        def body(self, rows: Any) -> Any:
            return super().body(rows) * next(iter(self.among))

    why = "nothing leads from its modules to a tensor of the shape"
    falls_back(Net(), why, call=lambda model, inputs: beside(model(inputs)))
    falls_back(Around(), why)


class Reading(Net):
    """Python reads what lies in its attributes as numbers."""

    def __init__(self, read: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.temperature, self.count, self.read = torch.tensor(2.0), torch.tensor(2), read

    def body(self, rows: Any) -> Any:
        return self.read(self, super().body(rows))


READS: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda model, bent: bent / model.temperature.item(),
    "float": lambda model, bent: bent / float(model.temperature),
    "int": lambda model, bent: bent[:, : int(model.count)],
    "slice": lambda model, bent: bent[:, : model.count],
    "list": lambda model, bent: bent * model.temperature.tolist(),
    "array": lambda model, bent: bent * float(np.asarray(model.temperature)),
    "an argument": lambda model, bent: bent.narrow(1, 0, model.count),
    "another argument": lambda model, bent: nn.functional.leaky_relu(bent, model.temperature),
    "if": lambda model, bent: bent if model.count else bent * 2,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("read", READS)
def test_numbers_that_python_reads_out_of_attributes(read: str) -> None:
    model = Reading(READS[read])
    why = "cannot be followed without values" if read == "array" else "depends on the values of tensors"
    falls_back(model, why)
    model.temperature.fill_(5.0)
    model.count.fill_(1)
    falls_back(model, why)


def test_tensors_of_one_number_are_followed(traces: list[Any]) -> None:
    model = Reading(lambda model, bent: bent * model.temperature.to(bent.dtype) if model.count.dim() == 0 else bent)
    first = agree(model, IDS).values
    model.temperature.fill_(6.0)
    np.testing.assert_allclose(agree(model, IDS).values, first * 3)
    assert len(traces) == 1


def test_numbers_that_are_the_programs_are_followed() -> None:
    def read(model: Any, bent: Any) -> Any:
        return bent * torch.tensor(2.0).item()

    agree(Reading(read), IDS)


def test_another_thread_may_run_the_model_while_a_trace_is_made() -> None:
    """It finds the model's own weights, whatever the trace is made with."""
    model, found, over = Net(), [], threading.Event()
    ids = torch.tensor(IDS)
    with torch.no_grad():
        expected = model(ids)

    def run() -> None:
        with torch.no_grad():
            while not over.is_set():
                try:
                    found.append(model(ids))
                except Exception as error:  # what it is is to be seen below
                    found.append(error)

    other = threading.Thread(target=run)
    other.start()
    try:
        compiled = embgrad.gradients(model, IDS, PROJECTION, compile=True)
    finally:
        over.set()
        other.join()
    assert compiled.provenance["compiled"] is True
    assert [one for one in found if type(one) is not torch.Tensor] == []
    assert all(torch.equal(one, expected) for one in found)
