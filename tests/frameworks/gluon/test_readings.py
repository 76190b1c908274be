"""What is read off operators and graphs: kernels that run them, dropout between layers, and sums that a mark regroups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import pullback
from embgrad_gluon.cures import _drops_between_layers, _is_native

SWITCHES = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")


@pytest.mark.parametrize(
    ("device", "dtype", "switched_off", "native"),
    [
        ("cpu", np.float32, (), False),
        ("cpu", np.float32, SWITCHES[:1], True),
        ("cpu", np.float32, SWITCHES[1:], True),
        ("cpu", np.float64, (), True),
        ("gpu", np.float32, (), False),
        ("gpu", np.float64, SWITCHES, False),
    ],
)
def test_the_kernel_of_a_recurrent_layer(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: Any, switched_off: tuple[str, ...], native: bool
) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(name, "0" if name in switched_off else "1")
    assert _is_native(SimpleNamespace(ctx=SimpleNamespace(device_type=device), dtype=dtype)) is native


@pytest.mark.parametrize(
    ("attributes", "drops"),
    [
        ({"p": "0.5", "num_layers": "2"}, True),
        ({"p": "0.0", "num_layers": "2"}, False),
        ({"p": "0.5", "num_layers": "1"}, False),
        ({"p": "0.5"}, False),
        ({"num_layers": "2"}, False),
    ],
)
def test_dropout_between_layers(attributes: dict[str, str], drops: bool) -> None:
    operation: Any = SimpleNamespace(attributes=attributes)
    assert _drops_between_layers(operation) is drops


@pytest.mark.parametrize(
    ("directly", "with_mark", "regrouped"),
    [
        ([], 1, False),
        ([], 3, False),
        ([(1, 1)], 1, False),
        ([(1, 1)], 2, True),
        ([(1, 1)] * 2, 1, True),
        ([(1, 0)] * 3, 3, False),  # another output of the same operator
    ],
)
def test_a_mark_regroups_a_sum_of_more_than_two_terms(
    monkeypatch: pytest.MonkeyPatch, directly: list[tuple[int, int]], with_mark: int, regrouped: bool
) -> None:
    def node(op: str, name: str, *entries: tuple[int, int]) -> dict[str, Any]:
        return {"op": op, "name": name, "inputs": [[*entry, 0] for entry in entries]}

    nodes = [
        node("null", "mark"),
        node("split", "halves"),
        node("elemwise_add", "marked", (1, 1), (0, 0)),
        *(node("tanh", f"marked{number}", (2, 0)) for number in range(with_mark)),
        *(node("tanh", f"direct{number}", entry) for number, entry in enumerate(directly)),
    ]
    monkeypatch.setattr(pullback, "recorded_symbol", lambda mark: SimpleNamespace(name=mark))
    section: Any = SimpleNamespace(nodes=nodes)
    assert pullback.is_regrouped(section, "mark") is regrouped
    assert pullback.is_regrouped(section, "another") is False
