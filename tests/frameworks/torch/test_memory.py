"""The forecast of memory beside what is measured, and the meters of devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from embgrad_torch.parameters import device_meter

import embgrad
from tests.support.forecast import figures
from tests.unit.refusals import refused


def test_a_forecast_is_within_15_percent_of_what_is_measured() -> None:
    found = figures("torch", 16, 256)
    assert "16" not in found["measured"]
    assert found["activations"] == pytest.approx(found["used"], rel=0.15)
    assert found["peak"] == pytest.approx(found["used_peak"], rel=0.15)
    assert found["weights"] == pytest.approx(22.7e6 * 4, rel=0.01)


class Elsewhere(torch.nn.Module):
    """A module whose parameters claim to be on other devices."""

    def __init__(self, *devices: str) -> None:
        super().__init__()
        claiming = [SimpleNamespace(device=torch.device(device)) for device in devices]
        self._parameters: dict[str, Any] = {str(number): parameter for number, parameter in enumerate(claiming)}


@pytest.mark.parametrize(("devices", "named"), [(["mps"], "'mps'"), (["cpu", "cuda:0"], "'cpu', 'cuda:0'")])
def test_a_device_whose_memory_cannot_be_measured_is_refused(devices: list[str], named: str) -> None:
    with refused(
        embgrad.errors.UnsupportedError, f"the model is on {named}: expected a model on the CPU or on one CUDA GPU"
    ):
        device_meter(Elsewhere(*devices))


def test_a_gpu_is_measured_by_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peaks.append(100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[-1])
    meter = device_meter(Elsewhere("cuda:1", "cuda:1"))
    assert meter is not None
    meter.restart()
    assert (meter.device, meter.read(), meter.holds_results) == ("cuda:1", (7, 100), False)
