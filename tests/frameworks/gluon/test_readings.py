"""What is read off operators and graphs: kernels that run them, dropout between layers, and sums that a mark regroups."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import pullback
from embgrad_gluon.cures import Guards, _drops_between_layers, _is_native
from embgrad_gluon.graphs import _are_close
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import _ones_of
from embgrad_gluon.scopes import _calls, _members
from embgrad_gluon.state import _attributes_of_gluon, _draws_random_numbers

import embgrad

mx = import_mxnet()

SWITCHES = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")


@pytest.mark.parametrize(
    ("device", "dtype", "switched_off", "native"),
    [("cpu", np.float32, (), False), ("cpu", np.float32, SWITCHES[:1], True), ("cpu", np.float32, SWITCHES[1:], True),
        ("cpu", np.float64, (), True), ("gpu", np.float32, (), False), ("gpu", np.float64, SWITCHES, False)],
)  # fmt: skip
def test_the_kernel_of_a_recurrent_layer(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: Any, switched_off: tuple[str, ...], native: bool
) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(name, "0" if name in switched_off else "1")
    assert _is_native(SimpleNamespace(ctx=SimpleNamespace(device_type=device), dtype=dtype)) is native


@pytest.mark.parametrize(
    ("attributes", "drops"),
    [({"p": "0.5", "num_layers": "2"}, True), ({"p": "0.0", "num_layers": "2"}, False),
        ({"p": "0.5", "num_layers": "1"}, False), ({"p": "0.5"}, False), ({"num_layers": "2"}, False)],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("name", "attributes", "training", "draws"),
    [
        ("Dropout", {"p": "0.3"}, True, True),
        ("Dropout", {}, True, True),
        ("Dropout", {"p": "0"}, True, False),
        ("Dropout", {"p": "0.3"}, False, False),
        ("Dropout", {"p": "0.3", "mode": "always"}, False, True),
        ("RNN", {"p": "0.3"}, True, True),
        ("RNN", {}, True, False),
        ("random_normal", {}, False, True),
    ],
)
def test_operators_that_draw_random_numbers(name: str, attributes: dict[str, str], training: bool, draws: bool) -> None:
    operation: Any = SimpleNamespace(name=name, attributes=attributes)
    with mx.autograd.record(train_mode=training):
        assert _draws_random_numbers(operation) is draws


def test_no_counter_of_names_moves() -> None:
    first = mx.gluon.HybridBlock().name
    _attributes_of_gluon.__wrapped__()
    second = mx.gluon.HybridBlock().name
    assert int(second.removeprefix("hybridblock")) - int(first.removeprefix("hybridblock")) == 1


HOT = np.array([[0.0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("rows", "first", "places"),
    [(HOT, 1, [1, 0]), (HOT * 2, 1, None), ([[0, 1, 0], [0, 0, 0]], 1, None), ([[0, 1, 0], [1, 1, 0]], 1, None),
        ([[0, 1, 0], [2, 0, 0]], 1, None), ([[0, 1, 0], [2, -1, 0]], 1, None)],
)  # fmt: skip
def test_the_ones_of_rows_of_which_each_has_one(rows: Any, first: int, places: list[int] | None, sparse: bool) -> None:
    found = _ones_of(mx.nd.array(rows).tostype("csr" if sparse else "default"), first)
    assert (None if found is None else found.tolist()) == places


def test_rows_whose_first_one_is_elsewhere_or_that_are_stored_by_rows_are_not_hot() -> None:
    assert _ones_of(mx.nd.array(HOT), 0) is None
    assert _ones_of(mx.nd.array(HOT), 3) is None
    assert _ones_of(mx.nd.array(HOT[None]), 1).tolist() == [1, 0]
    assert _ones_of(mx.nd.array(HOT).tostype("row_sparse"), 1) is None


@pytest.mark.parametrize(
    ("graph", "python", "dtype", "close"),
    [
        ([1.0, 2.0], [1.0, 2.0015], "float32", True),
        ([1.0, 2.0], [1.0, 2.003], "float32", False),
        ([1.0, 2.0], [1.0, 2.05], "float16", True),
        ([1.0, 2.0], [1.0, 2.2], "float16", False),
        ([1.0, 2.0], [1.0, 2.0 + 1e-8], "float64", True),
        ([1.0, 2.0], [1.0, 2.0 + 4e-8], "float64", False),
        ([1, 2], [1, 2], "int32", True),
        ([1, 2], [1, 3], "int32", False),
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], "float32", True),
        ([1.0, np.nan], [1.0, 2.0], "float32", False),
        ([np.nan, np.nan], [np.nan, np.nan], "float32", True),
        ([1.0, 1.0], [1.0], "float32", False),
    ],
)
def test_how_far_a_graph_may_be_from_its_python(graph: Any, python: Any, dtype: str, close: bool) -> None:
    assert _are_close(mx.nd.array(graph, dtype=dtype), mx.nd.array(python, dtype=dtype)) is close


@pytest.mark.parametrize(
    ("name", "attributes", "training", "is_wrong"),
    [
        ("LeakyReLU", {"act_type": "selu"}, True, True),
        ("LeakyReLU", {"act_type": "rrelu"}, True, False),
        ("LeakyReLU", {"act_type": "rrelu"}, False, True),
        ("LeakyReLU", {"act_type": "elu"}, False, False),
        ("Pooling", {}, True, False),
        ("Pooling", {}, False, True),
        ("Pooling", {"pool_type": "avg"}, False, False),
    ],
)
def test_recorded_operators_whose_gradient_is_wrong(
    name: str, attributes: dict[str, str], training: bool, is_wrong: bool
) -> None:
    guards, operation = Guards(), SimpleNamespace(name=name, attributes=attributes)
    with mx.autograd.record(train_mode=training):
        guards.record(operation)  # type: ignore[arg-type]
    guards.expect_right(["FullyConnected"], training=training)
    refusal = pytest.raises(embgrad.errors.UnsupportedError, match=f"is the operator '{name}'")
    with refusal if is_wrong else contextlib.nullcontext():
        guards.expect_right([name], training=training)


def graph_of(*names: str) -> Any:
    nodes = [SimpleNamespace(op="tanh", name=name, inputs=[]) for name in names]
    return SimpleNamespace(nodes=nodes, inputs=["data"])


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["enc_a_tanh0", "enc_b_tanh0"], {"enc": [0, 1], "enc_a": [0], "enc_b": [1]}),
        (["enc_a_tanh0", "enc_a_tanh1"], {"enc_a": [0, 1]}),
        (["ffn_1_tanh0", "ffn_2_tanh0"], {"ffn_1": [0], "ffn_2": [1]}),
        (["layer0_a_tanh0", "layer0_a_tanh1"], {"layer0": [0, 1], "layer0_a": [0, 1]}),
        (["enc_tanh0", "enc_a_tanh0"], {"enc": [0, 1], "enc_a": [1]}),
        (["tanh0"], {}),
    ],
)
def test_the_blocks_that_names_spell(names: list[str], paths: dict[str, list[int]]) -> None:
    assert {"_".join(path): members for path, members in _members(graph_of(*names)).items()} == paths


@pytest.mark.parametrize(
    ("names", "calls"),
    [("a", [[0]]), ("aab", [[0, 1, 2]]), ("abab", [[0, 1], [2, 3]]), ("abbabb", [[0, 1, 2], [3, 4, 5]]),
        ("aaa", [[0], [1], [2]])],
)  # fmt: skip
def test_a_name_that_occurs_once_in_each_call_divides_them(names: str, calls: list[list[int]]) -> None:
    assert _calls(graph_of(*names), range(len(names))) == calls
