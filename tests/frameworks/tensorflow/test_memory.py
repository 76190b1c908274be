"""The forecast of memory beside what is measured, and the meters of devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf
from embgrad_tensorflow import parameters

import embgrad
from tests.support.forecast import figures
from tests.unit.refusals import refused


@pytest.mark.slow
def test_a_forecast_is_within_15_percent_of_what_is_measured() -> None:
    found = figures("tensorflow", 16, 128)
    assert "16" not in found["measured"]
    assert found["activations"] == pytest.approx(found["used"], rel=0.15)
    assert found["peak"] == pytest.approx(found["used_peak"], rel=0.15)
    assert found["weights"] == pytest.approx(22.7e6 * 4, rel=0.01)


def on(monkeypatch: pytest.MonkeyPatch, *devices: str) -> None:
    """Let all models have variables that claim to be on these devices."""
    variables = [
        SimpleNamespace(device=f"/job:localhost/replica:0/task:0/device:{name}", dtype=tf.float32) for name in devices
    ]
    monkeypatch.setattr(parameters, "Parameters", lambda parts: dict(enumerate(variables)))


def test_several_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "CPU:0", "GPU:0")
    with refused(
        embgrad.errors.UnsupportedError, "the model is on 'CPU:0', 'GPU:0': expected a model on the CPU or on one GPU"
    ):
        parameters.device_meter(tf.Module())


def test_a_gpu_is_measured_by_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "GPU:1", "GPU:1")
    restarted: list[str] = []
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", restarted.append)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: {"current": 7, "peak": 100})
    meter = parameters.device_meter(tf.Module())
    assert meter is not None
    meter.restart()
    assert (meter.device, meter.read(), restarted, meter.holds_results) == ("GPU:1", (7, 100), ["GPU:1"], False)
