"""The sites at which two models differ are found in one pass that is led, with the tensors before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.examine import (
    Examination,
    _layer_before,
    as_stored,
    examine,
    examine_gradients,
    gradient_limit,
    layers_of,
    permuted_before,
)
from embgrad.comparison.floor import LEAST_FLOOR, ROUNDOFFS
from embgrad.comparison.hypotheses.functions import ACTIVATIONS
from embgrad.comparison.hypotheses.site import Explanation
from embgrad.comparison.inspection import explain_sites, faint_sites
from embgrad.comparison.recording import FINAL
from embgrad.comparison.settings import Declared
from embgrad.comparison.sites import Pair
from embgrad.comparison.weights import Matching, match_weights
from tests.unit.comparison.recorded import REAL, Pass, Steps, recording, tensor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 6))
Y = RANDOM.normal(size=(2, 4, 6))
W, V = RANDOM.normal(size=(2, 6, 6))
UNIT = ROUNDOFFS["float64"]
NOTHING = Matching((), {}, (), ())

STEPS: Steps = {
    "table": lambda at: X,
    "one:input#0": lambda at: at["table"],
    "one:output#0": lambda at: at["one:input#0"] @ W.T,
    "two:input#0": lambda at: np.tanh(at["one:output#0"]),
    "two:output#0": lambda at: at["two:input#0"] @ V.T,
    FINAL: lambda at: at["two:output#0"] + at["table"],
}
WEIGHTS = {"one.W": W, "two.W": V}
NAMES = {"table": "table", "one:input#0": "one:input", "one:output#0": "one", "two:input#0": "two:input"}
NAMES |= {"two:output#0": "two", FINAL: FINAL}
PAIRS = [Pair(name, key, key, time=float(number)) for number, (key, name) in enumerate(NAMES.items())]


def examined(
    port: Steps,
    pairs: list[Pair] = PAIRS,
    *,
    roundoff: float = UNIT,
    reference: Steps = STEPS,
    can_be_led: tuple[bool, bool] = (True, True),
    **further: Any,
) -> Examination:
    a = Pass(reference, can_be_led=can_be_led[0]).record(WEIGHTS, **further)
    b = Pass(port, can_be_led=can_be_led[1]).record(WEIGHTS, **further)
    return examine(pairs, (a, b), match_weights(a.weights, b.weights), roundoff)


def names(found: Examination) -> list[str]:
    return [site.name for site in found.sites]


def test_equal_models_have_no_sites() -> None:
    found = examined(STEPS)
    assert names(found) == []
    assert found.random == frozenset()
    assert list(found.pairs) == PAIRS
    assert found.led.follower == "b"


def test_each_faulty_step_is_a_site_and_those_behind_it_are_not() -> None:
    port: Steps = {
        **STEPS,
        "one:output#0": lambda at: at["one:input#0"] @ W.T * 1.5,
        FINAL: lambda at: at["two:output#0"] - at["table"],
    }
    found = examined(port)
    assert names(found) == ["one", FINAL]
    first, last = found.sites
    np.testing.assert_allclose(first.a, X @ W.T)
    np.testing.assert_allclose(first.b, 1.5 * first.a)
    assert first.difference == pytest.approx(0.5)
    np.testing.assert_allclose(last.b, np.tanh(X @ W.T) @ V.T - X)
    assert first.floor == pytest.approx(LEAST_FLOOR * UNIT, rel=1)
    np.testing.assert_array_equal(first.real, REAL)


@pytest.mark.parametrize("can_be_led", [(False, True), (True, False)])
def test_what_a_later_step_makes_up_for_is_no_site(can_be_led: tuple[bool, bool]) -> None:
    port: Steps = {
        **STEPS,
        "one:input#0": lambda at: at["table"] * 0.5,
        "one:output#0": lambda at: at["one:input#0"] @ W.T * 2,
    }
    found = examined(port, can_be_led=can_be_led)
    assert (names(found), found.compensated) == ([], ("one:input",))
    assert [pair.name for pair in found.pairs] == ["table", "one", "two:input", "two", FINAL]
    faulty = {**port, "two:output#0": lambda at: at["two:input#0"] @ V.T * 1.01}
    found = examined(faulty, can_be_led=can_be_led)
    assert (names(found), found.compensated) == (["two"], ("one:input",))


def test_an_activation_that_a_module_applies_itself_is_nothing_that_a_later_step_makes_up_for() -> None:
    port: Steps = {
        **STEPS,
        "one:output#0": lambda at: np.tanh(at["one:input#0"] @ W.T),
        "two:input#0": lambda at: at["one:output#0"],
    }
    found = examined(port)
    assert (names(found), found.compensated) == ([], ())


@pytest.mark.parametrize(("change", "differs"), [(1e-17, False), (1e-13, True)])
def test_a_site_differs_beyond_a_number_of_floors(change: float, differs: bool) -> None:
    port: Steps = {**STEPS, "two:output#0": lambda at: at["two:input#0"] @ V.T * (1 + change)}
    assert bool(names(examined(port))) is differs
    coarse = {**STEPS, "two:output#0": lambda at: at["two:input#0"] @ V.T * 1.01}
    assert names(examined(coarse)) == ["two"]
    assert names(examined(coarse, roundoff=ROUNDOFFS["bfloat16"])) == []


def test_the_tensors_before_a_site_are_those_of_the_reference_the_nearest_first() -> None:
    port: Steps = {**STEPS, "one:output#0": lambda at: 5 * at["one:input#0"], "two:output#0": lambda at: at["table"]}
    one, two = examined(port).sites
    assert [before.name for before in one.before] == ["one:input", "table"]
    assert [before.name for before in two.before] == ["two:input", "one", "one:input", "table"]
    np.testing.assert_allclose(two.before[1].values, X @ W.T)  # not what the port computes
    assert all(before.shared for before in two.before)


def test_tensors_of_the_reference_alone_are_before_a_site_as_well() -> None:
    pairs = [pair for pair in PAIRS if pair.name in {"one:input", "two", FINAL}]
    port: Steps = {**STEPS, "two:output#0": lambda at: at["two:input#0"]}
    (site,) = examined(port, pairs).sites
    assert {before.name: before.shared for before in site.before} == {
        "two:input": False,
        "one": False,
        "one:input": True,
        "table": True,  # a lookup depends on the batch alone
    }


def test_a_tensor_of_which_parts_are_paired_is_before_a_site_as_a_whole() -> None:
    part = Pair("one[0:3]", "one:output#0", "one:output#0", np.arange(3), np.arange(3), time=2.0)
    pairs = [part if pair.name == "one" else pair for pair in PAIRS if pair.name != "two:input"]
    port: Steps = {**STEPS, "two:output#0": lambda at: at["two:input#0"]}
    (site,) = examined(port, pairs).sites
    assert {before.name: before.values.shape[-1] for before in site.before if "one" in before.name} == {
        "one[0:3]": 3,
        "one": 6,
        "one:input": 6,
    }


#: The last product as two terms, each of some features of its input.
RANKS: Steps = {
    **{key: step for key, step in STEPS.items() if not key.startswith("two") and key != FINAL},
    "two.0:input#0": lambda at: np.tanh(at["one:output#0"])[..., :2],
    "two.0:output#0": lambda at: at["two.0:input#0"] @ V[:, :2].T,
    "two.1:input#0": lambda at: np.tanh(at["one:output#0"])[..., 2:],
    "two.1:output#0": lambda at: at["two.1:input#0"] @ V[:, 2:].T,
    FINAL: lambda at: at["two.0:output#0"] + at["two.1:output#0"] + at["table"],
}
IN_PARTS = [
    *PAIRS[:3],
    Pair("two:input[0:2]", "two:input#0", "two.0:input#0", np.arange(2), time=3.0),
    Pair("two:input[2:6]", "two:input#0", "two.1:input#0", np.arange(2, 6), time=3.0),
    PAIRS[-1],
]


@pytest.mark.parametrize("can_be_led", [(True, True), (True, False)])
def test_an_input_that_the_port_holds_in_parts_is_one_site(can_be_led: tuple[bool, bool]) -> None:
    faulty: Steps = {**RANKS, "two.1:input#0": lambda at: 2 * np.tanh(at["one:output#0"])[..., 2:]}
    (site,) = (found := examined(faulty, IN_PARTS, can_be_led=can_be_led)).sites
    assert site.name == "two:input"
    assert found.differing == {"two:input", "two:input[0:2]", "two:input[2:6]"}
    np.testing.assert_allclose(site.a, np.tanh(X @ W.T))
    np.testing.assert_allclose(site.b, site.a * [1, 1, 2, 2, 2, 2])
    assert site.before[0].name == "one"
    assert not examined(RANKS, IN_PARTS, can_be_led=can_be_led).sites
    assert not examined(RANKS, IN_PARTS, can_be_led=can_be_led).differing


def test_one_part_of_an_input_is_a_site_by_itself() -> None:
    faulty: Steps = {**RANKS, "two.1:input#0": lambda at: 2 * np.tanh(at["one:output#0"])[..., 2:]}
    pairs = [pair for pair in IN_PARTS if pair.name != "two:input[0:2]"]
    assert names(examined(faulty, pairs)) == ["two:input[2:6]"]


def test_what_equals_the_output_is_not_before_it() -> None:
    reference: Steps = {**STEPS, "two:output#0": lambda at: at["two:input#0"]}
    pairs = [pair for pair in PAIRS if pair.name in {"one", "two"}]
    (site,) = examined({**STEPS, "two:output#0": lambda at: at["one:output#0"]}, pairs, reference=reference).sites
    assert [before.name for before in site.before] == ["one", "table"]


def test_the_reference_is_led_where_the_port_cannot_be() -> None:
    port: Steps = {**STEPS, "one:output#0": lambda at: at["one:input#0"] @ W.T * 1.5}
    found = examined(port, can_be_led=(True, False))
    assert found.led.follower == "a"
    assert names(found) == ["one"]
    np.testing.assert_allclose(found.sites[0].a, X @ W.T)
    np.testing.assert_allclose(found.sites[0].b, X @ W.T * 1.5)
    two: Steps = {**port, "two:output#0": lambda at: at["table"]}
    site = examined(two, can_be_led=(True, False)).sites[1]
    assert [before.name for before in site.before] == ["two:input", "one", "one:input", "table"]
    np.testing.assert_allclose(site.before[1].values, X @ W.T * 1.5)  # what the port computes
    np.testing.assert_allclose(site.a, np.tanh(X @ W.T * 1.5) @ V.T)


def test_tensors_of_a_reference_that_is_led_are_those_that_it_computes_from_the_port() -> None:
    port: Steps = {**STEPS, "one:output#0": lambda at: at["one:input#0"] @ W.T * 1.5, FINAL: lambda at: at["table"]}
    pairs = [pair for pair in PAIRS if pair.name not in ("two:input", "two")]
    site = examined(port, pairs, can_be_led=(True, False)).sites[-1]
    between = {before.name: before.values for before in site.before if not before.shared}
    assert between.keys() == {"two:input", "two"}
    np.testing.assert_allclose(between["two"], np.tanh(X @ W.T * 1.5) @ V.T)


def test_pairs_that_do_not_hold_the_same_tensor_are_repaired() -> None:
    apart: Steps = {
        "up:output#0": lambda at: X,
        "act:output#0": lambda at: np.tanh(at["up:output#0"]),
        "down:output#0": lambda at: at["act:output#0"] @ W.T,
        FINAL: lambda at: at["down:output#0"] + 1,
    }
    inside: Steps = {
        "up:output#0": lambda at: np.tanh(X),
        "down:output#0": lambda at: at["up:output#0"] @ W.T,
        FINAL: lambda at: at["down:output#0"] + 1,
    }
    pairs = [Pair(key, key, key, time=float(number)) for number, key in ((0, "up:output#0"), (2, "down:output#0"))]
    pairs.append(Pair(FINAL, FINAL, FINAL, time=float("inf")))
    for can_be_led in ((True, True), (True, False)):
        found = examined(inside, pairs, reference=apart, can_be_led=can_be_led)
        assert names(found) == []
        assert "up:output#0" not in [pair.a for pair in found.pairs]


def test_a_port_that_draws_random_numbers_is_named() -> None:
    random = np.random.default_rng(1)
    port: Steps = {**STEPS, "two:input#0": lambda at: np.tanh(at["one:output#0"]) * (random.random(X.shape) < 0.9)}
    found = examined(port)
    assert names(found) == ["two:input"]
    assert found.random == {"two:input"}
    ((site, explanation),) = explain_sites(found)
    assert explanation is not None
    assert (site.name, explanation.cause) == ("two:input", "dropout")
    assert explanation.text == "b draws random numbers in evaluation mode, for example by dropout that was left on"
    assert explanation.compute is None


def test_a_sensitive_step_is_not_random() -> None:
    def less(at: Any) -> np.ndarray:
        return np.asarray((1 + at["one:output#0"] * 1e-3) - 1)

    steps: Steps = {**STEPS, "two:input#0": less}
    found = examined(steps, reference=steps)
    assert names(found) == []
    assert found.random == frozenset()


def test_sites_are_explained_by_the_hypotheses() -> None:
    port: Steps = {**STEPS, "two:input#0": lambda at: np.maximum(at["one:output#0"], 0), "two:output#0": lambda at: Y}
    found = examined(port)
    explained = explain_sites(found)
    texts = [(site.name, held and held.text) for site, held in explained]
    assert texts == [("two:input", "the activation is tanh in a and ReLU in b"), ("two", None)]
    assert found.sites[1].memory["explained"] == explained  # for hypotheses about terms that another site has


def test_settings_are_handed_to_the_sites() -> None:
    settings = {"epsilon": Declared(1e-5, "eps")}
    port: Steps = {**STEPS, "two:output#0": lambda at: Y}
    (site,) = examined(port, settings=settings).sites
    assert site.settings == ({"epsilon": 1e-5}, {"epsilon": 1e-5})
    assert site.declared("epsilon") == site.declared("epsilon", of_a=False) == 1e-5


@pytest.mark.parametrize("name", ["mask", "decoder_attention_mask"])
def test_tensors_with_positions_of_their_own_count_where_their_mask_is(name: str) -> None:
    own = np.array([[1, 1, 0], [1, 1, 1]])
    batch = TokenBatch(np.ones((2, 4), int), [[1, 1, 1, 1], [1, 1, 1, 0]], extras={name: own, "other": own * 0})
    steps: Steps = {"memory": lambda at: X[:, :3]}
    port: Steps = {"memory": lambda at: X[:, :3] + 1}
    for extras, wanted in ((batch.extras, own.astype(bool)), ({"other": own}, np.ones((2, 3), bool))):
        (site,) = examined(
            port,
            [Pair("memory", "memory", "memory")],
            reference=steps,
            batch=TokenBatch(batch.ids, batch.mask, extras=extras),
        ).sites
        np.testing.assert_array_equal(site.real, wanted)


def test_a_faint_difference_with_a_cause_that_was_found_elsewhere_is_a_site() -> None:
    tanh, exact = (next(held.apply for held in ACTIVATIONS if name in held.name) for name in ("tanh app", "error f"))

    def model(activation: Callable[[np.ndarray], np.ndarray]) -> Steps:
        return {
            "table": lambda at: X,
            "one:output#0": lambda at: activation(at["table"]),
            "small:output#0": lambda at: at["one:output#0"] / 5,
            "two:input#0": lambda at: activation(at["small:output#0"]),
            FINAL: lambda at: at["two:input#0"] * 2,
        }

    pairs = [pair for pair in PAIRS if pair.a in model(tanh)]
    a, b = Pass(model(tanh)).record(), Pass(model(exact)).record()
    clear, faint = (site.difference for site in examine(pairs, (a, b), NOTHING, UNIT).sites)
    roundoff = (clear * faint) ** 0.5 / 8 / LEAST_FLOOR
    assert 0.75 * LEAST_FLOOR * roundoff < faint < 8 * LEAST_FLOOR * roundoff < clear
    found = examine(pairs, (a, b), NOTHING, roundoff)
    assert names(found) == ["one"]
    ((_, explanation),) = explain_sites(found)
    assert explanation is not None
    ((site, other),) = faint_sites(found, (a, b), NOTHING, [explanation])
    assert (site.name, other.text) == ("two:input", explanation.text)
    assert faint_sites(found, (a, b), NOTHING, []) == []


def test_a_pair_in_another_order_shortly_before_an_unexplained_site_is_suspected() -> None:
    order = np.array([1, 0, 2, 3, 5, 4])
    pairs = [replace(pair, features_b=order) if pair.name in {"one", "table"} else pair for pair in PAIRS]
    port: Steps = {
        **STEPS,
        "table": lambda at: X[..., order],
        "one:input#0": lambda at: X,
        "one:output#0": lambda at: (at["one:input#0"] @ W.T)[..., order],
        "two:input#0": lambda at: np.sin(at["one:output#0"])[..., order],
        "two:output#0": lambda at: at["two:input#0"] @ V.T,
        FINAL: lambda at: at["two:output#0"] + X,
    }
    found = examined(port, pairs)
    assert names(found) == ["two:input"]
    suspects = permuted_before(found, found.sites)
    assert suspects == {"one", "table"}
    assert permuted_before(found, []) == set()
    stored = as_stored(pairs, suspects)
    assert all(pair.features_b is None for pair in stored)
    assert [pair.name for pair in stored] == [pair.name for pair in pairs]
    assert as_stored(pairs, {"one"})[0].features_b is order
    parts = [replace(pair, features_a=order) for pair in pairs]
    assert permuted_before(replace(found, pairs=parts), found.sites) == set()


def test_layers_are_the_times_between_their_inputs_and_outputs() -> None:
    side = recording(
        [tensor("table", X, 1.0, ["word"]), tensor("layers.0:input#0", X, 2.0),
            tensor("layers.0:output#0", X, 4.0, ["layer.0"]),
            tensor("layers.1:output#0", X, 7.0, ["layer.1", "layer.-1"]), tensor("norm:output#0", X, 9.0)],
    )  # fmt: skip
    layer_of = layers_of(side)
    times = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 7.5, 9.0]
    assert [layer_of(time) for time in times] == [None, 0, 0, 0, 1, 1, None, None]


def test_an_explanation_that_is_known_needs_the_same_values() -> None:
    port: Steps = {**STEPS, "two:input#0": lambda at: np.maximum(at["one:output#0"], 0)}
    a, b = Pass(STEPS).record(WEIGHTS), Pass(port).record(WEIGHTS)
    found = examine(PAIRS, (a, b), NOTHING, UNIT)
    explain_sites(found)
    elsewhere = [replace(site, pair=replace(site.pair, name="elsewhere")) for site in found.sites]
    unseen = replace(found, sites=elsewhere)  # as if the difference were below the floor
    text = "the activation is"
    known = Explanation("activation", text, ("tanh", "ReLU"), X)
    assert [site.name for site, _ in faint_sites(unseen, (a, b), NOTHING, [known])] == ["two:input"]
    assert faint_sites(found, (a, b), NOTHING, [known]) == []
    for other in (replace(known, values=("tanh", "SiLU")), replace(known, setting="x"), replace(known, cause="gelu")):
        assert faint_sites(unseen, (a, b), NOTHING, [other]) == []


@pytest.mark.parametrize(("floors", "differs"), [(7.6, False), (8.4, True)])
def test_eight_floors_are_the_limit(floors: float, differs: bool) -> None:
    roundoff = 1e-6
    port: Steps = {**STEPS, "two:output#0": lambda at: at["two:input#0"] @ V.T * (1 + floors * LEAST_FLOOR * roundoff)}
    assert bool(names(examined(port, roundoff=roundoff))) is differs


def test_gradients_agree_up_to_four_hundred_roundoffs_and_at_least_to_five_digits() -> None:
    assert gradient_limit(1e-7) == pytest.approx(4e-5)
    assert gradient_limit(1e-9) == 1e-5


@pytest.mark.parametrize(("off", "names"), [(0.9e-5, []), (3.9e-4, []), (4.1e-4, ["one"]), (9e-4, ["one"])])
def test_gradients_that_cannot_be_led_differ_clearly(off: float, names: list[str]) -> None:
    """Four times the root of the roundoff of 1e-8 is 4e-4."""
    keys = ["table", "one:output#0", "two:output#0"]
    first, second = (
        recording([tensor(key, X, float(number), gradient=Y * factor) for number, key in enumerate(keys)])
        for factor in (1.0, 1.0)
    )
    changed = {**second.tensors, "one:output#0": tensor("one:output#0", X, 1.0, gradient=Y * (1 + off))}
    changed["table"] = tensor("table", X, 0.0, gradient=Y * (1 + off / 2))
    sides = first, replace(second, tensors=changed)
    pairs = [Pair(key.partition(":")[0], key, key, time=float(number)) for number, key in enumerate(keys)]
    found = examine(pairs, sides, NOTHING, 1e-8)
    assert examine_gradients(found, sides, 1e-8) == (found, names)


def turning(angles: np.ndarray) -> Steps:
    """Return steps of which one is a point of cosines and hands on sines that are none."""
    return {
        "turn:output#0": lambda at: np.cos(angles),
        "one:input#0": lambda at: X * at["turn:output#0"] + X[..., ::-1] * np.sin(angles),
        "one:output#0": STEPS["one:output#0"],
        FINAL: lambda at: np.tanh(at["one:output#0"]),
    }


TURNED = {"turn:output#0": "turn", "one:input#0": "one:input", "one:output#0": "one", FINAL: FINAL}


@pytest.mark.parametrize(
    ("name", "values", "angles", "kept"),
    [
        ("turn.angles", W[0], 2 * Y, False),
        ("turn.inner.table", W, 2 * Y, True),
        ("turned.weight", W, 2 * Y, False),
        ("turn.angles", W[0], Y, True),  # the same on both sides
    ],
)
def test_cosines_of_one_side_are_not_put_in_beside_the_sines_of_the_other(
    name: str, values: np.ndarray, angles: np.ndarray, kept: bool
) -> None:
    port, weights = turning(angles), {**WEIGHTS, name: values}
    a, b = (Pass(steps).record(weights) for steps in (turning(Y), port))
    pairs = [Pair(name, key, key, time=float(number)) for number, (key, name) in enumerate(TURNED.items())]
    found = examine(pairs, (a, b), match_weights(a.weights, b.weights), UNIT)
    assert [pair.name for pair in found.pairs] == list(TURNED.values())[0 if kept else 1 :]
    if not kept:
        assert names(found) == ["one:input"]
        np.testing.assert_allclose(found.sites[0].b, port["one:input#0"]({"turn:output#0": np.cos(angles)}))


@pytest.mark.parametrize(
    ("key", "values", "time", "layer"),
    [
        ("layers.1.up:input#0", X, 3.0, 0),  # what the layer is given
        ("layers.1.up:output#0", X, 3.0, 1),  # what a module hands on as it is
        ("layers.1.up:input#0", X, 5.0, 1),  # behind an output in the layer
        ("layers.1.up:input#0", X + 1, 3.0, 1),
        ("norm:input#0", X + 1, 9.0, 1),  # behind all layers
        ("norm:input#0", X, 9.0, None),
        ("layers.0.up:input#0", X, 1.0, 0),
    ],
)
def test_what_a_layer_is_given_is_of_the_layer_before(
    key: str, values: np.ndarray, time: float, layer: int | None
) -> None:
    made = [("layers.0", X, 2.0), ("layers.1.mix", X - 1, 4.0), ("layers.1", X + 1, 6.0)]
    side = recording(
        [tensor(f"{path}:output#0", own, at, [f"layer.{path[-1]}"] * (path[-1] != "x")) for path, own, at in made]
    )
    assert _layer_before(side, tensor(key, values, time), lambda at: int(at > 2) if at < 7 else None) == layer


def test_what_no_hypothesis_explains_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several modules that read one tensor end stretches that differ alike."""
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 3))
    kinds = [(x[0], x[1]), (x[0], x[1]), (x[0], x[2]), (x[2], x[1])]
    sites = [SimpleNamespace(name=str(number), a=a, b=b, memory={}) for number, (a, b) in enumerate(kinds)]
    searched: list[str] = []
    monkeypatch.setattr("embgrad.comparison.inspection.explain", lambda site: searched.append(site.name))
    found: Any = SimpleNamespace(sites=sites, random=())
    assert [explanation for _, explanation in explain_sites(found)] == [None] * 4
    assert searched == ["0", "2", "3"]
