"""Mixtures of experts are reproduced token by token, and what differs in them is named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.expert_weights import banks_of, stacks_of
from embgrad.comparison.hypotheses.experts import Experts, Groups, Routing
from embgrad.comparison.hypotheses.site import CHANGES, Changed, Explanation, Site
from embgrad.comparison.recording import Tensor
from tests.unit.comparison.hypotheses.modules import REAL, best, in_pass, module_site
from tests.unit.comparison.hypotheses.planted import expect_exact

RANDOM = np.random.default_rng(0)
EXPERTS, DIM, UNITS = 4, 6, 5
X, RESIDUAL, SHARED = RANDOM.normal(size=(3, 2, 5, DIM))
ROUTER = RANDOM.normal(size=(EXPERTS, DIM))
GATE, UP = RANDOM.normal(size=(2, EXPERTS, UNITS, DIM))
DOWN = RANDOM.normal(size=(EXPERTS, DIM, UNITS))
BEFORE = {"block.router": RANDOM.normal(size=(2, 5, EXPERTS)), "block": X, "norm": RESIDUAL}


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def relu(x: float) -> float:
    return max(x, 0.0)


def named(gate: np.ndarray = GATE, up: np.ndarray = UP, down: np.ndarray = DOWN) -> dict[str, np.ndarray]:
    """Return the weights with one name for each expert, as Mixtral's are."""
    own = {
        f"block.experts.{number}.{name}": stack[number]
        for name, stack in (("w1", gate), ("w3", up), ("w2", down))
        for number in range(EXPERTS)
    }
    return {"block.gate": ROUTER, **own}


def mixed(
    *,
    taken: int = 2,
    normalised: bool = True,
    sigmoid: bool = False,
    preferred: Sequence[float] = (0.0,) * EXPERTS,
    groups: tuple[int, int, int] | None = None,
    factor: float = 1.0,
    function: Callable[[float], float] = silu,
    gate: np.ndarray = GATE,
    up: np.ndarray | None = UP,
    down: np.ndarray = DOWN,
    added: np.ndarray | float = RESIDUAL,
    bias: np.ndarray | None = None,
    x: np.ndarray = X,
    router: np.ndarray = ROUTER,
) -> np.ndarray:
    """Return what a mixture of experts makes of X, as its definition says."""
    result = np.zeros(x.shape)
    for place in np.ndindex(*x.shape[:2]):
        logits = router @ x[place]
        scores = (
            [1 / (1 + math.exp(-logit)) for logit in logits] if sigmoid else list(np.exp(logits) / np.exp(logits).sum())
        )
        allowed = set(range(EXPERTS))
        if groups is not None:
            count, kept, counted = groups
            members = [range(n * EXPERTS // count, (n + 1) * EXPERTS // count) for n in range(count)]
            members.sort(key=lambda group: -sum(sorted(scores[n] + preferred[n] for n in group)[-counted:]))
            allowed = {number for group in members[:kept] for number in group}
        chosen = sorted(allowed, key=lambda number: -(scores[number] + preferred[number]))[:taken]
        total = sum(scores[number] for number in chosen) if normalised else 1.0
        for number in chosen:
            units = np.array([function(unit) for unit in gate[number] @ x[place]])
            units = units if up is None else units * (up[number] @ x[place])
            output = down[number] @ units + (0.0 if bias is None else bias[number])
            result[place] += factor * scores[number] / total * output
    return result + added


A = mixed()


def site(
    b: np.ndarray,
    a: np.ndarray = A,
    before: Mapping[str, np.ndarray] = BEFORE,
    held: Mapping[str, np.ndarray] | None = None,
    **further: Any,
) -> Site:
    return module_site(a, b, before, **{"key": "layer:output#0", "held_a": held or named(), **further})


def explained(at: Site) -> Explanation:
    found = best(at, Experts().explain(at))
    expect_exact(at, found)
    return found


ROUTINGS = {
    "fewer": (mixed(taken=1), "experts for each token 2 in a and 1 in b"),
    "more": (mixed(taken=3), "experts for each token 2 in a and 3 in b"),
    "all": (mixed(taken=4), "experts for each token 2 in a and 4 in b"),
    "plain scores": (
        mixed(normalised=False),
        "the chosen experts' scores are divided by their sum in a and taken as they are in b",
    ),
    "sigmoid": (mixed(sigmoid=True), "the experts' scores are a softmax in a and a sigmoid in b"),
    "a factor": (mixed(factor=2.5), "the experts' sum is multiplied by 1 in a and 2.5 in b"),
}


@pytest.mark.parametrize(("others", "found"), [(3, True), (4, False)])
def test_the_input_of_a_mixture_is_among_four_tensors(others: int, found: bool) -> None:
    a, b = mixed(added=0.0), mixed(added=0.0, taken=1)
    before = {f"t{number}": RANDOM.normal(size=X.shape) for number in range(others)}
    assert bool(Experts().explain(site(b, a, {**before, "block": X}))) is found


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_tiny_and_huge_outputs_are_those_of_a_mixture(size: float) -> None:
    a, b = (mixed(down=size * DOWN, added=size * RESIDUAL, taken=taken) for taken in (2, 1))
    at = site(b, a, {**BEFORE, "norm": size * RESIDUAL}, named(down=size * DOWN))
    (found,) = [each for each in Experts().explain(at) if at.off(each.predicted) < 1e-6]
    assert found.text == "experts for each token 2 in a and 1 in b"


@pytest.mark.parametrize(("b", "text"), ROUTINGS.values(), ids=ROUTINGS)
def test_another_routing_is_named(b: np.ndarray, text: str) -> None:
    found = explained(site(b))
    assert (found.cause, found.text, found.also) == ("expert-routing", text, ())


@pytest.mark.parametrize("taken", [(2, 1), (1, 2)])
def test_the_kind_of_scores_is_not_named_where_one_is_divided_by_itself(taken: tuple[int, int]) -> None:
    a, b = (mixed(taken=number, sigmoid=number == 2) for number in taken)
    found = explained(site(b, a))
    assert [it.text for it in (found, *found.also)] == [f"experts for each token {taken[0]} in a and {taken[1]} in b"]


@pytest.mark.parametrize("name", ["block.choice.bias", "block.gate_bias"])
def test_what_the_port_does_not_add_to_the_scores_that_choose_is_named(name: str) -> None:
    """It may be a weight of the router's own module, as in transformers."""
    preferred = [0.9, -0.5, 0.25, -0.9]
    a = mixed(preferred=preferred, sigmoid=True)
    held = {**named(), name: np.array(preferred)}
    found = explained(site(mixed(sigmoid=True), a, held=held))
    text = "what the choice of experts adds to their scores is added in a and missing in b"
    assert (found.cause, found.text) == ("expert-routing", text)
    found = explained(site(mixed(sigmoid=True, preferred=preferred, taken=1), a, held=held))
    assert found.text == "experts for each token 2 in a and 1 in b"


def test_the_bias_of_a_router_that_the_port_lacks_is_named() -> None:
    """A constant feature of the input makes a bias of the router's last row."""
    constant = np.concatenate([X[..., :-1], np.ones((*X.shape[:2], 1))], -1)
    bias = np.array([1.0, -1.0, 0.5, 0.0])
    held = {**named(), "block.gate_bias": bias}
    moved = ROUTER.copy()
    moved[:, -1] += bias
    a, b = (mixed(x=constant, router=router) for router in (moved, ROUTER))
    found = explained(site(b, a, {**BEFORE, "block": constant}, held=held))
    assert (found.cause, found.text) == ("missing-bias", "the bias of the router is added in a and missing in b")
    fewer = mixed(x=constant, router=moved, taken=1)
    found = explained(site(fewer, a, {**BEFORE, "block": constant}, held=held))
    assert (found.text, found.also) == ("experts for each token 2 in a and 1 in b", ())


GROUPED = {
    "all": (None, "all"),
    "largest": ((2, 1, 1), "1 of 2 groups by their best"),
    "two largest": ((2, 1, 2), "1 of 2 groups by their two best"),
}


def test_experts_of_the_groups_with_the_largest_scores_may_be_taken() -> None:
    scores = np.array([[9.0, 0.0, 5.0, 5.0, 6.0, 1.0]])
    for taken, counted, groups in ((1, 1, [0]), (1, 2, [1]), (2, 1, [0, 2]), (2, 2, [0, 1]), (3, 1, [0, 1, 2])):
        allowed = Groups(3, taken, counted).allow(scores)[0]
        assert np.flatnonzero(allowed).tolist() == [2 * group + place for group in groups for place in (0, 1)]


@pytest.mark.parametrize(
    ("first", "second", "is_declared"),
    [
        *((first, second, True) for first, second in itertools.permutations(GROUPED, 2)),
        *(("all", second, False) for second in GROUPED if second != "all"),
    ],
)
def test_groups_of_experts_are_named(first: str, second: str, is_declared: bool) -> None:
    """A port's groups are found; the reference's own are those that it declares."""
    declared: list[dict[str, int]] = []
    for name in (first, second):
        groups = GROUPED[name][0]
        declared.append({"expert_groups": groups[0], "groups_per_token": groups[1]} if groups and is_declared else {})
    a, b = (mixed(groups=GROUPED[name][0], sigmoid=True) for name in (first, second))
    found = explained(site(b, a, declared=(declared[0], declared[1])))
    texts = [GROUPED[name][1] for name in (first, second)]
    assert found.text == f"experts are taken from {texts[0]} in a and {texts[1]} in b"


def test_another_activation_is_named() -> None:
    found = explained(site(mixed(function=relu)))
    assert (found.cause, found.text) == ("activation", "the experts' activation is SiLU in a and ReLU in b")


def test_the_other_branch_is_activated() -> None:
    found = explained(site(mixed(gate=UP, up=GATE)))
    assert (found.cause, found.values) == ("gate-swapped", ("w1 activated", "w3 activated"))


def test_exchanged_experts_are_named() -> None:
    other = np.array(DOWN)
    other[[0, 2]] = DOWN[[2, 0]]
    found = explained(site(mixed(down=other), held_b=named(down=other)))
    assert found.cause == "swapped-weights"
    assert found.text == "the down matrices of experts 0, 2 are those of 0, 2 in a and 2, 0 in b"


def test_other_weights_of_an_expert_are_named() -> None:
    other = np.array(UP)
    other[3] += 0.5
    found = explained(site(mixed(up=other), held_b=named(up=other)))
    assert (found.cause, found.text) == (
        "different-weight",
        "the up matrices of experts 3 are a's own in a and others in b",
    )


def test_several_settings_are_named_together() -> None:
    found = explained(site(mixed(taken=1, factor=3.0)))
    assert [item.values for item in (found, *found.also)] == [("2", "1"), ("1", "3")]


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_both_branches_may_be_in_one_stack_with_biases(is_interleaved: bool) -> None:
    """gpt-oss has them by turns, Granite one behind the other, and either as one array for all experts."""
    fused = np.concatenate([GATE, UP], 1)
    if is_interleaved:
        fused[:, ::2], fused[:, 1::2] = GATE, UP
    bias = RANDOM.normal(size=(EXPERTS, DIM))
    held = {"block.gate": ROUTER, "block.gate_up": fused, "block.down": DOWN, "block.down_bias": bias}
    a, b = mixed(bias=bias), mixed(bias=bias, gate=UP, up=GATE)
    found = explained(site(b, a, held=held))
    names = ("even", "odd") if is_interleaved else ("first", "second")
    what = "units" if is_interleaved else "half"
    assert found.values == tuple(f"the {name} {what} activated" for name in names)
    found = explained(site(mixed(), a, held=held, held_b={**held, "block.down_bias": np.zeros_like(bias)}))
    assert (found.cause, found.text) == ("missing-bias", "the experts' down biases are added in a and missing in b")


def test_experts_may_have_one_branch() -> None:
    held = {name: values for name, values in named().items() if "w3" not in name}
    found = explained(site(mixed(up=None, function=relu), mixed(up=None), held=held))
    assert found.values == ("SiLU", "ReLU")


def test_shared_experts_are_added_with_or_without_a_gate() -> None:
    logit = RANDOM.normal(size=(2, 5, 1))
    before = {"block.shared": SHARED, "block.shared_gate": logit, **BEFORE}
    for shared in (SHARED, SHARED / (1 + np.exp(-logit))):
        found = explained(site(mixed(taken=1, added=RESIDUAL + shared), mixed(added=RESIDUAL + shared), before))
        assert found.text == "experts for each token 2 in a and 1 in b"
    assert Experts().explain(site(mixed(taken=1, added=2 * SHARED), mixed(added=2 * SHARED), before)) == []


def test_shared_experts_that_the_port_lacks_or_does_not_gate_are_named() -> None:
    logit = RANDOM.normal(size=(2, 5, 1))
    before = {"block.shared": SHARED, "block.shared_gate": logit, **BEFORE}
    gated = SHARED / (1 + np.exp(-logit))
    for added, text in (
        (RESIDUAL, "shared is added in a and left out in b"),
        (RESIDUAL + SHARED, "the gate shared_gate is applied in a and left out in b"),
    ):
        found = explained(site(mixed(added=added), mixed(added=RESIDUAL + gated), before))
        assert (found.cause, found.text) == ("missing-part", text)


def test_a_term_that_changes_nothing_is_not_said_to_be_left_out() -> None:
    before = {"block.shared": 1e-13 * SHARED, **BEFORE}
    a, b = (mixed(taken=taken, added=RESIDUAL + before["block.shared"]) for taken in (2, 1))
    found = explained(site(b, a, before))
    assert not found.also
    assert found.text == "experts for each token 2 in a and 1 in b"


def test_a_number_that_experts_are_chosen_by_is_no_part_of_their_weights() -> None:
    """DeepSeek's third version corrects scores before it chooses, and weighs with what they were."""
    preferred = [0.5, -0.5, 0.25, 0.0]
    held = {**named(), "block.choice.bias": np.array(preferred)}
    a, b = (mixed(preferred=preferred, taken=number) for number in (2, 3))
    assert np.abs(a - A).max() > 0.01
    assert explained(site(b, a, held=held)).values == ("2", "3")


def test_the_output_of_a_router_is_explained() -> None:
    def routed(number: int) -> np.ndarray:
        weights = Routing("softmax", number, normalised=True).weights(X.reshape(-1, DIM) @ ROUTER.T, np.zeros(EXPERTS))
        return weights.reshape(2, 5, EXPERTS)

    at = site(routed(1), routed(2), {"norm": X}, key="block.router:output#0")
    assert explained(at).text == "experts for each token 2 in a and 1 in b"


def test_weights_of_experts_that_are_taken_sum_to_one_if_they_are_normalised() -> None:
    logits, none = np.array([[1.0, 0.0, 2.0, -1.0]]), np.zeros(4)
    np.testing.assert_allclose(
        Routing("softmax", 2, True).weights(logits + 900, none), [[1 / (1 + math.e), 0, math.e / (1 + math.e), 0]]
    )
    whole = np.exp(logits).sum()
    np.testing.assert_allclose(
        Routing("softmax", 1, False).weights(logits, np.array([0.0, 9.0, 0.0, 0.0])), [[0, 1 / whole, 0, 0]]
    )
    np.testing.assert_allclose(Routing("sigmoid", 4, False).weights(logits, none), 1 / (1 + np.exp(-logits)))


@pytest.mark.parametrize(
    "held",
    [
        {name: values for name, values in named().items() if name != "block.gate"},
        {name: values for name, values in named().items() if ".0." not in name},
        {"block.gate": ROUTER},
    ],
    ids=["no router", "no expert 0", "no experts"],
)
def test_what_is_no_mixture_is_not_explained(held: Mapping[str, np.ndarray]) -> None:
    assert Experts().explain(site(mixed(taken=1), held=held)) == []


def test_another_input_is_not_explained() -> None:
    assert Experts().explain(site(mixed(taken=1), before={"block": X + 0.1, "norm": RESIDUAL})) == []
    assert Experts().explain(site(RANDOM.normal(size=X.shape))) == []
    assert Experts().explain(site(RESIDUAL, X + RESIDUAL)) == []  # none at all


def test_stacks_have_as_many_matrices_as_the_router_has_scores() -> None:
    side = site(A).recordings[0]
    stacks = stacks_of(side, None)
    assert {bank.down.shape for bank in banks_of(stacks, DIM, EXPERTS)} == {(EXPERTS, UNITS, DIM)}
    assert list(banks_of(stacks, DIM, EXPERTS + 1)) == []


def fused(gate: np.ndarray = GATE, up: np.ndarray = UP, down: np.ndarray = DOWN) -> dict[str, np.ndarray]:
    """Return the weights as one array of both branches and one of the units' outputs, (expert, input, output)."""
    both = np.concatenate([gate, up], 1).swapaxes(1, 2)
    return {"block.gate": ROUTER, "block.wi": both, "block.wo": down.swapaxes(1, 2)}


OTHER_ORDER = np.array([3, 1, 2, 0])
RESHAPED = np.concatenate([GATE, UP], 1).reshape(EXPERTS, DIM, 2 * UNITS).swapaxes(1, 2)


@pytest.mark.parametrize(
    ("gate", "up", "down", "cause", "text"),
    [
        (UP, GATE, DOWN, "gate-swapped", "of the experts' branches w1 activated in a and w3 activated in b"),
        (GATE[OTHER_ORDER], UP[OTHER_ORDER], DOWN[OTHER_ORDER], "swapped-weights",
            "the gate matrices of experts 0, 3 are those of 0, 3 in a and 3, 0 in b"),
        (RESHAPED[:, :UNITS], RESHAPED[:, UNITS:], DOWN, "permuted-weight",
            "the entries of the experts' matrices are in one order in a and another in b"),
        (GATE, UP[:, ::-1] + GATE, DOWN, "different-weight",
            "the up matrices of experts 0, 1, 2, 3 are a's own in a and others in b"),
    ],
)  # fmt: skip
def test_weights_that_b_stores_in_another_way_are_compared_by_their_values(
    gate: np.ndarray, up: np.ndarray, down: np.ndarray, cause: str, text: str
) -> None:
    weights = fused(gate, up, down)
    found = explained(site(mixed(gate=gate, up=up, down=down), held_b=weights))
    assert (found.cause, found.text) == (cause, text)


GAIN = 1 + RANDOM.random(DIM)


def behind_norm(b: np.ndarray, **further: Any) -> Site:
    """Return a site at the norm of what the layer before, with the experts, returns, which is no point of b."""
    outputs = (whole / np.sqrt((whole**2).mean(-1, keepdims=True) + 1e-6) * GAIN for whole in (A, b))
    before = {"norm:input": A, "block.router": BEFORE["block.router"], "block": X, "residual": RESIDUAL}
    given = {"key": "norm:output#0", "held_a": {**named(), "norm.gain": GAIN}, "alone": ["norm:input"], "layer": 1}
    others = [Tensor("layer#0", "layer", "output", 0, ("layer.0",), 0.5, A)]
    at = module_site(*outputs, before, others=others, **{**given, **further})
    layers = {"norm.gain": 1}
    held = (tuple(replace(it, layer=layers.get(it.name, 0)) for it in side.weights) for side in at.recordings)
    sides = (replace(side, weights=weights) for side, weights in zip(at.recordings, held, strict=True))
    return replace(at, recordings=tuple(sides))


@pytest.mark.parametrize(
    ("b", "text"),
    [
        (mixed(taken=1), "experts for each token 2 in a and 1 in b"),
        (
            mixed(normalised=False),
            "the chosen experts' scores are divided by their sum in a and taken as they are in b",
        ),
        (mixed(factor=2.5), "the experts' sum is multiplied by 1 in a and 2.5 in b"),
        (mixed(gate=UP, up=GATE), "of the experts' branches w1 activated in a and w3 activated in b"),
    ],
)
def test_a_mixture_whose_norm_alone_is_a_point_is_explained_in_its_own_layer(b: np.ndarray, text: str) -> None:
    """A function of a dict of parameters has no point in its residual stream."""
    found = explained(behind_norm(b))
    assert (found.text, found.layer) == (text, 0)


@pytest.mark.parametrize("moved", [False, True])
def test_a_mixture_behind_the_difference_of_an_earlier_sum_is_explained(moved: bool) -> None:
    """What earlier layers differ by goes on in b's residual, and in what its experts are given where that is no point."""
    change, own = RANDOM.normal(size=(2, *X.shape))
    b = mixed(taken=1) + change
    if moved:  # the router takes experts by what it is given in a
        b = RESIDUAL + change
        for place in np.ndindex(*X.shape[:2]):
            expert = int(np.argmax(ROUTER @ X[place]))
            units = np.array([silu(unit) for unit in GATE[expert] @ own[place]]) * (UP[expert] @ own[place])
            b[place] += DOWN[expert] @ units
    earlier = Explanation("expert-routing", "x", ("1", "2"), X)
    at = behind_norm(b)
    memory: dict[str, Any] = {CHANGES: [Changed(earlier, change)], "explained": [(replace(at, a=X, b=own), earlier)]}
    (found,) = Experts().explain(replace(at, memory=memory))
    assert found.text == "experts for each token 2 in a and 1 in b"
    assert at.off(found.predicted) < 1e-6
    np.testing.assert_allclose(memory[CHANGES][-1][1][REAL], (b - A)[REAL], atol=1e-9)  # all of what the next sum has
    assert Experts().explain(behind_norm(b)) == []


def test_what_a_mixture_adds_to_a_sum_follows_the_tensors_of_a_pass() -> None:
    values, residual, whole = RANDOM.normal(size=(3, *X.shape))
    other = {"block": values, "residual": residual, "norm:input": whole}
    memory: dict[str, Any] = {}
    (found,) = Experts().explain(behind_norm(mixed(taken=1), memory=memory))
    wanted = mixed(taken=1, x=values, added=residual)
    assert found.compute is not None
    assert found.change is not None
    np.testing.assert_allclose(found.change(in_pass(other)), wanted - whole)
    np.testing.assert_allclose(
        found.compute(in_pass(other)), wanted / np.sqrt((wanted**2).mean(-1, keepdims=True) + 1e-6) * GAIN
    )
    # The next mixture is added to what this one differs by.
    change = mixed(taken=1) - A
    at = behind_norm(mixed(taken=1) + change, memory={**memory, "explained": []})
    (again,) = Experts().explain(at)
    assert again.change is not None
    np.testing.assert_allclose(again.change(in_pass(other)), 2 * (wanted - whole))


def test_a_mixture_reads_a_tensor_where_both_models_hold_it() -> None:
    """What the experts are given is no point of a port in functions, and what their router is given is one."""
    at = behind_norm(mixed(taken=1))
    before = [replace(it, shared=False) for it in at.before if it.name == "block"]
    before += [
        *(it for it in at.before if it.name != "block"),
        replace(before[0], name="block.gate:input", shared=True),
    ]
    (found,) = Experts().explain(replace(at, before=before))
    assert "block.gate:input" in found.inputs
    assert "block" not in found.inputs
