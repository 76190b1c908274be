"""Another setting of an attention's core is named with its two values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.core_parts import ROUNDED
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import Tensor
from embgrad.comparison.weights import Matching, Part
from tests.unit.comparison.hypotheses.attended import (
    BEFORE,
    HEADS,
    KEY,
    OTHER,
    PAIRS,
    QUERY,
    RANDOM,
    REAL,
    SIZE,
    VALUE,
    attended,
    causal,
    everywhere,
    turned,
)
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

ROTARY: Mapping[str, Any] = {"base": 10000.0}
TABLE = RANDOM.normal(size=(8, HEADS))


def bucket(distance: int, longest: int) -> int:
    """Return the bucket of a distance, of eight buckets up to a longest one: four for each side, two of them exact."""
    start, distance = (4 if distance > 0 else 0), abs(distance)
    return start + (distance if distance < 2 else min(2 + int(math.log(distance / 2) / math.log(longest / 2) * 2), 3))


def alibi(head: int, distance: int) -> float:
    return -abs(distance) * [1 / 4, 1 / 16, 1 / 64, 1 / 256][head]


def from_table(head: int, distance: int, longest: int = 128) -> float:
    return float(TABLE[bucket(distance, longest), head])


# The reference's settings, the port's, and the cause with its text.
PLANTED: Mapping[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "scale": ({}, {"scale": 1.0}, "attention-scale", "attention scale 0.353553 in a and 1 in b"),
    "unusual scale": ({}, {"scale": 0.21}, "attention-scale", "attention scale 0.353553 in a and 0.21 in b"),
    "unusual scale in a": ({"scale": 24**-0.5}, {}, "attention-scale",
        "attention scale 0.204124 in a and 0.353553 in b"),
    "cap": ({}, {"cap": 30.0}, "attention-cap", "soft cap of the attention's scores none in a and 30 in b"),
    "cap in a": ({"cap": 2.0}, {}, "attention-cap", "soft cap of the attention's scores 2 in a and none in b"),
    "causal": ({}, {"seen": everywhere}, "attention-causal", "the mask is causal in a and missing in b"),
    "causal in b": ({"seen": everywhere}, {}, "attention-causal", "the mask is missing in a and causal in b"),
    "window": ({}, {"seen": lambda row, column: row - 3 < column <= row}, "attention-window",
        "attention window none in a and 3 in b"),
    "window in a": (
        {"seen": lambda row, column: row - 3 < column <= row},
        {"seen": lambda row, column: row - 4 < column <= row},
        "attention-window",
        "attention window 3 in a and 4 in b",
    ),
    "shift": ({}, {"seen": lambda row, column: column < row}, "attention-shift",
        "later keys that the causal mask shows 0 in a and -1 in b"),
    "shift in a": ({"seen": lambda row, column: column < row}, {}, "attention-shift",
        "later keys that the causal mask shows -1 in a and 0 in b"),
    "one ahead in a": ({"seen": lambda row, column: column <= row + 1}, {}, "attention-shift",
        "later keys that the causal mask shows 1 in a and 0 in b"),
    "padding": ({"seen": everywhere}, {"seen": everywhere, "padding": False}, "mask-ignored",
        "padding is hidden in a and attended to in b"),
    "groups": ({}, {"tiled": True}, "attention-groups",
        "keys and values are shared by neighbouring heads in a and heads at equal distances in b"),
    "heads": ({}, {"heads": 8}, "attention-heads", "heads 4 in a and 8 in b"),
    "base": ({"rotary": ROTARY}, {"rotary": {"base": 500000.0}}, "rotary-base",
        "rotary base 10000 in a and 500000 in b"),
    "unusual base": ({"rotary": ROTARY}, {"rotary": {"base": 7000.0}}, "rotary-base",
        "rotary base 10000 in a and 7000 in b"),
    "layout": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "interleaved": True}}, "rotary-layout",
        "rotary pairs are halves of the head in a and neighbouring features in b"),
    "interleaved in a": ({"rotary": {**ROTARY, "interleaved": True}}, {"rotary": {"base": 1000.0, "interleaved": True}},
        "rotary-base", "rotary base 10000 in a and 1000 in b"),
    "share": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "turned": 4}}, "rotary-partial",
        "rotary share of a head 1 in a and 0.5 in b"),
    "share of the frequencies": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "pairs": 2}}, "rotary-partial",
        "rotary share of a head 1 in a and 0.5 in b"),
    "smaller share": ({"rotary": {**ROTARY, "pairs": 2}}, {"rotary": {**ROTARY, "pairs": 1}}, "rotary-partial",
        "rotary share of a head 0.5 in a and 0.25 in b"),
    "share as of all features": ({"rotary": {**ROTARY, "turned": 4}}, {"rotary": {**ROTARY, "pairs": 2}}, "rotary-partial",
        "frequencies of rotary positions are spread over the features that are turned in a and the whole head in b"),
    "share of its own": ({"rotary": {**ROTARY, "pairs": 2}}, {"rotary": {**ROTARY, "turned": 4}}, "rotary-partial",
        "frequencies of rotary positions are spread over the whole head in a and the features that are turned in b"),
    "scaling": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "factor": 4.0}}, "rotary-scaling",
        "rotary scaling none in a and linear with factor 4 in b"),
    "no rotary": ({"rotary": ROTARY}, {}, "missing-rotary", "rotary positions are of base 10000 in a and missing in b"),
    "offset": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "ahead": 1}}, "rotary-offset",
        "positions by which queries are ahead of keys 0 in a and 1 in b"),
    **{
        f"{part} in {dtype}": (
            {"rotary": ROTARY},
            {"rotary": {**ROTARY, "rounded": (part, dtype)}},
            "rotary-in-half",
            f"rotary {part} are in float32 in a and {dtype} in b",
        )
        for part, dtype in itertools.product(ROUNDED, ["bfloat16", "float16"])
    },
    "values turned": ({"rotary": ROTARY}, {"rotary": {**ROTARY, "values": True}}, "missing-rotary",
        "rotary positions are applied to queries and keys in a and queries, keys and values in b"),
    "values turned in a": ({"rotary": {**ROTARY, "values": True}}, {"rotary": ROTARY}, "missing-rotary",
        "rotary positions are applied to queries, keys and values in a and queries and keys in b"),
    "angles in half precision in a": ({"rotary": {**ROTARY, "rounded": ("angles", "bfloat16")}}, {"rotary": ROTARY},
        "rotary-in-half", "rotary angles are in bfloat16 in a and float32 in b"),
    "slopes": ({"bias": alibi}, {"bias": lambda head, distance: -(0.1 + head) * abs(distance)}, "attention-bias",
        "the bias by distance is that of ALiBi in a and by the slopes 0.1, 1.1, 2.1, 3.1 in b"),
    "turned slopes": ({"bias": alibi}, {"bias": lambda head, distance: -alibi(head, distance)}, "attention-bias",
        "the bias by distance is that of ALiBi in a and by the slopes -0.25, -0.0625, -0.01563, -0.003906 in b"),
    "alibi": ({"bias": alibi}, {}, "attention-bias", "the bias by distance is that of ALiBi in a and missing in b"),
    "table": ({"bias": from_table, "seen": everywhere, "scale": 1.0}, {"seen": everywhere, "scale": 1.0},
        "attention-bias",
        "the bias by distance is by 8 buckets of both sides up to distance 128 in a and missing in b"),
}  # fmt: skip


SINKS = np.array([0.5, -1.0, 2.0, 0.0])
PLANTED_SINKS: Mapping[str, tuple[Callable[[int], float], Callable[[int], float], tuple[str, str]]] = {
    "missing": (lambda head: SINKS[head], lambda head: -math.inf, ("added", "missing")),
    "zero": (lambda head: -math.inf, lambda head: 0.0, ("missing", "0")),
    "zeros": (lambda head: SINKS[head], lambda head: 0.0, ("added", "0")),
    "scaled": (lambda head: SINKS[head], lambda head: SINKS[head] * SIZE**-0.5, ("added", "added times 0.353553")),
}


@pytest.mark.parametrize(("first", "second", "values"), PLANTED_SINKS.values(), ids=PLANTED_SINKS)
def test_a_score_for_no_value_is_named(
    first: Callable[[int], float], second: Callable[[int], float], values: tuple[str, str]
) -> None:
    a, b = attended(sink=first), attended(sink=second)
    found = only(site_of(a, b, BEFORE, real=REAL, weights={"layers.0.sinks": SINKS}))
    assert (found.cause, found.setting, found.values) == ("attention-bias", "the score for no value is", values)


def site_between(a: np.ndarray, b: np.ndarray, before: Mapping[str, np.ndarray] = BEFORE, **further: Any) -> Site:
    return site_of(a, b, before, real=REAL, weights={"layers.0.bias.weight": TABLE}, **further)


def only(site: Site) -> Explanation:
    found = AttentionCore().explain(site)
    assert len(found) == 1
    expect_exact(site, found[0])
    return found[0]


@pytest.mark.parametrize(("first", "second", "cause", "text"), PLANTED.values(), ids=PLANTED)
def test_a_setting_is_named(first: dict[str, Any], second: dict[str, Any], cause: str, text: str) -> None:
    found = only(site_between(attended(**first), attended(**second)))
    assert (found.cause, found.text, found.also) == (cause, text, ())


def test_two_settings_are_named() -> None:
    site = site_between(attended(rotary={"base": 10000.0}), attended(rotary={"base": 1000.0}, scale=1.0))
    found = only(site)
    assert [found.cause, *(other.cause for other in found.also)] == ["attention-scale", "rotary-base"]
    assert [other.text for other in found.also] == ["rotary base 10000 in a and 1000 in b"]


@pytest.mark.parametrize(
    ("joined", "text"),
    [
        (lambda heads: heads.swapaxes(2, 3), "the heads' outputs are joined by head in a and by feature in b"),
        (lambda heads: heads.swapaxes(1, 2), "the heads' outputs are joined by head in a and unturned in b"),
    ],
)
def test_heads_are_joined_in_another_order(joined: Any, text: str) -> None:
    a = attended()
    b = joined(a.reshape(*a.shape[:2], HEADS, SIZE)).reshape(a.shape)
    found = only(site_between(a, b))
    assert (found.cause, found.text) == ("attention-heads", text)


def test_keys_and_values_are_exchanged() -> None:
    found = only(site_between(attended(), attended(key=VALUE, value=KEY)))
    assert found.cause == "swapped-weights"
    assert [found.text, *(other.text for other in found.also)] == [
        "the key is k in a and v in b",
        "the value is v in a and k in b",
    ]


def test_a_fused_projection_is_split_in_another_way() -> None:
    whole = np.concatenate([QUERY, KEY, VALUE], -1)
    by_group = whole.reshape(*whole.shape[:2], PAIRS, 4, SIZE)
    narrow = (*whole.shape[:2], PAIRS * SIZE)
    b = attended(
        by_group[..., :2, :].reshape(QUERY.shape),
        by_group[..., 2, :].reshape(narrow),
        by_group[..., 3, :].reshape(narrow),
    )
    found = only(site_between(attended(), b, {"layers.0.attention.qkv": whole}))
    assert (found.cause, found.text) == (
        "permuted-weight",
        "the fused projection is split into queries, keys, values in a and queries, keys, values of each group of heads in b",
    )
    assert only(site_between(b, attended(), {"layers.0.attention.qkv": whole})).cause == "permuted-weight"


def test_a_fused_projection_is_split_in_another_order() -> None:
    whole = np.concatenate([QUERY, KEY, VALUE], -1)
    key, value, query = np.split(whole, [PAIRS * SIZE, 2 * PAIRS * SIZE], -1)
    found = only(site_between(attended(), attended(query, key, value), {"layers.0.attention.qkv": whole}))
    assert found.text == "the fused projection is split into queries, keys, values in a and keys, values, queries in b"
    first, *others = AttentionCore().explain(
        site_between(attended(), attended(key=VALUE, value=KEY), {"layers.0.attention.qkv": whole})
    )
    assert not others
    assert [it.text for it in (first, *first.also)] == [
        "the key is key of qkv in a and value of qkv in b",
        "the value is value of qkv in a and key of qkv in b",
    ]


def test_the_scale_after_a_fused_projection_is_named() -> None:
    whole = np.concatenate([QUERY, KEY, VALUE], -1)
    found = only(site_between(attended(), attended(scale=1.0), {"layers.0.attention.qkv": whole}))
    assert found.text == "attention scale 0.353553 in a and 1 in b"


GAINS = {"layers.0.q_norm.weight": 1 + RANDOM.random(SIZE), "layers.0.k_norm.weight": 1 + RANDOM.random(SIZE)}


def normed(values: np.ndarray, gain: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    heads = values.reshape(*values.shape[:2], -1, SIZE)
    return np.asarray(heads / np.sqrt((heads**2).mean(-1, keepdims=True) + epsilon) * gain).reshape(values.shape)


def test_norms_of_heads_that_are_no_points_are_found_by_their_weights() -> None:
    def output(epsilon: float) -> np.ndarray:
        first, second = GAINS.values()
        return attended(normed(QUERY, first, epsilon), normed(KEY, second, epsilon))

    def named(b: np.ndarray) -> str:  # with the epsilon of 1e-6, which is tried first, a is reproduced nearly
        return only(site_of(output(1e-5), b, BEFORE, real=REAL, weights=GAINS)).text

    assert named(attended()) == "the norms of queries and keys are applied in a and missing in b"
    assert named(output(1e-3)) == "epsilon 1e-05 in a and 0.001 in b"


@pytest.mark.parametrize("roles", [("queries", "keys"), ("queries",), ("keys",)])
def test_norms_without_gains_are_named(roles: tuple[str, ...]) -> None:
    unit = np.ones(SIZE)
    query, key = normed(QUERY, unit) if "queries" in roles else QUERY, normed(KEY, unit) if "keys" in roles else KEY
    which = "the norms of queries and keys are" if len(roles) > 1 else f"the norm of {roles[0]} is"
    assert only(site_between(attended(), attended(query, key))).text == f"{which} missing in a and applied in b"


def test_the_other_model_is_reproduced_first_where_the_reference_is_not() -> None:
    gains = {"layers.0.bias.weight": TABLE}
    first, second = (
        {"bias": partial(from_table, longest=longest), "seen": everywhere, "scale": 1.0} for longest in (16, 128)
    )
    found = only(site_of(attended(**first), attended(**second), BEFORE, real=REAL, weights=gains))
    assert (found.cause, found.values) == (
        "attention-bias",
        tuple(f"by 8 buckets of both sides up to distance {longest}" for longest in (16, 128)),
    )


def shared_in_part(site: Site, *names: str) -> Site:
    """Return a site at which tensors with these names are the reference's alone."""
    return replace(site, before=[replace(before, shared=before.name not in names) for before in site.before])


def test_norms_whose_outputs_the_reference_alone_has_are_computed_again() -> None:
    first, second = GAINS.values()
    own = {"q_norm": normed(QUERY, first), "k_norm": normed(KEY, second)}
    a = attended(*own.values(), rotary={"base": 10000.0})
    b = attended(normed(QUERY, second), normed(KEY, first), rotary={"base": 10000.0})
    site = shared_in_part(site_of(a, b, {**own, **BEFORE}, real=REAL, weights=GAINS), *own)
    assert only(site).text == "the gain of the norm of queries is that of queries in a and that of keys in b"


@pytest.mark.parametrize(
    ("query", "key", "text"),
    [
        ((1.0, 1e-6), (1.0, 1e-6), "the gains of the norms of queries and keys are applied in a and missing in b"),
        ((None, 1e-3), (None, 1e-3), "epsilon 1e-06 in a and 0.001 in b"),
        ((None, 2e-2), (None, 2e-2), "epsilon 1e-06 in a and 0.02 in b"),
        ((None, 1e-6), (1.0, 1e-6), None),
    ],
    ids=["no gains", "epsilon", "an epsilon that no model has", "no gain of keys"],
)
def test_other_settings_of_norms_that_are_points_of_both_models_are_named(
    query: tuple[float | None, float], key: tuple[float | None, float], text: str | None
) -> None:
    """A port computes the norms itself from what the projections return, whose outputs the reference alone has."""
    first, second = GAINS.values()
    own = {"layers.0.q_norm": normed(QUERY, first), "layers.0.k_norm": normed(KEY, second)}
    given = {"layers.0.q_norm:input": QUERY, "layers.0.k_norm:input": KEY}
    (mine, epsilon), (its, other) = query, key
    b = attended(
        normed(QUERY, first if mine is None else np.ones(SIZE), epsilon),
        normed(KEY, second if its is None else np.ones(SIZE), other),
    )
    at = site_of(attended(*own.values()), b, {**own, **given, **BEFORE}, real=REAL, weights=GAINS)
    assert [it.text for it in AttentionCore().explain(at)] == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("by_head", "scale", "text"),
    [
        (True, 1.0, "the norms of queries and keys are over all heads in a and by head in b"),
        (False, 2.0, "attention scale 0.353553 in a and 0.707107 in b"),
    ],
)
def test_norms_over_all_heads_that_are_points_of_both_models_are_told_from_those_by_head(
    by_head: bool, scale: float, text: str
) -> None:
    """OLMo 2 has such norms, and its ports compute them themselves."""
    gains = {f"layers.0.{side}_norm.weight": 1 + RANDOM.random(x.shape[-1]) for side, x in (("q", QUERY), ("k", KEY))}
    values = {"q": QUERY, "k": KEY}

    def normed_together(side: str) -> np.ndarray:
        x = values[side]
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gains[f"layers.0.{side}_norm.weight"])

    own = {f"layers.0.{side}_norm": normed_together(side) for side in values}
    given = {f"layers.0.{side}_norm:input": x for side, x in values.items()}
    its = [normed(x, np.ones(SIZE)) * gains[f"layers.0.{side}_norm.weight"] for side, x in values.items()]
    b = attended(*(its if by_head else own.values()), scale=scale * SIZE**-0.5)
    at = site_of(attended(*own.values()), b, {**own, **given, **BEFORE}, real=REAL, weights=gains)
    assert [it.text for it in AttentionCore().explain(at)] == [text]


@pytest.mark.parametrize(("missing", "name"), [("query", "queries"), ("key", "keys")])
def test_a_norm_that_the_reference_lacks_is_named_beside_one_that_it_has(missing: str, name: str) -> None:
    whole, first = {"query": QUERY, "key": KEY}, "key" if missing == "query" else "query"
    gains = {side: GAINS[f"layers.0.{side[0]}_norm.weight"] for side in whole}
    normed_in_b = {side: normed(values, gains[side]) for side, values in whole.items()}
    own = {f"layers.0.{first[0]}_norm:input": whole[first], f"layers.0.{first[0]}_norm": normed_in_b[first]}
    a = attended(**{**whole, first: normed_in_b[first]})
    at = site_of(a, attended(**normed_in_b), {**own, **BEFORE}, real=REAL, weights=GAINS)
    mine, its = at.recordings
    held = tuple(weight for weight in mine.weights if weight.module in own)
    alone = Matching((), {}, (), (f"layers.0.{missing[0]}_norm.weight",))
    sides = replace(mine, weights=held), replace(its, weights=mine.weights)
    at = replace(at, recordings=sides, matching=alone)
    assert [it.text for it in AttentionCore().explain(at)] == [f"the norm of {name} is missing in a and applied in b"]


@pytest.mark.parametrize("norms", [["a norm"], []])
def test_no_attention_is_looked_for_in_what_a_norm_returns(norms: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for one in vain takes longer than all else."""
    monkeypatch.setattr("embgrad.comparison.hypotheses.attention.norms_of", lambda site: iter(norms))
    at = site_of(attended(), attended(scale=1.0), BEFORE, real=REAL)
    assert bool(AttentionCore().explain(at)) == (not norms)


def test_what_a_module_without_weights_returns_may_have_been_turned_before() -> None:
    """The reference's norm without gains returns turned queries and keys, which the port's own function turns otherwise."""

    def turned_heads(values: np.ndarray) -> np.ndarray:
        heads = values.reshape(*REAL.shape, -1, SIZE)
        places = np.ndindex(*heads.shape[:3])
        return np.array([turned(heads[place], place[1]) for place in places]).reshape(values.shape)

    own = {"layers.0.k_norm": turned_heads(KEY), "layers.0.q_norm": turned_heads(QUERY)}
    a, b = (attended(rotary={**ROTARY, "factor": factor}) for factor in (1.0, 0.25))
    at = shared_in_part(site_of(a, b, {**own, **BEFORE}, real=REAL), *own)
    assert only(at).text == "rotary scaling none in a and linear with factor 0.25 in b"


def test_a_projection_that_the_reference_alone_outputs_is_found_transposed() -> None:
    x, matrices = RANDOM.normal(size=QUERY.shape), RANDOM.normal(size=(3, 32, 32)) / 6
    query, key, value = x[None] @ matrices[:, None]
    before = {"q": query, "k": key, "v": value, "q:input": x}
    weights = {f"layers.0.{name}.weight": matrix for name, matrix in zip("qkv", matrices, strict=True)}
    b = attended(x @ matrices[0].T, key, value)
    site = shared_in_part(site_of(attended(query, key, value), b, before, real=REAL, weights=weights), "q", "k", "v")
    entries = {f"{path}#0": Tensor(f"{path}#0", path[:-6], "input", 0, (), 0.5, x) for path in INPUTS}
    recording = replace(site.recordings[0], tensors={**entries, **site.recordings[0].tensors})
    found = only(replace(site, recordings=(recording, site.recordings[1])))
    assert (found.cause, found.text) == (
        "transposed-weight",
        "layers.0.q.weight is applied as it is in a and transposed in b",
    )


INPUTS = [f"layers.0.{name}:input" for name in "qkv"]


@pytest.mark.parametrize("side", ["a", "b"])
def test_weights_of_values_that_are_dropped_at_random_are_named(side: str) -> None:
    real = np.ones((2, 9), bool)
    value = RANDOM.normal(size=KEY.shape)

    def output(*, dropped: bool) -> np.ndarray:
        random, outputs = np.random.default_rng(4), np.zeros(QUERY.shape)
        for example, row in np.ndindex(2, 9):
            for head in range(HEADS):
                shared = slice(head // 2 * SIZE, (head // 2 + 1) * SIZE)
                scores = KEY[example, : row + 1, shared] @ QUERY[example, row, head * SIZE :][:SIZE] * SIZE**-0.5
                weights = np.exp(scores) / np.exp(scores).sum()
                kept = random.random(row + 1) > 0.2
                weights = np.where(kept, weights / 0.8, 0) if dropped else weights
                outputs[example, row, head * SIZE : (head + 1) * SIZE] = weights @ value[example, : row + 1, shared]
        return outputs

    outputs = [output(dropped=name == side) for name in "ab"]
    before = {**BEFORE, "layers.0.attention.v": value}
    (found,) = AttentionCore().explain(site_of(outputs[0], outputs[1], before, real=real))
    assert found.cause == "dropout"
    assert found.text.startswith(f"{side} draws random numbers")


def test_texts_that_are_padded_on_the_left_are_explained() -> None:
    real = REAL[:, ::-1]
    a, b = attended(real=real), attended(real=real, scale=1.0)
    found = only(site_of(a, b, BEFORE, real=real))
    assert found.text == "attention scale 0.353553 in a and 1 in b"


@pytest.mark.parametrize("name", ["window", "base", "causal", "scale"])
@pytest.mark.parametrize("left", [False, True])
def test_a_text_of_one_token_beside_a_long_one_hides_nothing(name: str, left: bool) -> None:
    first, second, cause, text = PLANTED[name]
    real = np.array([[True] * 9, [True] + [False] * 8])[:, :: -1 if left else 1]
    a, b = (attended(**settings, real=real) for settings in (first, second))
    found = AttentionCore().explain(site_of(a, b, BEFORE, real=real))
    assert [(it.cause, it.text) for it in found] == [(cause, text)]


def test_the_layers_after_the_first_are_explained_from_memory() -> None:
    memory: dict[str, Any] = {}
    first = site_between(attended(scale=0.21), attended(scale=0.13), memory=memory)
    assert only(first).values == ("0.21", "0.13")
    changed = {name.replace("layers.0", "layers.1"): values[:, ::-1] for name, values in BEFORE.items()}
    real = REAL[:, ::-1]
    sides = [attended(QUERY[:, ::-1], KEY[:, ::-1], VALUE[:, ::-1], scale=scale, real=real) for scale in (0.21, 0.13)]
    assert only(site_of(*sides, changed, real=real, memory=memory)).values == ("0.21", "0.13")


def test_declared_settings_are_tried_first() -> None:
    declared = {"heads": HEADS, "rotary_base": 123.0, "attention_scale": 0.3, "attention_cap": 3.0}
    rotary = {"base": 123.0}
    a = attended(rotary=rotary, scale=0.3, cap=3.0)
    found = only(site_between(a, attended(rotary=rotary, scale=0.3, cap=4.0), settings=(declared, {})))
    assert found.text == "soft cap of the attention's scores 3 in a and 4 in b"


@pytest.mark.parametrize(
    "a",
    [OTHER, attended() + 1e-2 * OTHER, attended(value=VALUE + 0.1 * OTHER[..., : PAIRS * SIZE]),
        attended(QUERY + 0.1 * OTHER)],
    ids=["no attention", "with noise", "other values", "other queries"],
)  # fmt: skip
def test_a_reference_that_is_not_reproduced_is_not_explained(a: np.ndarray) -> None:
    assert not AttentionCore().explain(site_between(a, attended(scale=1.0)))


@pytest.mark.parametrize(
    "b",
    [attended(scale=1.0) + 1e-2 * OTHER, attended(QUERY + 0.1 * OTHER), np.full(QUERY.shape, np.nan)],
    ids=["with noise", "other queries", "not finite"],
)
def test_a_port_that_is_not_reproduced_is_not_explained(b: np.ndarray) -> None:
    assert not AttentionCore().explain(site_between(attended(), b))


def test_a_single_position_has_no_core() -> None:
    first = slice(0, 1)
    before = {name: values[:, first] for name, values in BEFORE.items()}
    a = attended(QUERY[:, first], KEY[:, first], VALUE[:, first], real=REAL[:, first])
    assert not AttentionCore().explain(site_of(a, 2 * a, before))


def test_the_mask_of_this_module_hides_later_keys() -> None:
    assert [causal(1, column) for column in range(3)] == [True, True, False]


def test_sites_that_are_no_attention_end_the_search_at_such_sites_alone() -> None:
    memory: dict[str, Any] = {}
    good = site_between(attended(), attended(scale=1.0), memory=memory)
    other = replace(good, a=OTHER, pair=replace(good.pair, name="layers.0.mlp.last:input"))
    for _ in range(8):
        assert not AttentionCore().explain(other)
    assert only(good).cause == "attention-scale"


def test_a_search_ends_after_several_sites_of_one_kind() -> None:
    memory: dict[str, Any] = {}
    good = site_between(attended(), attended(scale=1.0), memory=memory)
    for _ in range(8):
        assert not AttentionCore().explain(replace(good, a=OTHER))
    assert not AttentionCore().explain(good)


def test_another_split_of_a_fused_projection_of_b_is_named() -> None:
    """In b the heads' queries, keys and values stand one after the other, and are taken as if all queries came first."""
    key, value = RANDOM.normal(size=(2, *QUERY.shape))
    names = {"q": QUERY, "k": key, "v": value}
    by_head = np.arange(3 * HEADS * SIZE).reshape(HEADS, 3, SIZE)
    rows = np.arange(HEADS * SIZE)
    parts = {
        f"layers.0.attention.{name}.w": (Part("fused", rows, by_head[:, number].ravel()),)
        for number, name in enumerate(names)
    }
    fused = np.empty((*QUERY.shape[:2], by_head.size))
    for number, whole in enumerate(names.values()):
        fused[..., by_head[:, number].ravel()] = whole
    taken = np.split(fused, 3, -1)
    before = {f"layers.0.attention.{name}": whole for name, whole in reversed(names.items())}
    weights = {name: np.ones((HEADS * SIZE, 1)) for name in parts}
    site = site_of(attended(QUERY, key, value), attended(*taken), before, real=REAL, weights=weights)
    site = replace(site, matching=replace(site.matching, parts=parts))
    (found,) = AttentionCore().explain(site)
    expect_exact(site, found)
    assert found.text == "the fused projection is split into the order of its weights in a and another in b"
    assert set(found.inputs) == set(before)
    other = {**parts, "layers.0.attention.v.w": (Part("another", rows, rows),)}
    assert not AttentionCore().explain(replace(site, matching=replace(site.matching, parts=other), memory={}))
