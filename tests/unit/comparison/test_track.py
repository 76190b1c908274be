"""The track of two passes: the first point that differs, what lies before it, and the module and the weights there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.bisection_records import Suspect
from embgrad.comparison.recording import FINAL, HeldWeight, Recording, Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.track import Divergence, Track
from embgrad.comparison.weights import Match, Matching
from embgrad.errors import NoGradientError, ObjectiveError
from tests.unit.comparison.recorded import recording, tensor

X = np.random.default_rng(0).normal(size=(2, 4, 3))

#: A lookup, two layers of which the first has a module inside it, a norm, and the output.
KEYS: Mapping[str, tuple[str, ...]] = {
    "table": ("word",),
    "layers.0:input#0": (),
    "layers.0.up:output#0": (),
    "layers.0:output#0": ("layer.0",),
    "layers.1:output#0": ("layer.1", "layer.-1"),
    "norm:output#0": (),
    FINAL: (),
}
NAMES = ["word", "layers.0:input", "layers.0.up:output", "layer.0", "layer.1", "norm:output", FINAL]


def side(changes: Mapping[str, np.ndarray] | None = None, **further: Any) -> Recording:
    """Return a recording in which each point holds other values, of which some are changed."""
    tensors = [
        tensor(key, (changes or {}).get(key, X + number), float(number), roles)
        for number, (key, roles) in enumerate(KEYS.items())
    ]
    tensors = [replace(each, gradient=each.values) for each in tensors]
    return recording(tensors, **further)


PAIRS = [Pair(name, key, key, time=float(number)) for number, (key, name) in enumerate(zip(KEYS, NAMES, strict=True))]


def track(
    off: Mapping[str, float] | None = None,
    gradients: Mapping[str, float | None] | None = None,
    *,
    sides: tuple[Recording, Recording] | None = None,
    tolerance: float | None = 0.1,
    sites: Sequence[str] = (),
    behind: Sequence[str] = (),
    matching: Matching | None = None,
    is_apart: bool = False,
    pairs: Sequence[Pair] = PAIRS,
) -> Track:
    points = tuple(
        SimpleNamespace(
            name=pair.name,
            values=(off or {}).get(pair.name, 0.0),
            gradient=(gradients or {}).get(pair.name, 0.0),
            floor=2e-3 if pair.a == FINAL else 1e-3,
        )
        for pair in pairs
    )
    inspection: Any = SimpleNamespace(
        sides=sides or (side(), side()),
        examined=SimpleNamespace(pairs=list(pairs), sites=[], differing=frozenset(sites)),
        points=points,
        behind=list(behind),
        is_apart=is_apart,
        limit=lambda point: 100 * point.floor,
        roundoff=1e-8,
        matching=matching or Matching((), {}, (), ()),
    )
    return Track(inspection, tolerance)


def test_points_are_named_by_their_roles_and_by_their_keys() -> None:
    assert track().names == [*NAMES, "objective"]
    parts = [*PAIRS[:2], replace(PAIRS[2], name="up[0:2]", features_a=np.arange(2)), *PAIRS[3:]]
    assert track(pairs=parts).names[2] == "up[0:2]"
    other = side()
    plain = {**other.tensors, "table": replace(other.tensors["table"], roles=())}
    assert track(sides=(side(), replace(other, tensors=plain))).names[0] == "table"


@pytest.mark.parametrize(
    ("off", "first"),
    [({}, None), ({"layer.1": 0.1}, None), ({"layer.1": 0.11}, Divergence(4, 3, True)),
        ({"layer.1": 0.5, "word": 0.2}, Divergence(0, None, True)), ({FINAL: 0.5}, Divergence(6, 5, True))],
)  # fmt: skip
def test_the_first_value_beyond_the_tolerance(off: Mapping[str, float], first: Divergence | None) -> None:
    assert track(off).first() == first


def test_without_a_tolerance_the_sites_decide_or_rounding_errors() -> None:
    assert track({"word": 5.0}, tolerance=None, sites=["layer.0"]).first() == Divergence(3, 2, True)
    assert track({"word": 5.0}, tolerance=None).first() is None
    assert track({"norm:output": 0.11, "word": 0.1}, tolerance=None, is_apart=True).first() == Divergence(5, 4, True)
    assert track({"word": 5.0}, tolerance=None, is_apart=True, sites=["norm:output"]).first() == Divergence(5, 4, True)


@pytest.mark.parametrize(
    ("gradients", "first"),
    [
        ({"layer.0": 0.11, "word": 0.5}, Divergence(3, 4, False)),
        ({"layer.0": 0.11, "layer.1": None, "norm:output": None}, Divergence(3, 6, False)),
        ({"layer.0": 0.11, "layer.1": None, "norm:output": None, FINAL: None}, Divergence(3, 7, False)),
        ({"layer.0": 0.1}, None),
    ],
)
def test_the_first_gradient_on_the_way_back(gradients: Mapping[str, float | None], first: Divergence | None) -> None:
    assert track({}, gradients).first() == first


def test_without_a_tolerance_the_led_gradients_decide() -> None:
    assert track({}, {"word": 9.0}, tolerance=None, behind=["layer.0", "word"]).first() == Divergence(3, 4, False)
    assert track({}, {"word": 9.0}, tolerance=None).first() is None


def test_gradients_of_one_model_alone_differ_at_the_last_point_before_the_output() -> None:
    failed = replace(side(), failure=NoGradientError("none"))
    assert track(sides=(side(), failed)).first() == Divergence(5, 6, False)
    assert track(sides=(failed, failed)).first() is None


def objectives(first: np.ndarray | None, second: np.ndarray | None, size: float = 0.0, **further: Any) -> Track:
    return track(sides=(side(objective=first, size=size), side(objective=second)), **further)


def test_the_objective_is_the_last_point() -> None:
    one, two = np.array([3.0, 4.0]), np.array([3.0, 4.6])
    assert objectives(one, two).objective() == pytest.approx(0.12)
    assert objectives(one, two).first() == Divergence(7, 6, True)
    assert objectives(one, np.array([3.0, 4.5])).first() is None
    assert objectives(one, two, tolerance=None).first() is None  # its limit is the output's, which is 0.2
    assert objectives(one, one).objective() == 0
    assert objectives(one, two, size=17.0).objective() == pytest.approx(0.6 / (17 / 2**0.5))
    assert (
        objectives(one, two[:1]).objective()
        is objectives(None, two).objective()
        is objectives(one, None).objective()
        is None
    )
    zeros = np.zeros(2)
    assert (objectives(zeros, zeros).objective(), objectives(zeros, one).objective()) == (0, float("inf"))
    wrong = replace(side(), failure=ObjectiveError("does not fit"))
    assert track(sides=(side(), wrong)).first() == Divergence(7, 6, True)


def test_steps_have_the_figures_of_all_points() -> None:
    at = track(
        {"word": 0.2, "layer.0": 0.05}, {"layer.1": 0.2, "norm:output": None}, sides=(side(objective=np.ones(2)),) * 2
    )
    steps = at.steps(None)
    assert [step.name for step in steps] == [*NAMES, "objective"]
    assert [step.agrees for step in steps] == [False, True, True, True, False, True, True, True]
    assert (steps[3].forward, steps[4].backward, steps[5].backward, steps[7].backward) == (0.05, 0.2, None, None)
    chosen = at.steps(Divergence(3, 2, True))
    assert [step.agrees for step in chosen] == [False, True, True, False, False, True, True, True]
    assert not at.steps(Divergence(7, 6, True))[7].agrees
    rounding = track({}, {"layer.0": 1.1e-5, "layer.1": 0.9e-5}, tolerance=None).steps(None)
    assert [step.name for step in rounding if not step.agrees] == ["layer.0"]
    assert len(rounding) == len(NAMES)


def test_a_point_that_no_gradient_reaches_does_not_agree() -> None:
    first, second = side(objective=np.ones(2)), side(objective=np.ones(2))
    cut = {**second.tensors, "layers.0:output#0": replace(second.tensors["layers.0:output#0"], gradient=None)}
    at = track({}, {"layer.0": None}, sides=(first, replace(second, tensors=cut)))
    assert [step.name for step in at.steps(None) if not step.agrees] == ["layer.0"]
    assert at.first() == Divergence(3, 4, False)


def test_a_role_is_that_of_the_next_point_with_one() -> None:
    at = track()
    assert [at.role(number, forward=True) for number in range(8)] == [
        "word",
        "layer.0",
        "layer.0",
        "layer.0",
        "layer.1",
        "norm:output",
        FINAL,
        "objective",
    ]
    assert [at.role(number, forward=False) for number in (2, 5, 6)] == ["word", "layer.1", "layer.1"]


def test_the_last_role_before_a_divergence() -> None:
    at = track()
    assert at.after(Divergence(0, None, True)) is None
    assert at.after(Divergence(3, 2, True)) == "word"
    assert at.after(Divergence(5, 4, True)) == "layer.1"
    assert at.after(Divergence(7, 6, True)) == FINAL
    assert at.after(Divergence(0, 1, False)) == "layer.0"
    assert at.after(Divergence(4, 5, False)) == "objective"
    assert at.after(Divergence(5, 6, False)) == FINAL
    without = side()
    table = replace(without.tensors["table"], roles=())
    at = track(sides=(replace(without, tensors={**without.tensors, "table": table}), side()), pairs=PAIRS[:5])
    assert at.after(Divergence(3, 2, True)) == "layers.0.up:output"


def test_the_first_point_at_or_after_a_tensor() -> None:
    at = track()
    tensors = at.a.tensors
    assert at.at_or_after("a", tensors["layers.0:output#0"]) == 3
    assert at.at_or_after("b", replace(tensors["layers.0:output#0"], time=3.5)) == 4
    assert at.at_or_after("a", replace(tensors["table"], time=float("inf"))) == 6


def weight(name: str, values: np.ndarray) -> HeldWeight:
    return HeldWeight(name, name.rpartition(".")[0], values.shape, lambda: values)


ONE, TWO = np.ones((2, 2)), np.full((2, 2), 2.0)


def suspects(
    divergence: Divergence,
    matches: Sequence[Match],
    *,
    a: Sequence[HeldWeight] = (),
    b: Sequence[HeldWeight] = (),
    alone_b: Sequence[str] = (),
    labels: tuple[str, str] = ("a model", "another"),
) -> list[tuple[str | None, str | None, str]]:
    sides = tuple(replace(side(), weights=tuple(held), label=label) for held, label in zip((a, b), labels, strict=True))
    at = track(sides=sides, matching=Matching(tuple(matches), {}, (), tuple(alone_b)))  # type: ignore[arg-type]
    return [(suspect.a, suspect.b, suspect.relation) for suspect in at.suspects(divergence)]


UP, NORM, LOST = weight("layers.0.up.W", ONE), weight("norm.W", ONE), weight("lost.W", TWO)
PARTNERS = [Match("layers.0.up.W", "layers.0.up.W", 0.5, relation="different"), Match("norm.W", "norm.W", 0.0)]


def test_suspects_are_the_weights_of_the_stretch_that_differs() -> None:
    a, b = [UP, NORM], [weight("layers.0.up.W", TWO), weight("norm.W", ONE), weight("norm.b", ONE)]
    up, norm = ("layers.0.up.W", "layers.0.up.W", "different"), ("norm.W", "norm.W", "equal")
    assert suspects(Divergence(2, 1, True), PARTNERS, a=a, b=b) == [up]
    assert suspects(Divergence(2, 2, True), PARTNERS, a=a, b=b) == []
    assert suspects(Divergence(5, 4, True), PARTNERS, a=a, b=b) == [norm]
    assert suspects(Divergence(5, None, True), PARTNERS, a=a, b=b) == [up, norm]
    assert suspects(Divergence(1, 5, False), PARTNERS, a=a, b=b) == [up, norm]
    alone = suspects(Divergence(5, 4, True), PARTNERS, a=a, b=b, alone_b=["norm.b"])
    assert alone == [(None, "norm.b", "only in b"), norm]
    assert suspects(Divergence(6, 5, True), PARTNERS, a=[LOST], b=b) == [("lost.W", None, "only in a")]


def test_a_table_is_the_suspect_of_its_lookup() -> None:
    table = weight("table.W", ONE)
    match = Match("table.W", "table.W", 0.5, relation="different")
    assert suspects(Divergence(0, None, True), [match], a=[table, UP], b=[weight("table.W", TWO)]) == [
        ("table.W", "table.W", "different")
    ]


def test_relations_of_weights_name_what_b_holds() -> None:
    a, twin = [UP, NORM], weight("layers.0.up.W", ONE)
    at = Divergence(2, 1, True)
    off = Match("layers.0.up.W", "layers.0.up.W", 3.9e-8)
    assert suspects(at, [off], a=a, b=[weight("layers.0.up.W", TWO)])[0][2] == "equal"
    assert suspects(at, [replace(off, distance=4.1e-8)], a=a, b=[weight("layers.0.up.W", TWO)])[0][2] == "different"
    other = [UP, weight("norm.W", TWO)]
    held = suspects(at, [replace(off, distance=0.5, relation="different")], a=other, b=[weight("layers.0.up.W", TWO)])
    assert held[0][2] == "equal to norm.W"
    turned = Match("layers.0.up.W", "layers.0.up.W", 0.0, transposed=True)
    assert suspects(at, [turned], a=[UP], b=[twin], labels=("one", "one"))[0][2] == "transposed"
    assert suspects(at, [turned], a=[UP], b=[twin])[0][2] == "equal"
    swapped = [Match("layers.0.up.W", "norm.W", 0.0), Match("norm.W", "layers.0.up.W", 0.0)]
    found = suspects(at, swapped, a=a, b=[twin, NORM], labels=("one", "one"))
    assert found == [("layers.0.up.W", "norm.W", "swapped with norm.W")]
    assert suspects(at, swapped, a=a, b=[twin, NORM])[0][2] == "equal"


def moduled(
    divergence: Divergence,
    a: Sequence[Tensor] = (),
    differing: Sequence[Suspect] = (),
    b: Sequence[Tensor] = (),
    **further: Any,
) -> str | None:
    sides = list[Recording]()
    for added in (a, b):
        tensors = {**side().tensors, **{each.key: each for each in added}}
        tensors = dict(sorted(tensors.items(), key=lambda entry: entry[1].time))
        sides.append(replace(side(), tensors=tensors))
    at = track(sides=(replace(sides[0], weights=(UP, NORM)), sides[1]), **further)
    return at.module(divergence, differing)


def test_the_module_of_a_divergence() -> None:
    different = Suspect("layers.0.up.W", "x", "different", 0.5)
    assert moduled(Divergence(4, 1, True), differing=[different]) == "layers.0.up"
    both = [different, Suspect("norm.W", "x", "different", 0.5)]
    assert moduled(Divergence(5, 1, True), differing=both) == "norm"
    assert moduled(Divergence(4, 1, True), differing=[different, Suspect(None, "y", "only in b", 1.0)]) == "layers.1"
    within = [
        tensor("layers.1.act:input#0", X + 3, 3.25),
        tensor("layers.1.act:output#0", X + 4, 3.5),
        tensor("layers.1.next:input#0", X + 4, 3.75),  # of what the module returned
    ]
    assert moduled(Divergence(4, 3, True), within, tolerance=0.0) == "layers.1.act"
    assert moduled(Divergence(4, 3, True), [replace(within[0], values=X), *within[1:]]) == "layers.1"
    assert moduled(Divergence(4, 3, True), within[1:]) == "layers.1"
    before = [tensor("early:input#0", X + 9, 0.25), tensor("early:output#0", X + 4, 0.5)]
    assert moduled(Divergence(4, 3, True), before) == "layers.1"
    equal = replace(within[0], values=X)
    assert moduled(Divergence(4, 3, True), [equal, *within[1:]], b=[equal], tolerance=0.0) == "layers.1.act"
    assert moduled(Divergence(7, 6, True)) is None
    assert moduled(Divergence(3, 2, True)) == "layers.0"
    assert moduled(Divergence(1, 0, True)) is None  # no module contains both the table and the layer
    assert moduled(Divergence(2, 3, False)) == "layers.0"  # of the layer's role, on the way back
    assert moduled(Divergence(5, 6, False)) is None
