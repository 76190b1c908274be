"""Other terms of a sum, and other multipliers of them, are found by their values."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.combination import Combination, moved_terms, terms_of
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.recording import FINAL, Tensor
from embgrad.comparison.sites import Pair
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site

RANDOM = np.random.default_rng(0)
X, Y, Z, OTHER = RANDOM.normal(size=(4, 2, 5, 6))
BEFORE = {"down": Y, "norm": Z, "layer": X, "first": OTHER}


def site(a: np.ndarray, b: np.ndarray, before: dict[str, np.ndarray] = BEFORE, **further: Any) -> Site:
    return module_site(a, b, before, **{"key": "sum:output#0", **further})


def explained(at: Site) -> Explanation:
    return best(at, Combination().explain(at))


MULTIPLIERS = {
    "scaled": (X + Y, X + 0.5 * Y, "residual-scale", "down is multiplied by 1 in a and 0.5 in b"),
    "scaled in a": (X + 0.22 * Y, X + Y, "residual-scale", "down is multiplied by 0.22 in a and 1 in b"),
    "negative": (X + Y, X - Y, "residual-scale", "down is multiplied by 1 in a and -1 in b"),
    "the largest change": (X + Y, 1.1 * X + 3 * Y, "residual-scale", "down is multiplied by 1 in a and 3 in b"),
    "left out": (X + Y, Y, "missing-residual", "layer is added in a and left out in b"),
    "of three": (X + Y + Z, X + Z, "missing-residual", "down is added in a and left out in b"),
    "of one": (X, 2 * X, "residual-scale", "layer is multiplied by 1 in a and 2 in b"),
}


@pytest.mark.parametrize(("a", "b", "cause", "text"), MULTIPLIERS.values(), ids=MULTIPLIERS)
def test_another_multiplier_is_named(a: np.ndarray, b: np.ndarray, cause: str, text: str) -> None:
    found = explained(site(a, b))
    assert (found.cause, found.text) == (cause, text)


RETURNED = RANDOM.normal(size=X.shape)
LATER = {"next": X + Y + RETURNED, "next normed": np.tanh(X + Y + RETURNED)}
PLAIN, ADDED = "down is added in a and left out in b", "what b gives to mlp lacks down, which b adds later"


@pytest.mark.parametrize(
    ("key", "pairs", "differing", "returned", "text"),
    [
        ("mlp:input#0", {"next": "next:input#0"}, set(), RETURNED, ADDED),
        ("mlp:input#0", {"normed": "next:output#0"}, set(), RETURNED, ADDED),
        ("mlp:input#0", {"output": FINAL}, set(), RETURNED, ADDED),
        (
            "mlp:input#0",
            {"next": "next:input#0"},
            {"next"},
            RETURNED,
            PLAIN,
        ),  # so it is left out of the residual itself
        ("mlp:input#0", {"normed": "next:output#0"}, {"normed"}, RETURNED, PLAIN),
        ("mlp:input#0", {"output": FINAL}, {"output"}, RETURNED, PLAIN),
        ("mlp:input#0", {}, set(), RETURNED, PLAIN),  # nothing shows that it is added later
        ("mlp:input#0", {"next": "next:input#0"}, set(), 2 * RETURNED, PLAIN),  # no later sum contains this one
        (
            "mlp:output#0",
            {"next": "next:input#0"},
            set(),
            RETURNED,
            PLAIN,
        ),  # an output goes on to all that is behind it
    ],
)
def test_a_term_that_is_in_the_next_sum_is_added_later(
    key: str, pairs: dict[str, str], differing: set[str], returned: np.ndarray, text: str
) -> None:
    others = [
        Tensor("mlp:returned#0", "mlp.down", "output", 0, (), 10.0, returned),
        Tensor("next:input#0", "next", "input", 0, (), 11.0, LATER["next"]),
        Tensor("next:output#0", "next", "output", 0, (), 12.0, LATER["next normed"]),
        Tensor(FINAL, "", "output", 0, (), math.inf, RETURNED[..., :1]),
    ]
    at = site(X + Y, X, key=key, others=others, pairs=[Pair(name, it, it) for name, it in pairs.items()])
    found = explained(replace(at, memory={"differing": differing}))
    assert (found.cause, found.text) == ("missing-residual", text)


TERMS = {
    "another order": (X + Y, Z + Y, "norm-order", ("down + layer", "down + norm")),
    "another tensor": (X, Z, "norm-order", ("layer", "norm")),
    "two further terms": (X, X + Y + Z, "missing-residual", ("layer", "down + norm + layer")),
}


@pytest.mark.parametrize(("a", "b", "cause", "values"), TERMS.values(), ids=TERMS)
def test_other_terms_are_named(a: np.ndarray, b: np.ndarray, cause: str, values: tuple[str, str]) -> None:
    found = explained(site(a, b))
    assert (found.cause, found.values, found.setting) == (cause, values, "sum is")


@pytest.mark.parametrize("numbers", [(0.4, 0.6, 1.0), (1.0, 0.3, 1.0)])
def test_a_sum_of_other_terms_times_numbers_of_its_own_is_a_likeness(numbers: tuple[float, float, float]) -> None:
    """Where a sum lacks a part of a term that is not known by itself, it may be written by what the term is made of."""
    b = numbers[0] * X + numbers[1] * Z + numbers[2] * Y
    assert Combination().explain(site(X + Y, b)) == []
    assert Combination().explain(site(X + 0.4 * Y, X + 0.4 * Z)) != []  # a's own number


def test_a_term_that_a_leaves_out_is_named() -> None:
    found = explained(site(X + Y, X + Y + Z))
    assert (found.cause, found.text) == ("missing-residual", "norm is left out in a and added in b")
    roles = {"norm": ["position"]}
    assert explained(site(X + Y, X + Y + Z, roles=roles)).cause == "missing-positions"
    before = {"down": Y, "norm:output": Z, "layer": X}
    assert explained(site(X + Y, X + Y + Z, before, roles=roles)).cause == "missing-positions"


EARLIER = Explanation(
    "residual-scale", "o is multiplied by", ("1", "0.5"), X - Y, lambda at: at("layer") - at("down"), ("layer", "down")
)


def after_another_site(b: np.ndarray, explanation: Explanation | None = EARLIER) -> Site:
    """Return a site behind another one, where the led model has X - Y instead of X beside the point that was set."""
    at = site(X + Z, b, {"norm": Z, "layer": X, "down": Y})
    return replace(at, memory={"explained": [(replace(at, a=X, b=X - Y), explanation)]})


def test_the_difference_of_an_earlier_site_that_goes_on_is_not_another_cause() -> None:
    found = explained(after_another_site(X - Y + Z))
    assert (found.cause, found.text) == (EARLIER.cause, EARLIER.text)
    assert explained(after_another_site(X - Y + Z, replace(EARLIER, also=(EARLIER,)))).also == ()
    found = explained(after_another_site(X - Y + 3 * Z))
    assert (found.cause, found.text) == ("residual-scale", "norm is multiplied by 1 in a and 3 in b")
    found = explained(after_another_site(X + 3 * Z))
    assert found.text == "norm is multiplied by 1 in a and 3 in b"


def test_another_order_behind_an_explained_site_is_named() -> None:
    """In a post-norm variant of BLOOM both residuals take the norm's output, the second behind the first."""
    found = explained(after_another_site(Y + Z))
    assert (found.cause, found.values) == ("norm-order", ("norm + layer", "norm + down"))


def test_the_difference_of_an_unexplained_site_that_goes_on_is_not_known() -> None:
    found = Combination().explain(after_another_site(X - Y + Z, None))
    assert all(item.cause == "missing-residual" for item in found)


def test_an_earlier_explanation_without_a_function_gives_none() -> None:
    (found,) = Combination().explain(after_another_site(X - Y + Z, replace(EARLIER, compute=None)))
    assert found.compute is None


def test_terms_that_nearly_cancel_are_found() -> None:
    for x, y in itertools.permutations((X, Y, Z, OTHER), 2):
        at = site(y, y)
        found = terms_of(at, [Before("up", 1e3 * x), Before("down", y - 1e3 * x)], at.rows(y))
        assert found is not None
        np.testing.assert_allclose(found[1], 1, rtol=1e-5)


def test_a_term_that_moves_behind_a_norm_is_an_order_of_norms() -> None:
    added, missing = (
        Explanation("missing-residual", "x is", values, X) for values in (("left out", "added"), ("added", "left out"))
    )
    at = site(X, Y)
    first, second = replace(at, pair=Pair("norm:input", "a", "b")), replace(at, pair=Pair("layer", "a", "b"))
    found = [explanation for _, explanation in moved_terms([(first, added), (at, None), (second, missing)])]
    text = "x is added at layer in a and norm:input in b"
    assert [item and (item.cause, item.text) for item in found] == [("norm-order", text), None, ("norm-order", text)]
    turned = [explanation for _, explanation in moved_terms([(first, missing), (second, added)])]
    assert [item and item.text for item in turned] == ["x is added at norm:input in a and layer in b"] * 2
    assert [item for _, item in moved_terms([(first, added), (second, added)])] == [added, added]
    assert [item for _, item in moved_terms([(first, added), (replace(second, layer=4), missing)])] == [added, missing]


ROLES = {
    "position": ("places", "missing-positions", "places is added in a and left out in b"),
    "type": ("types", "types-ignored", "types is added in a and left out in b"),
}


@pytest.mark.parametrize(("role", "expected"), ROLES.items(), ids=ROLES)
def test_a_lookup_that_is_left_out_is_named_by_its_role(role: str, expected: tuple[str, str, str]) -> None:
    name, cause, text = expected
    found = explained(site(X + Y, X, {name: Y, "table": X}, roles={"table": ["word"], name: [role]}))
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize(
    ("role", "cause"), [("word", "scaled-lookup"), ("embeddings", "scaled-lookup"), ("layer.0", "residual-scale")]
)
def test_rows_that_are_scaled_are_a_scaled_lookup(role: str, cause: str) -> None:
    found = explained(site(X, 8 * X, {"table": X}, roles={"table": [role]}))
    assert (found.cause, found.text) == (cause, "table is multiplied by 1 in a and 8 in b")


def test_rows_of_a_table_without_a_role_are_a_scaled_lookup() -> None:
    """A decoder's ids are looked up too, and have no role."""
    at = site(X + Y, X + 8 * Y, {"shared#1": Y, "layer": X})
    looked_up = Tensor("shared#1", "shared", None, 1, (), 0.5, Y, ids=np.zeros(Y.shape[:2], int))
    tensors = {**at.recordings[0].tensors, looked_up.key: looked_up}
    found = explained(replace(at, recordings=(replace(at.recordings[0], tensors=tensors), at.recordings[1])))
    assert (found.cause, found.text) == ("scaled-lookup", "shared#1 is multiplied by 1 in a and 8 in b")
    assert explained(at).cause == "residual-scale"


def test_a_multiple_of_the_head_as_output_is_a_scale_of_logits() -> None:
    pair, final = Pair("output", FINAL, FINAL), Tensor(FINAL, "", "output", 0, (), math.inf, X / 4)

    def at_output(a: np.ndarray, b: np.ndarray) -> Site:
        at = site(a, b, {"head": X, "other": Y})
        return replace(at, pair=pair, recordings=(replace(at.recordings[0], tensors={FINAL: final}), at.recordings[1]))

    found = explained(at_output(X / 4, X))
    assert (found.cause, found.text) == ("logit-scale", "head is multiplied by 0.25 in a and 1 in b")
    assert explained(at_output(X / 4 + Y, X + Y)).cause == "residual-scale"


@pytest.mark.parametrize("b", [X + Y, X + Y * (1 + 1e-6)], ids=["equal", "nearly equal"])
def test_equal_sums_are_not_explained(b: np.ndarray) -> None:
    assert not Combination().explain(site(X + Y, b))


@pytest.mark.parametrize(("a", "b"), [(np.sin(X), X), (X + Y, np.sin(X)), (X * Y, X + Y)])
def test_what_is_no_sum_is_not_explained(a: np.ndarray, b: np.ndarray) -> None:
    assert not Combination().explain(site(a, b))


def test_four_terms_are_too_many() -> None:
    assert not Combination().explain(site(X + Y + Z + OTHER, X + Y))


@pytest.mark.parametrize(("share", "wanted"), [(0.9e-4, None), (1.1e-4, (0, 1))])
def test_a_term_below_a_ten_thousandth_is_none(share: float, wanted: tuple[int, ...] | None) -> None:
    at = module_site(X, Y, BEFORE)
    found = terms_of(at, [Before("x", X), Before("y", Y)], at.rows(X + share * Y))
    assert (None if found is None else found[0]) == wanted


def test_tensors_of_another_shape_or_of_the_reference_alone_are_no_terms() -> None:
    assert not Combination().explain(site(X, 2 * X, {"layer": X[..., :3]}))
    assert not Combination().explain(site(X, 2 * X, {"layer": X}, alone=["layer"]))


def test_equal_tensors_are_one_term_the_nearest() -> None:
    found = explained(site(X + Y, X + 2 * Y, {"near": Y, "far": Y, "layer": X}))
    assert found.text == "near is multiplied by 1 in a and 2 in b"


def test_tensors_far_before_are_no_terms() -> None:
    many = {f"t{number}": RANDOM.normal(size=X.shape) for number in range(11)}
    assert explained(site(X, 2 * X, {**many, "layer": X})).text == "layer is multiplied by 1 in a and 2 in b"
    assert not Combination().explain(site(X, 2 * X, {**many, "t11": Z, "layer": X}))


def test_terms_that_depend_on_each_other_are_not_fitted() -> None:
    found = explained(site(X + Y, X - Y, {"down": Y, "twice": 2 * Y, "layer": X}))
    assert found.text == "down is multiplied by 1 in a and -1 in b"


def test_padding_does_not_count() -> None:
    a, b = X + Y, X + 2 * Y
    a[~REAL], b[~REAL] = 9.0, -9.0
    at = site(a, b)
    (found,) = Combination().explain(at)
    assert found.text == "down is multiplied by 1 in a and 2 in b"
    assert at.off(found.predicted) < 1e-12


def test_the_multiplier_that_changes_most_is_named() -> None:
    assert explained(site(X + Y, 3 * X - 2 * Y)).text == "down is multiplied by 1 in a and -2 in b"
