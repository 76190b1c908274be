"""Another term of a sum is found, also behind a norm, and where no later point stops it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.site import CHANGES, Explanation, Site, Values, kept
from embgrad.comparison.hypotheses.terms import OtherTerm
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import IDS, REAL, best, in_pass, module_site

RANDOM = np.random.default_rng(0)
SIZE = 6
WORDS, PLACES, KINDS = (RANDOM.normal(size=(rows, SIZE)) for rows in (12, 9, 3))
WORD, PLACE, KIND = WORDS[IDS], np.broadcast_to(PLACES[:5], (2, 5, SIZE)), np.broadcast_to(KINDS[0], (2, 5, SIZE))
GAIN, SHIFT = 1 + 0.4 * RANDOM.normal(size=SIZE), 0.5 * RANDOM.normal(size=SIZE)
TABLES = {"words.W": WORDS, "places.W": PLACES, "kinds.W": KINDS}
ROLES = {"words": ["word"], "places": ["position"], "kinds": ["type"]}


def norm(x: np.ndarray, gain: np.ndarray = GAIN, shift: np.ndarray = SHIFT, *, centred: bool = True) -> np.ndarray:
    """Return the norm of each vector, with an epsilon of 1e-5."""
    x = x - x.mean(-1, keepdims=True) if centred else x
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain + shift)


def behind(a: np.ndarray, b: np.ndarray, *, centred: bool = True, gain: np.ndarray = GAIN, **further: Any) -> Site:
    """Return a site at the norm of the sum of three lookups, whose input is no point of b."""
    shift = SHIFT if centred else np.zeros(SIZE)
    weights = {**TABLES, "norm.gain": gain, **({"norm.shift": SHIFT} if centred else {})}
    before = {"norm:input": a, "places": PLACE, "kinds": KIND, "words": WORD}
    outputs = (norm(values, gain, shift, centred=centred) for values in (a, b))
    settings = {"key": "norm:output#0", "held_a": weights, "alone": ["norm:input"], "roles": ROLES}
    return module_site(*outputs, before, **{**settings, **further})


def explained(at: Site, earlier: Mapping[str, np.ndarray] | None = None) -> Explanation:
    return best(at, OtherTerm().explain(at), earlier)


WHOLE = WORD + PLACE + KIND
CHANGED = {
    "words scaled": (WHOLE, 2.5 * WORD + PLACE + KIND, "scaled-lookup", "words is multiplied by 1 in a and 2.5 in b"),
    "words unscaled": (3 * WORD + PLACE, WORD + PLACE, "scaled-lookup", "words is multiplied by 3 in a and 1 in b"),
    "no types": (WHOLE, WORD + PLACE, "types-ignored", "kinds is added in a and left out in b"),
    "no positions": (WHOLE, WORD + KIND, "missing-positions", "places is added in a and left out in b"),
    "subtracted": (WHOLE, WORD + PLACE - KIND, "residual-scale", "kinds is multiplied by 1 in a and -1 in b"),
    "later positions": (WHOLE, WORD + PLACES[3:8] + KIND, "position-ids-offset",
        "the rows of places start at 0 in a and 3 in b"),
    "second type": (WHOLE, WORD + PLACE + KINDS[1], "other-ids",
        "the types that are looked up in kinds are 0 in a and 1 in b"),
    "other words": (WHOLE, WORDS[IDS + 1] + PLACE + KIND, "other-ids",
        "the rows of words are the ids in a and the ids + 1 in b"),
}  # fmt: skip


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("name", CHANGED)
def test_another_term_before_a_norm_is_named(name: str, centred: bool) -> None:
    a, b, cause, text = CHANGED[name]
    found = explained(behind(a, b, centred=centred))
    assert (found.cause, found.text) == (cause, text)


def test_features_that_a_gain_hides_do_not_count() -> None:
    gain = np.where(np.arange(SIZE) == 2, 0.0, GAIN)
    a, b, cause, _ = CHANGED["later positions"]
    assert explained(behind(a, b, gain=gain)).cause == cause


def test_most_terms_before_a_norm_are_unchanged_up_to_rounding() -> None:
    a, b = WHOLE, WORD + 2.5 * PLACE + KIND
    at = behind(a, b, floor=0.016)
    noise = 0.01 * np.random.default_rng(4).normal(size=at.b.shape)
    texts = [found.text for found in OtherTerm().explain(replace(at, b=at.b * (1 + noise)))]
    assert texts == ["places is multiplied by 1 in a and 2.5 in b"]


@pytest.mark.parametrize("name", ["later positions", "second type", "other words"])
def test_other_rows_of_a_term_of_a_plain_sum_are_named(name: str) -> None:
    a, b, cause, text = CHANGED[name]
    before = {"places": PLACE, "kinds": KIND, "words": WORD}
    found = explained(module_site(a, b, before, key="sum:input#0", held_a=TABLES, roles=ROLES))
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("order", "how"), [([0, 3, 1, 4, 2, 5], "in turn"), ([0, 2, 4, 1, 3, 5], "apart")])
def test_sines_and_cosines_in_another_order_are_named(order: list[int], how: str, normed: bool) -> None:
    sums = WHOLE, WORD + PLACE[..., order] + KIND
    before = {"places": PLACE, "kinds": KIND, "words": WORD}
    at = behind(*sums) if normed else module_site(*sums, before, key="sum:input#0", held_a=TABLES, roles=ROLES)
    found = explained(at)
    text = f"b adds the rows of places.W with the features of their halves {how}"
    assert (found.cause, found.text) == ("permuted-weight", text)


@pytest.mark.parametrize("times", [1, 3])
def test_other_vectors_by_position_are_named(times: int) -> None:
    before = {"places": PLACE, "kinds": KIND, "words": WORD}
    given = {"key": "sum:input#0", "held_a": TABLES, "roles": ROLES}
    own, other = WORD + times * PLACE + KIND, times * np.sin(PLACE)
    found = explained(module_site(own, WORD + other + KIND, before, **given))
    assert (found.cause, found.text) == ("different-table", "b adds other vectors than the rows of places.W")
    by_text, by_all = other * np.array([1, 1.1])[:, None, None], times * PLACE + np.sin(KIND)
    for changed in (by_text, by_all):  # not the same in both texts, and one vector at all positions
        at = module_site(own, WORD + changed + KIND, before, **given)
        assert not any("other vectors" in found.text for found in OtherTerm().explain(at))


def test_what_is_no_row_of_the_table_is_not_named() -> None:
    assert not any(
        at.off(found.predicted) < 1e-3
        for at in [behind(WHOLE, WORD + PLACE + RANDOM.normal(size=SIZE))]
        for found in OtherTerm().explain(at)
    )


def test_turned_types_are_named_with_the_types_in_their_place() -> None:
    kinds = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    a, b = WORD + PLACE + KINDS[kinds], WORD + PLACE + KINDS[1 - kinds]
    at = behind(a, b)
    at = replace(at, before=[replace(it, values=KINDS[kinds]) if it.name == "kinds" else it for it in at.before])
    assert explained(at).text == "the types that are looked up in kinds are 0 and 1 in a and 1 for 0 and 0 for 1 in b"


def test_a_norm_that_b_skips_before_a_norm_is_named_and_known_at_later_sums() -> None:
    """No point of b stops the words without their norm, so that every later sum contains them as well."""
    weights = {"first.gain": GAIN, "first.shift": SHIFT, "second.gain": 2 * GAIN, "second.shift": -SHIFT}
    stream = norm(WORD)
    before = {"second:input": stream, "first": stream, "first:input": WORD}
    settings = {"held_a": weights, "alone": [*before], "memory": {}}
    twice = [norm(values, 2 * GAIN, -SHIFT) for values in (stream, WORD)]
    first = module_site(*twice, before, key="second:output#0", **settings)
    assert explained(first).text == "b lacks the norm first"

    added = RANDOM.normal(size=WORD.shape)
    later = [norm(values, 2 * GAIN, -SHIFT) for values in (stream + added, WORD + added)]
    at = module_site(*later, {"second:input": stream + added}, key="second:output#0", **settings)
    found = explained(at, before)
    assert found.text == "b lacks the norm first"
    # In another pass, in which the norm is given other numbers, the sum differs by others.
    moved = {"second:input": stream + added, "first": 2 * stream, "first:input": WORD + stream}
    assert found.compute is not None
    np.testing.assert_allclose(
        found.compute(in_pass(moved)), norm(added + WORD, 2 * GAIN, -SHIFT), rtol=1e-9, atol=1e-9
    )
    settings["memory"].clear()
    assert OtherTerm().explain(at) == [], "nothing shows it there alone"


def test_a_residual_of_what_a_norm_is_given_is_one_of_order() -> None:
    weights = {"first.gain": GAIN, "first.shift": SHIFT}
    stream, added = norm(WORD), RANDOM.normal(size=WORD.shape)
    before = {"added": added, "first": stream, "first:input": WORD}
    at = module_site(stream + added, WORD + added, before, key="sum:input#0", held_a=weights)
    found = explained(at)
    assert found.cause == "norm-order"
    assert found.text == "b adds what the norm first is given, where a adds what it returns"
    alone = [replace(it, shared=it.name == "added") for it in at.before]
    assert explained(replace(at, before=alone)).text == "b lacks the norm first"


def test_a_residual_of_what_a_norm_returns_is_named_also_where_b_holds_it_with_an_earlier_difference() -> None:
    weights = {"layers.3.first.gain": GAIN, "layers.3.first.shift": SHIFT}
    normed, added = norm(WORD), RANDOM.normal(size=WORD.shape)
    before = {"added": added, "layers.3.first": normed, "layers.3.first:input": WORD}
    settings = {"key": "sum:input#0", "held_a": weights}
    text = "b adds what the norm layers.3.first returns, where a adds what it is given"
    found = explained(module_site(WORD + added, normed + added, before, **settings))
    assert (found.cause, found.text) == ("norm-order", text)
    earlier = module_site(normed, 3 * normed, before, **settings)
    memory = {"explained": [(earlier, replace(found, predicted=earlier.b))]}
    at = module_site(WORD + added, 3 * normed + added, before, memory=memory, **settings)
    assert explained(at).text == text
    assert all(at.off(it.predicted) > 0.1 for it in OtherTerm().explain(replace(at, memory={})))


def test_only_changes_that_explain_a_site_are_remembered() -> None:
    at = behind(WHOLE, WORD * PLACE)
    OtherTerm().explain(at)
    assert at.memory[CHANGES] == []
    a, b, *_ = CHANGED["no types"]
    at = behind(a, b)
    explained(at)
    ((_, change),) = at.memory[CHANGES]
    np.testing.assert_allclose(change, -KIND, atol=1e-6)


@pytest.mark.parametrize(("carried", "added"), [(1.0, 0.5), (0.5, 1.0)])
def test_of_two_terms_before_a_norm_the_sum_behind_says_which_is_multiplied(carried: float, added: float) -> None:
    """Twice one is half of the other there: what is carried is taken as unchanged first, and the other way is kept."""
    stream, branch, first, more = 1e3 * RANDOM.normal(size=(4, *WORD.shape))  # beside which the epsilon is nothing
    a, b = stream + branch, carried * stream + added * branch
    memory: dict[str, Any] = {}
    earlier = {"branch": branch, "stream:input": stream}

    def found(path: str, a: np.ndarray, b: np.ndarray, terms: dict[str, np.ndarray]) -> Explanation:
        weights = {f"{path}.gain": GAIN, f"{path}.shift": SHIFT}
        settings = {"key": f"{path}:output#0", "held_a": weights, "alone": [f"{path}:input"], "memory": memory}
        named = explained(module_site(norm(a), norm(b), {f"{path}:input": a, **terms}, **settings), earlier)
        earlier[f"{path}:input"] = a
        return named

    texts = [
        f"branch is multiplied by 1 in a and {added / carried:g} in b",
        f"stream:input is multiplied by 1 in a and {carried / added:g} in b",
    ]
    at_first = found("first", a, b, {"branch": branch, "stream:input": stream})
    assert [at_first.text, *(rival.text for rival in at_first.rivals)] == texts
    at_second = found("second", a + first, b + first, {"next": first, "sum:input": a})
    assert at_second.text == texts[carried != 1]
    assert at_second.compute is not None
    other = {**earlier, "branch": 2 * branch, "stream:input": 3 * stream, "second:input": a + branch + first}
    moved = carried * 3 * stream + added * 2 * branch
    np.testing.assert_allclose(
        at_second.compute(in_pass(other)), norm(moved - a + a + branch + first), rtol=1e-6, atol=1e-6
    )
    terms = {"last": more, "later:input": a + first}
    at_third = found("third", a + first + more, b + first + 3 * more, terms)
    assert at_third.text == "last is multiplied by 1 in a and 3 in b"


def test_what_is_added_is_computed_once_for_the_tensors_of_a_pass() -> None:
    calls = []

    def doubled(at: Values) -> np.ndarray:
        calls.append(at)
        return 2 * at("x")

    read, first, second = kept(doubled, ["x", "y"]), {"x": WORD, "y": PLACE}, {"x": KIND, "y": PLACE}
    for at in (first, {**first}, second, second, first):
        np.testing.assert_array_equal(read(at.__getitem__), 2 * at["x"])
    assert len(calls) == 3


def test_values_that_are_not_finite_have_no_terms() -> None:
    at = behind(*CHANGED["no types"][:2])
    assert OtherTerm().explain(replace(at, b=np.where(REAL[..., None], np.nan, at.b))) == []


def test_positions_of_another_text_than_the_batch_are_named() -> None:
    """The tokens of a decoder have a shape of their own."""
    a = PLACES[:4] + RANDOM.normal(size=(2, 4, SIZE))
    before = {"places": np.broadcast_to(PLACES[:4], a.shape), "words": a - PLACES[:4]}
    b = before["words"] + PLACES[2:6]
    pair = Pair("sum", "sum:input#0", "sum:input#0")
    at = module_site(a, b, before, key="sum:input#0", held_a={"places.W": PLACES}, roles={"places": ["p"]}, pair=pair)
    found = explained(replace(at, real=np.ones((2, 4), bool)))
    assert found.text == "the rows of places start at 0 in a and 2 in b"


@pytest.mark.parametrize("name", ["words scaled", "no types"])
def test_terms_are_named_where_b_is_rounded_to_half_precision(name: str) -> None:
    a, b, cause, text = CHANGED[name]
    at = behind(a, b, floor=0.016)
    at = replace(at, b=rounded(at.b, "bfloat16").astype(np.float64))
    found = OtherTerm().explain(at)[0]
    assert (found.cause, found.text) == (cause, text)
