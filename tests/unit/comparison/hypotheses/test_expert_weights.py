"""The weights of experts and their routers are read by shapes, numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.expert_weights import (
    GATES,
    Bank,
    Router,
    Scores,
    _bias,
    _halves,
    _is_of,
    _short,
    banks_of,
    differing_weights,
    routers_of,
    stacks_of,
)
from embgrad.comparison.hypotheses.experts import (
    Experts,
    Mixture,
    Routing,
    Term,
    _changes,
    _differences,
    _few,
    _layer_of,
    _routings,
    _sums,
)
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY
from embgrad.comparison.hypotheses.sources import Source
from embgrad.comparison.recording import Recording
from embgrad.comparison.weights import Match, Matching
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.hypotheses.planted import site_of

RELU = next(function for function in ACTIVATIONS if function.name == "ReLU")
ROWS = np.array([[1.0, 2.0]])


def numbers(*values: float) -> np.ndarray:
    """Return the matrices of experts with one unit, (expert, 2, 1)."""
    return np.array(values).reshape(-1, 2, 1)


def test_the_output_of_an_expert_by_hand() -> None:
    gate, up, down = numbers(3, 1), numbers(1, -1), np.array([[[10.0, 20.0]]])
    biases = np.array([[[0.5]]]), np.array([[[4.0]]]), np.array([[[100.0, 200.0]]])
    # The gate is 3 + 2 + 0.5, and the other branch 1 - 2 + 4.
    units = 5.5 * 3
    np.testing.assert_allclose(
        Bank("", gate, up, down, biases).outputs(ROWS, RELU), [[[100 + 10 * units, 200 + 20 * units]]]
    )
    np.testing.assert_allclose(Bank("", gate, None, down, biases).outputs(ROWS, RELU), [[[155, 310]]])
    assert Bank("", -gate, up, down).outputs(ROWS, RELU).tolist() == [[[0, 0]]]
    two = Bank("", np.concatenate([gate, 2 * gate]), None, np.concatenate([down, down]))
    np.testing.assert_allclose(two.outputs(ROWS, IDENTITY, slice(1, 2)), [[[100, 200]]])


@pytest.mark.parametrize(
    ("name", "gate", "up", "units", "slope"),
    [
        ("the bounded gate of gpt-oss", 2.0, 3.0, (2.0, 4.0), 1.702),
        ("the bounded gate of gpt-oss", 9.0, 8.0, (7.0, 8.0), 1.702),
        ("the bounded gate of gpt-oss", -9.0, -9.0, (-9.0, -6.0), 1.702),
        ("gpt-oss's gate without bounds", 9.0, 8.0, (9.0, 9.0), 1.702),
        ("gpt-oss's gate without the added 1", 9.0, 8.0, (7.0, 7.0), 1.702),
        ("gpt-oss's gate by SiLU", 9.0, -8.0, (7.0, -6.0), 1.0),
    ],
)
def test_the_gate_of_gpt_oss_by_hand(
    name: str, gate: float, up: float, units: tuple[float, float], slope: float
) -> None:
    function = next(function for function in GATES if function.name == name)
    bank = Bank(
        "",
        numbers(gate - 0.5, 0),
        numbers(up - 0.25, 0),
        np.ones((1, 1, 1)),
        (np.array([[[0.5]]]), np.array([[[0.25]]]), 0.0),
    )
    active, other = units
    (((output,),),) = bank.outputs(ROWS, function)
    assert output == pytest.approx(active / (1 + np.exp(-slope * active)) * other)


def test_a_bank_is_taken_without_each_of_its_biases_and_without_all() -> None:
    first, last = np.ones((1, 1, 1)), 2 * np.ones((1, 1, 1))
    bank = Bank("", first, first, first, (first, 0.0, last))
    assert [it.biases for it in bank.without_biases()] == [(0.0, 0.0, last), (first, 0.0, 0.0), (0.0, 0.0, 0.0)]
    assert [it.biases for it in replace(bank, biases=(0.0, 0.0, last)).without_biases()] == [(0.0, 0.0, 0.0)]


def test_scores_are_which_expert_is_taken() -> None:
    assert Scores(2).outputs(ROWS, IDENTITY).tolist() == [[[1, 0]], [[0, 1]]]
    assert Scores(2).outputs(np.zeros((2, 2)), IDENTITY, slice(1, 2)).tolist() == [[[0, 1], [0, 1]]]


def side(weights: Mapping[str, np.ndarray], layers: Mapping[str, int] | None = None) -> Recording:
    recording = site_of(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), {}, weights=weights).recordings[0]
    held = (replace(weight, layer=(layers or {}).get(weight.name, 0)) for weight in recording.weights)
    return replace(recording, weights=tuple(held))


MATRIX = np.arange(6.0).reshape(2, 3)  # of two features and three experts
STACKS = {"up": np.zeros((3, 2, 5))}


def routers(weights: Mapping[str, np.ndarray], **further: int) -> list[Router]:
    return list(routers_of(side(weights, further), 0, STACKS, 2))


def test_a_router_has_a_score_for_each_expert() -> None:
    for stored in (MATRIX, MATRIX.T):
        (router,) = routers({"gate.W": stored})
        np.testing.assert_array_equal(router.matrix, MATRIX)
        np.testing.assert_array_equal([router.bias, router.preferred], np.zeros((2, 3)))
    assert routers({"gate.W": np.zeros((2, 4)), "wide.W": np.zeros((4, 3)), "deep.W": np.zeros((2, 3, 1))}) == []
    assert routers({"gate.W": MATRIX}, **{"gate.W": 1}) == []


def test_a_square_router_is_read_in_both_ways() -> None:
    square = np.arange(9.0).reshape(3, 3)
    first, second = routers_of(side({"gate.W": square}), 0, STACKS, 3)
    np.testing.assert_array_equal([first.matrix, second.matrix], [square, square.T])


def test_a_vector_is_added_to_scores_or_to_what_experts_are_chosen_by() -> None:
    vector = np.array([1.0, 2.0, 3.0])
    own, choosing, none = routers(
        {"gate.W": MATRIX, "gate.b": vector[:, None], "short.b": np.ones(2), "pair": np.ones((3, 3))}
    )
    np.testing.assert_array_equal([own.bias, own.preferred, none.bias], [vector, vector * 0, vector * 0])
    np.testing.assert_array_equal(own.logits(ROWS), ROWS @ MATRIX + vector)
    np.testing.assert_array_equal([choosing.bias, choosing.preferred], [vector * 0, vector])
    other, _ = routers({"gate.W": MATRIX, "choice.b": vector})
    np.testing.assert_array_equal([other.bias, other.preferred], [vector * 0, vector])


def test_weights_with_a_number_in_their_name_are_stacked() -> None:
    weights = {f"experts.{number}.up.W": np.full((2, 3), number) for number in range(3)}
    weights |= {"experts.down": np.ones((3, 4, 2)), "experts.down_bias": np.ones((3, 2)), "gate.W": np.ones((3, 3))}
    weights |= {"convolution.kernel": np.ones((3, 4, 1))}
    weights |= {f"odd.{number}.W": np.ones((2, 2 + number)) for number in range(2)}
    weights |= {"single.0.W": np.ones((2, 2)), "late.1.W": np.ones((2, 2)), "late.2.W": np.ones((2, 2))}
    found = stacks_of(side({**weights, "other": np.ones((3, 1, 1))}, {"other": 1}), 0)
    assert {name: stack.shape for name, stack in found.items()} == {
        "experts.down": (3, 4, 2),
        "experts.down_bias": (3, 2),
        "experts.N.up.W": (3, 2, 3),
    }
    np.testing.assert_array_equal(found["experts.N.up.W"][:, 0, 0], [0, 1, 2])


def test_numbers_inside_names_are_no_numbers_of_experts() -> None:
    weights = {name: np.ones((2, 2)) for name in ("w0.W", "w1.W", "x/0/W", "x/1/W", "y_0_W", "y_1_W")}
    assert set(stacks_of(side(weights), 0)) == {"x/N/W", "y_N_W"}


def test_matrices_are_read_as_two_branches_and_a_product() -> None:
    up, gate, down = (np.arange(30.0).reshape(2, 3, 5) + number for number in range(3))
    banks = list(banks_of({"a.up.weight": up, "a.gate.weight": gate, "a.down.weight": down.swapaxes(1, 2)}, 3, 2))
    labels = [bank.label for bank in banks if bank.down.shape == (2, 5, 3) and (bank.down == down.swapaxes(1, 2)).all()]
    assert sorted(labels) == ["gate activated", "up activated"]
    bank = next(bank for bank in banks if bank.label == "up activated" and (bank.down == down.swapaxes(1, 2)).all())
    np.testing.assert_array_equal(bank.gate, up)
    np.testing.assert_array_equal(bank.up, gate)
    assert bank.biases == (0.0, 0.0, 0.0)


def test_biases_belong_to_the_matrices_of_their_name() -> None:
    first, last = np.array([[1.0, 2.0, 3.0, 4.0]] * 2), np.array([[5.0, 6.0, 7.0]] * 2)
    stacks = {"a.up": np.zeros((2, 3, 4)), "a.up_bias": first, "a.down": np.ones((2, 2, 3)), "a.down_bias": last}
    banks = {bank.label: bank for bank in banks_of(stacks, 3, 2)}
    parts = {"the first half activated": ([1, 2], [3, 4]), "the even units activated": ([1, 3], [2, 4])}
    parts |= {"the second half activated": ([3, 4], [1, 2]), "the odd units activated": ([2, 4], [1, 3])}
    assert banks.keys() == parts.keys()
    for label, (gate, up) in parts.items():
        biases = [np.asarray(bias)[0].ravel().tolist() for bias in banks[label].biases]
        assert biases == [gate, up, [5, 6, 7]]
    one = {"a.up": np.zeros((2, 3, 2)), "a.up_bias": first[:, :2], "a.down": np.ones((2, 2, 3))}
    alone = next(bank for bank in banks_of(one, 3, 2) if bank.down.all())
    assert (alone.label, alone.up) == ("", None)
    np.testing.assert_array_equal(np.asarray(alone.biases[0])[:, 0], first[:, :2])
    assert alone.biases[1:] == (0.0, 0.0)
    three = {"a.up": np.zeros((2, 3, 2)), "a.gate": np.zeros((2, 3, 2)), "a.gate_bias": last[:, :2]}
    both = (bank for bank in banks_of({**three, "a.down": np.ones((2, 2, 3))}, 3, 2) if bank.down.all())
    bank = next(bank for bank in both if bank.label == "up activated" and bank.up is not None and not bank.up.any())
    assert bank.biases[::2] == (0.0, 0.0)
    np.testing.assert_array_equal(np.asarray(bank.biases[1])[:, 0], last[:, :2])


def test_a_bias_has_the_length_and_the_name_of_its_matrix() -> None:
    vectors = {"up_bias": np.ones((2, 4)), "down_bias": np.ones((2, 3))}
    assert np.shape(_bias("up", 4, vectors)) == (2, 1, 4)
    assert _bias("up", 3, vectors) == _bias("gate", 4, vectors) == 0.0


@pytest.mark.parametrize(
    ("bias", "name", "wanted"),
    [("a.up_proj_bias", "a.up_proj", True), ("a.up.N.bias", "a.up.N.weight", True), ("a/up/bias", "a/up/kernel", True),
        ("a.up_bias", "a.down", False), ("a.bias.up", "a.up", False)],
)  # fmt: skip
def test_a_bias_is_called_as_its_matrix_is(bias: str, name: str, wanted: bool) -> None:
    assert _is_of(bias, name) is wanted


def test_the_part_of_a_name_that_distinguishes_a_branch() -> None:
    assert [_short(name) for name in ("mlp.experts.N.gate_proj.weight", "mlp/up/kernel", "w1")] == [
        "gate_proj",
        "up",
        "w1",
    ]


def test_halves_of_a_fused_matrix() -> None:
    units = np.arange(6)
    found = [(label, *(units[part].tolist() for part in parts)) for label, parts in _halves(3)]
    assert found == [
        ("the first half activated", [0, 1, 2], [3, 4, 5]),
        ("the second half activated", [3, 4, 5], [0, 1, 2]),
        ("the even units activated", [0, 2, 4], [1, 3, 5]),
        ("the odd units activated", [1, 3, 5], [0, 2, 4]),
    ]


def test_ways_in_which_tokens_take_experts() -> None:
    assert [tuple(each[:3]) for each in _routings(3)] == [
        ("softmax", 2, True),
        ("softmax", 2, False),
        ("sigmoid", 2, True),
        ("sigmoid", 2, False),
        ("softmax", 1, True),
        ("softmax", 1, False),
        ("sigmoid", 1, True),
        ("sigmoid", 1, False),
        ("softmax", 3, True),
        ("softmax", 3, False),
        ("sigmoid", 3, True),
        ("sigmoid", 3, False),
    ]
    assert list(dict.fromkeys(each.number for each in _routings(64))) == [2, 1, 3, 4, 5, 6, 7, 8, 64]


X = np.random.default_rng(0).normal(size=(8, 2, 5, 3))


def test_what_may_be_added_to_the_sum_of_experts() -> None:
    before = {f"t{number}": X[number] for number in range(7)} | {"gate": X[7][..., :1], "other": X[7][..., 1:2]}
    sums = _sums(site_of(X[0], X[1], before))
    terms = [Term(f"t{number}", gate) for number in range(6) for gate in ("", "gate")]
    assert sums[:13] == [(), *((term,) for term in terms)]
    assert sums[13:] == [(first, second) for at, first in enumerate(terms) for second in terms[at + 1 :]]
    at = {"t0": X[0], "gate": X[7][..., :1]}.__getitem__
    np.testing.assert_allclose(Term("t0", "gate").read(at), X[0] / (1 + np.exp(-X[7][..., :1])))
    assert (Term("t0", "gate").names, Term("t0").names) == (("t0", "gate"), ("t0",))


def test_a_few_tokens_tell_mixtures_apart() -> None:
    assert _few(site_of(X[0], X[1], {})).tolist() == list(range(10))
    values = np.zeros((1, 23, 2))
    assert _few(site_of(values, values, {})).tolist() == list(range(0, 23, 2))


def test_the_layer_of_a_site_in_b_is_that_of_most_partners() -> None:
    names = ("a.W", "b.W", "c.W")
    at = module_site(X[0], X[1], {}, held_a={name: np.ones(3) for name in names})
    first = tuple(replace(weight, layer=4) for weight in at.recordings[0].weights)
    second = tuple(replace(weight, layer=layer) for weight, layer in zip(first, (2, 7, 2), strict=True))
    sides = tuple(replace(side, weights=held) for side, held in zip(at.recordings, (first, second), strict=True))
    matches = tuple(Match(name, name, 0.0) for name in names)
    at = replace(at, layer=4, recordings=sides, matching=Matching(matches, {}, (), ()))  # type: ignore[arg-type]
    assert _layer_of(at) == 2
    assert _layer_of(replace(at, matching=Matching(matches[1:2], {}, (), ()))) == 7
    assert _layer_of(replace(at, matching=Matching((), {}, (), ()))) == 4
    assert _layer_of(replace(at, layer=5)) == 5


TWO = Routing("softmax", 2, normalised=True)


def mixture(factor: float = 1.0, routing: Routing = TWO) -> Mixture:
    return Mixture(Source("x", X[0]), Router(MATRIX, np.zeros(3), np.zeros(3)), Scores(3), IDENTITY, routing, factor)


def test_changes_of_a_routing_are_counted() -> None:
    assert _changes(mixture(), mixture()) == 0
    assert _changes(mixture(), mixture(1.00009)) == 0
    assert _changes(mixture(), mixture(1.00011)) == 1
    assert _changes(mixture(-2.0), mixture(-2.00015)) == 0
    assert _changes(mixture(), mixture(2.0, Routing("sigmoid", 1, False))) == 4


def test_a_factor_that_differs_hardly_is_no_difference() -> None:
    assert list(_differences(mixture(-2.0), mixture(-2.00015))) == []
    (found,) = _differences(mixture(2.0), mixture(2.0003))
    assert found == ("expert-routing", "the experts' sum is multiplied by", ("2", "2.0003"))


def test_a_mixture_reads_each_point_once() -> None:
    two = replace(mixture(), added=(Term("y", "g"), Term("x")))
    assert two.inputs == ("x", "y", "g")


def test_experts_without_numbers_are_no_experts() -> None:
    at = module_site(X[0], X[1], {"x": X[2]}, held_a={"gate.W": np.ones((3, 3))})
    assert Experts().explain(at) == []


def test_matrices_of_other_experts_are_told_from_other_matrices() -> None:
    gate, down = np.arange(8.0).reshape(4, 2, 1), np.arange(8.0).reshape(4, 1, 2)
    own = Bank("", gate, None, down, (np.ones((4, 1, 1)), 0.0, 0.0))
    assert list(differing_weights(own, own)) == []
    turned = replace(own, gate=gate[[1, 0, 2, 3]])
    assert list(differing_weights(own, turned)) == [
        ("swapped-weights", "the gate matrices of experts 0, 1 are those of", ("0, 1", "1, 0"))
    ]
    both = gate[[0, 0, 2, 3]] + np.array([0, 0, 0, 9.0])[:, None, None]
    assert list(differing_weights(own, replace(own, gate=both))) == [
        ("different-weight", "the gate matrices of experts 3 are", ("a's own", "others")),
        ("swapped-weights", "the gate matrices of experts 1 are those of", ("1", "0")),
    ]
    assert list(differing_weights(own, replace(own, up=gate))) == []  # which a has none of
    assert list(differing_weights(replace(own, up=gate), own)) == []
    assert list(differing_weights(own, replace(own, gate=gate[:3]))) == []
    biases = list(differing_weights(own, replace(own, biases=(2 * np.ones((4, 1, 1)), 0.0, 1.0))))
    assert biases == [
        ("different-weight", "the experts' gate biases are", ("a's own", "others")),
        ("missing-bias", "the experts' down biases are", ("missing", "added")),
    ]
