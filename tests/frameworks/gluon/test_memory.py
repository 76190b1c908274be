"""The forecast of memory beside what is measured, and the meters of devices."""

from __future__ import annotations

import pytest
from embgrad_gluon import import_mxnet
from embgrad_gluon.parameters import device_meter

import embgrad
from tests.support.forecast import figures
from tests.unit.refusals import refused

mx = import_mxnet()


def test_a_forecast_is_within_15_percent_of_what_is_measured() -> None:
    found = figures("gluon", 16, 128)
    assert "16" not in found["measured"]
    assert found["activations"] == pytest.approx(found["used"], rel=0.15)
    assert found["peak"] == pytest.approx(found["used_peak"], rel=0.15)
    assert found["weights"] == pytest.approx(22.7e6 * 4, rel=0.01)


def test_a_gpu_is_refused() -> None:
    net = mx.gluon.nn.Dense(3, use_bias=False)  # its array is made at the first call
    net.initialize(ctx=mx.gpu(0))
    with refused(
        embgrad.errors.UnsupportedError, "the model is on 'gpu(0)', and MXNet records no peak of the memory there"
    ):
        device_meter(net)
