"""Gradients of ports are compared where an objective is passed, from modules' outputs back to the ids' rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.comparison.ported import (
    BATCH,
    DIM,
    EVERY,
    OBJECTIVE,
    PORT,
    VOCAB,
    checked,
    found,
    model,
    normalised,
)


def test_gradients_are_compared_with_an_objective() -> None:
    report = checked(model(**PORT), objective=OBJECTIVE)
    assert report.agrees
    points = {point.name: point for point in report.points}
    for name in ("table.W", "layers.1.norm", "layers.2.mix", "layers.0"):
        gradient = points[name].gradient
        assert gradient is not None
        assert gradient < 1e-13
    assert points["layers.2.mix:input"].gradient is None  # there only the module's own use counts
    assert points["output"].gradient is None
    assert all(point.local_gradient is None for point in report.points)


def test_a_fault_of_the_values_is_found_with_an_objective_as_well() -> None:
    report = checked(model(epsilon=1e-4, **PORT), objective=OBJECTIVE)
    assert found(report) == [("layer-norm-epsilon", f"epsilon 0.01 in a and 0.0001 in b, {EVERY}")]
    points = {point.name: point for point in report.points}
    assert points["table.W"].gradient is not None
    assert points["table.W"].gradient > 1e-4


def backward(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    return lambda y: Tensor(y.value, [(y, change)])


def note(name: str) -> str:
    return (
        f"all values agree, and the gradient differs first at {name!r} on the way back from the objective: check for a custom "
        "backward pass or a detached tensor"
    )


def test_a_wrong_gradient_is_found_behind_which_module_it_arises() -> None:
    report = checked(model(at={"layers.1.mix": backward(lambda g: 2 * g)}, **PORT), objective=OBJECTIVE)
    assert not report.agrees
    assert report.first == "layers.1.up"  # in front of which the pullback of the module goes
    assert report.notes == (note("layers.1.up"),)
    assert (report.causes, report.unexplained) == ((), ("layers.1.up",))
    points = {point.name: point for point in report.points}
    assert [point.name for point in report.points if not point.agrees] == ["layers.1.up"]
    assert points["layers.1.up"].local_gradient == pytest.approx(1)
    local = points["layers.0.up"].local_gradient
    assert local is not None
    assert local < 1e-12
    assert points["table.W"].gradient is not None
    assert points["table.W"].gradient > 1e-2


def test_each_wrong_gradient_is_found_the_last_first() -> None:
    wrong = {f"layers.{number}.mix": backward(lambda g: -g) for number in (0, 2)}
    report = checked(model(at=wrong), objective=OBJECTIVE)
    assert report.unexplained == ("layers.2.up", "layers.0.up")


@pytest.mark.parametrize("factor", [1 + 1e-7, 1 + 1e-3])
def test_small_errors_of_a_gradient_are_rounding(factor: float) -> None:
    port = model(at={"layers.1.mix": backward(lambda g: factor * g)})
    assert checked(port, objective=OBJECTIVE).agrees is (factor < 1 + 1e-5)
    assert checked(port, objective=OBJECTIVE, floor="bfloat16").agrees


@pytest.mark.parametrize(
    ("path", "first"), [("head", "layers.2"), ("layers.1.down", "layers.0")], ids=["everywhere", "in a layer"]
)
def test_a_detached_tensor_is_found(path: str, first: str) -> None:
    port = model(at={path: Tensor.detach})
    report = checked(port, objective=OBJECTIVE)
    assert (report.agrees, report.first, report.notes) == (False, first, (note(first),))
    if path == "head":
        assert report.unexplained == ("layers.2", "layers.1", "layers.0", "table.W")
    back = embgrad.check_port(port, model(), BATCH, OBJECTIVE)
    assert (back.agrees, back.first) == (False, first)
    assert checked(port).agrees  # the values do


@pytest.mark.parametrize("fused", [(False, True), (True, False)], ids=["fused in b", "fused in a"])
def test_fused_projections_have_the_same_gradients(fused: tuple[bool, bool]) -> None:
    random = np.random.default_rng(0)
    table, q, k, last = (random.normal(size=shape) for shape in ((VOCAB, DIM), (DIM, 6), (DIM, 6), (6, 5)))

    def side(is_fused: bool) -> ReferenceModel:
        def forward(m: ReferenceModel, input_ids: np.ndarray) -> Any:
            x = m.module("norm", lambda ids: normalised(lookup(m["table.W"], ids), m["norm.W"], 1e-2), input_ids)
            if is_fused:
                both = m.module("qk", lambda x: x @ m["qk.W"], x)
                first, second = both[..., 0:6], both[..., 6:12]
            else:
                first, second = (m.module(name, lambda x, name=name: x @ m[f"{name}.W"], x) for name in ("q", "k"))
            return m.module("last", lambda x: x @ m["last.W"], first.tanh() * second)

        held = {"table.W": table, "norm.W": 1 + 0.1 * q[:, 0], "last.W": last}
        held |= {"qk.W": np.concatenate([q, k], 1)} if is_fused else {"q.W": q, "k.W": k}
        return ReferenceModel(forward, held, [*("norm", "last"), *(["qk"] if is_fused else ["q", "k"])])

    report = embgrad.check_port(*map(side, fused), BATCH, OBJECTIVE)
    assert report.agrees
    assert report.notes == ()
    assert len([point for point in report.points if point.gradient is not None]) >= 4


def test_gradients_of_two_dumps_are_compared(tmp_path: Path) -> None:
    sides = {"a": model(), "same": model(**PORT), "wrong": model(at={"layers.1.mix": backward(lambda g: 2 * g)})}
    for name, side in sides.items():
        embgrad.dump(side, BATCH, tmp_path / name, OBJECTIVE)
    assert embgrad.check_port(tmp_path / "a", tmp_path / "same", objective=OBJECTIVE).agrees
    report = embgrad.check_port(tmp_path / "a", tmp_path / "wrong", objective=OBJECTIVE)
    assert (report.agrees, report.first) == (False, "layers.1.up")
    assert report.unexplained == ("layers.1.up",)
    assert note("layers.1.up") in report.notes


def test_an_objective_that_cannot_be_computed_is_noted() -> None:
    report = checked(model(**PORT), objective=embgrad.Logit(9))
    assert report.agrees
    assert [note[:3] for note in report.notes] == ["a: ", "b: "]
    assert all(point.gradient is None for point in report.points)
