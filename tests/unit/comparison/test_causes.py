"""Explanations with the same values become one cause, and what all causes explain is measured by a pass of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.causes import causes_of, share_explained
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import FINAL, HeldWeight
from embgrad.comparison.sites import Pair
from embgrad.comparison.weights import Matching
from tests.unit.comparison.recorded import BATCH, IDS, REAL, Pass, Steps, recording, tensor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 6))
NOTHING = Matching((), {}, (), ())


def site(name: str, layer: int | None = None, difference: float = 0.5) -> Site:
    """Return a site at which b's output is that much longer than a's."""
    key = f"{name}:output#0"
    side = recording([tensor(key, X)])
    return Site(Pair(name, key, key), layer, X, X * (1 + difference), REAL, IDS, [], (side, side), NOTHING)


def explanation(at: Site, cause: str = "layer-norm-epsilon", off: float = 0.0, **further: Any) -> Explanation:
    """Return an explanation whose prediction is off by a relative L2."""
    settings = {"setting": "epsilon", "values": ("1e-05", "1e-06"), **further}
    return Explanation(cause, predicted=at.b * (1 + off), **settings)


def test_sites_with_the_same_values_are_one_cause() -> None:
    sites = [site(f"layers.{n}.norm", n, difference) for n, difference in ((0, 0.5), (1, 0.25), (2, 0.125))]
    (cause,) = causes_of([(at, explanation(at, off=0.01 * at.layer)) for at in sites if at.layer is not None])
    assert cause.cause == "layer-norm-epsilon"
    assert cause.text == str(cause) == "epsilon 1e-05 in a and 1e-06 in b, layers 0–2"
    assert cause.values == ("1e-05", "1e-06")
    assert cause.sites == ("layers.0.norm", "layers.1.norm", "layers.2.norm")
    assert cause.layers == (0, 1, 2)
    assert cause.difference == pytest.approx(0.5)
    assert cause.remaining == pytest.approx(0.02)


def test_an_explanation_may_be_of_another_layer_than_its_site() -> None:
    sites = [site(f"layers.{number}.q:input", number) for number in (1, 2)]
    (cause,) = causes_of([(at, explanation(at, layer=number)) for number, at in enumerate(sites)])
    assert (cause.text, cause.layers) == ("epsilon 1e-05 in a and 1e-06 in b, layers 0–1", (0, 1))


def test_other_values_are_another_cause_and_the_largest_is_first() -> None:
    sites = [site("layers.0.norm", 0, 0.125), site("layers.1.norm", 1, 0.5), site("layers.2.norm", 2, 0.25)]
    values = [("1", "2"), ("1", "3"), ("1", "2")]
    first, second = causes_of([(at, explanation(at, values=held)) for at, held in zip(sites, values, strict=True)])
    assert (first.text, first.sites) == ("epsilon 1 in a and 3 in b, layer 1", ("layers.1.norm",))
    assert (second.text, second.layers) == ("epsilon 1 in a and 2 in b, layers 0, 2", (0, 2))
    assert (first.difference, second.difference) == (pytest.approx(0.5), pytest.approx(0.25))


def test_of_explanations_that_a_site_cannot_tell_apart_the_most_frequent_one_is_taken() -> None:
    sites = [site(f"layers.{number}.norm", number) for number in (1, 2, 3)]

    def multiplied(at: Site, path: str, number: str, **further: Any) -> Explanation:
        values = {"setting": f"{path} is multiplied by", "values": ("1", number)}
        return explanation(at, "residual-scale", **values, **further)

    halves = [multiplied(at, f"layers.{number}.mlp", "0.5") for number, at in enumerate(sites)]
    either = [
        multiplied(at, f"layers.{number}.norm:input", "2", rivals=(half,))
        for number, (at, half) in enumerate(zip(sites, halves, strict=True))
    ]
    (cause,) = causes_of(list(zip(sites, [*either[:2], halves[2]], strict=True)))
    assert cause.text == "layers.N.mlp is multiplied by 1 in a and 0.5 in b, layers 0–2"
    assert cause.remaining == pytest.approx(0.0)
    (cause,) = causes_of(list(zip(sites, either, strict=True)))  # none of which is more frequent
    assert cause.text == "layers.N.norm:input is multiplied by 1 in a and 2 in b, layers 0–2"


def test_a_number_that_one_site_shows_roughly_is_that_of_the_sites_that_show_it() -> None:
    first, *later = [site(f"layers.{number}.norm", number) for number in (0, 1, 2)]
    scaled = {"cause": "scaled-lookup", "setting": "table is multiplied by"}
    rough = explanation(first, **scaled, values=("1", "10"))
    either = explanation(first, rivals=(rough,))
    exact = [explanation(at, **scaled, values=("1", "12")) for at in later]
    (cause,) = causes_of([(first, either), *zip(later, exact, strict=True)])
    assert cause.text == "table is multiplied by 1 in a and 12 in b, layers 0–2"
    (cause,) = causes_of([(first, explanation(first, rivals=(rough, rough)))])  # one rival, though it is named twice
    assert cause.cause == "layer-norm-epsilon"


def test_a_norm_of_an_earlier_layer_is_named_with_its_own_layer() -> None:
    sites = [site(f"layers.{number}.mlp", number) for number in (1, 2)]
    norm = "layers.0.norm"
    text = f"b adds what the norm {norm} returns, where a adds what it is given"
    found = [explanation(at, "norm-order", setting=f"the norm {norm}", sentence=text) for at in sites]
    (cause,) = causes_of(list(zip(sites, found, strict=True)))
    assert cause.text == "b adds what the norm layers.N.norm returns, where a adds what it is given, layer 0"
    assert cause.layers == (0,)


@pytest.mark.parametrize("field", ["cause", "setting"])
def test_another_cause_or_setting_is_apart(field: str) -> None:
    sites = [site("norm"), site("other")]
    explained = [(at, explanation(at, **{field: value})) for at, value in zip(sites, ("x", "y"), strict=True)]
    assert len(causes_of(explained)) == 2


@pytest.mark.parametrize(
    ("layers", "text"),
    [([0], "layer 0"), ([0, 1], "layers 0–1"), ([0, 1, 2, 5, 7, 8], "layers 0–2, 5, 7–8"), ([3, 1], "layers 1, 3"),
        ([4, 4], "layer 4"), ([10, 9, 11], "layers 9–11")],
)  # fmt: skip
def test_layers_are_written_as_spans(layers: list[int], text: str) -> None:
    sites = [site(f"layers.{n}.norm", n) for n in layers]
    (cause,) = causes_of([(at, explanation(at)) for at in sites])
    assert cause.text == f"epsilon 1e-05 in a and 1e-06 in b, {text}"


def test_outside_of_the_layers_the_first_point_is_named() -> None:
    sites = [site("norm"), site("other")]
    (cause,) = causes_of([(at, explanation(at)) for at in sites])
    assert cause.text == "epsilon 1e-05 in a and 1e-06 in b, at norm"
    assert cause.layers == ()


def equal_to(at: Site, layer: int, name: str) -> Explanation:
    sentence = f"b has layers.{at.layer}.{name}.W equal to a's layers.{layer}.{name}.W"
    return explanation(at, "swapped-weights", setting=f"layers.{at.layer}.{name}.W", sentence=sentence)


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        ({2: 1}, "b has the weights of a's layer 1 in layer 2"),
        ({0: 2, 2: 0}, "b has the weights of a's layers 2, 0 in layers 0, 2"),
    ],
)
def test_the_weights_of_whole_layers_are_one_cause(moves: dict[int, int], text: str) -> None:
    names = ("query", "up", "norm1")
    explained = [(site(f"{n}.{name}", n), moves[n], name) for n in moves for name in names]
    (cause,) = causes_of([(at, equal_to(at, layer, name)) for at, layer, name in explained])
    assert (cause.text, cause.layers) == (text, tuple(moves))
    assert len(cause.sites) == 3 * len(moves)


def test_two_modules_of_another_layer_are_causes_of_their_own() -> None:
    sites = [(site(name, 2), name) for name in ("query", "up")]
    causes = causes_of([(at, equal_to(at, 1, name)) for at, name in sites])
    assert [cause.text for cause in causes] == [
        f"b has layers.N.{name}.W equal to a's layers.1.{name}.W, layer 2" for _, name in sites
    ]


def test_points_of_a_single_norm_of_another_layer_are_one_cause() -> None:
    sites = [site(f"layers.2.{name}:input", 2) for name in ("query", "key", "value")]
    (cause,) = causes_of([(at, equal_to(at, 1, "norm")) for at in sites])
    assert cause.text == "b has layers.N.norm.W equal to a's layers.1.norm.W, layer 2"


def test_what_lies_outside_of_the_layers_that_hand_it_on_has_no_layers() -> None:
    sites = [site(f"layers.{n}.norm", n) for n in (0, 1)]
    held = HeldWeight("embeddings.types.W", "embeddings.types", (2, 2), lambda: np.zeros((2, 2)))
    for at in sites:
        object.__setattr__(at.recordings[0], "weights", (held,))
    for sentence, layers in (("b lacks embeddings.types", ()), ("b lacks embeddings.types.W", (0, 1))):
        (cause,) = causes_of([(at, explanation(at, sentence=sentence)) for at in sites])
        assert cause.layers == layers


def test_a_module_called_norm_is_not_the_norm_of_keys() -> None:
    at = site("layers.0.attention:output", 0)
    held = HeldWeight("norm.W", "norm", (2,), lambda: np.zeros(2))
    object.__setattr__(at.recordings[0], "weights", (held,))
    for sentence, layers in (("b lacks the norm of keys", (0,)), ("b lacks the norm norm", ())):
        (cause,) = causes_of([(at, explanation(at, sentence=sentence))])
        assert cause.layers == layers


def test_a_sentence_that_names_the_place_gets_no_other() -> None:
    at = site("norm")
    (cause,) = causes_of([(at, explanation(at, sentence="b lacks the norm norm"))])
    assert cause.text == "b lacks the norm norm"


def test_paths_of_layers_are_written_once() -> None:
    sites = [site(f"layers.{n}.up", n) for n in (0, 1)]
    explained = [
        (
            at,
            explanation(at, setting=f"layers.{at.layer}.up.W", sentence=f"b uses layers.{at.layer}.up.W transposed"),
        )
        for at in sites
    ]
    (cause,) = causes_of(explained)
    assert cause.text == "b uses layers.N.up.W transposed, layers 0–1"


def test_a_number_is_no_place_of_a_layer() -> None:
    at = [(at, explanation(at, values=("0.1", "-1.1"))) for at in (site("layers.0.o", 0), site("layers.1.o", 1))]
    (cause,) = causes_of(at)
    assert cause.values == ("0.1", "-1.1")


def test_rounded_weights_are_one_cause_whatever_their_names() -> None:
    sites = [site("layers.0.up", 0), site("layers.0.down", 0), site("head")]
    explained = [
        (
            at,
            explanation(
                at,
                "half-weights",
                setting=f"{at.name}.W",
                values=("a's own", f"{at.name} rounded"),
                sentence=f"b has {at.name}.W rounded to float16",
            ),
        )
        for at in sites
    ]
    (cause,) = causes_of(explained)
    assert cause.text == "b has the weights of 3 modules rounded to float16, layer 0"
    assert cause.sites == ("layers.0.up", "layers.0.down", "head")
    (single,) = causes_of(explained[2:])
    assert single.text == "b has head.W rounded to float16"


def test_further_settings_are_causes_of_their_own() -> None:
    at = site("core", 1)
    both = explanation(at, also=(explanation(at, "attention-scale", setting="scale", values=("1", "2")),))
    assert [cause.cause for cause in causes_of([(at, both)])] == ["layer-norm-epsilon", "attention-scale"]


def test_sites_without_an_explanation_give_no_cause() -> None:
    assert causes_of([(site("norm"), None)]) == ()
    assert causes_of([]) == ()


#: A model of three steps, and a port with another second step.
STEPS: Steps = {
    "x": lambda at: X,
    "up:output#0": lambda at: 2 * at["x"],
    "down:output#0": lambda at: at["up:output#0"] + 1,
    FINAL: lambda at: 10 * at["down:output#0"],
}
PORT: Steps = {**STEPS, "up:output#0": lambda at: 4 * at["x"]}
PAIRS = [Pair(name, key, key) for name, key in zip(("x", "up", "down", FINAL), STEPS, strict=True)]


def explained_at(
    name: str, compute: Callable[[Callable[[str], np.ndarray]], np.ndarray] | None, *inputs: str
) -> tuple[Site, Explanation]:
    at = site(name)
    return at, Explanation("x", "x", ("1", "2"), X, compute, inputs)


def share(
    *explained: tuple[Site, Explanation], port: Steps = PORT, pairs: list[Pair] = PAIRS, **further: Any
) -> float | None:
    return share_explained(pairs, Pass(STEPS, **further).record(), Pass(port).record(), explained)


@pytest.mark.parametrize(
    ("factor", "wanted"),
    [(4, 1.0), (3, 0.75), (2, 0.0), (6, 0.0), (0, -3.0)],  # 1 - ((4 - factor) / (4 - 2))²
)
def test_the_share_is_of_the_squared_difference_of_the_outputs(factor: float, wanted: float) -> None:
    assert share(explained_at("up", lambda at: factor * at("x"), "x")) == pytest.approx(wanted)


def test_the_functions_of_several_sites_are_put_in_together() -> None:
    port: Steps = {**PORT, "down:output#0": lambda at: at["up:output#0"] - 3}
    first = explained_at("up", lambda at: 4 * at("x"), "x")
    second = explained_at("down", lambda at: at("up") - 3, "up")
    assert share(first, second, port=port) == pytest.approx(1)
    alone = share(second, port=port)
    rest = ((2 * X[REAL]) ** 2).sum() / ((2 * X[REAL] - 4) ** 2).sum()
    assert alone == pytest.approx(1 - rest)


def test_the_output_itself_may_be_explained() -> None:
    port: Steps = {**STEPS, FINAL: lambda at: 30 * at["down:output#0"]}
    assert share(explained_at(FINAL, lambda at: 30 * at("down"), "down"), port=port) == pytest.approx(1)
    assert share(explained_at(FINAL, lambda at: 20 * at("down"), "down"), port=port) == pytest.approx(0.75)


def test_tensors_of_the_reference_alone_may_be_read() -> None:
    pairs = [PAIRS[0], *PAIRS[2:]]
    port: Steps = {**STEPS, "down:output#0": lambda at: at["up:output#0"] + 7}
    assert share(explained_at("down", lambda at: at("up") + 7, "up"), port=port, pairs=pairs) == pytest.approx(1)


def test_the_last_pair_may_be_a_point() -> None:
    assert share(explained_at("up", lambda at: 3 * at("x"), "x"), pairs=PAIRS[:3]) == pytest.approx(0.75)


def test_padding_does_not_count() -> None:
    port: Steps = {
        **STEPS,
        FINAL: lambda at: np.where(REAL[..., None], 10 * (4 * at["x"] + 1), 1e6),
    }
    assert share(explained_at("up", lambda at: 4 * at("x"), "x"), port=port) == pytest.approx(1)


def test_functions_see_the_features_of_a_pair_in_the_order_of_the_reference() -> None:
    rows = np.array([4, 1])
    port: Steps = {
        **STEPS,
        "up:output#0": lambda at: np.stack([2 * at["x"][..., n] * (3 if n in rows else 1) for n in range(6)], -1),
    }
    pairs = [PAIRS[0], Pair("up[some]", "up:output#0", "up:output#0", rows, rows), *PAIRS[2:]]
    found = explained_at("up[some]", lambda at: 6 * at("x")[..., rows], "x")
    assert share(found, port=port, pairs=pairs) == pytest.approx(1)


def test_the_share_is_not_measured_where_a_function_is_not_known() -> None:
    known = explained_at("up", lambda at: 4 * at("x"), "x")
    assert share() is None
    assert share(known, explained_at("down", None)) is None
    assert share(known, can_be_led=False) is None


def test_models_with_equal_outputs_have_no_share() -> None:
    assert share(explained_at("up", lambda at: 2 * at("x"), "x"), port=STEPS) is None


def test_models_without_positions_are_compared_whole() -> None:
    steps: Steps = {"pooled": lambda at: X[:, :1], FINAL: lambda at: 2 * at["pooled"]}
    port: Steps = {"pooled": lambda at: X[:, :1], FINAL: lambda at: 4 * at["pooled"]}
    pairs = [Pair(key, key, key) for key in steps]
    at = site(FINAL)
    found = [(at, Explanation("x", "x", ("", ""), X, lambda at: 3 * at("pooled"), ("pooled",)))]
    assert BATCH.shape != (2, 1)
    assert share_explained(pairs, Pass(steps).record(), Pass(port).record(), found) == pytest.approx(0.75)


@pytest.mark.parametrize(("count", "wanted"), [(4, 4), (5, 1)])
def test_other_values_in_many_modules_are_one_cause(count: int, wanted: int) -> None:
    sites = [site(f"layers.{n}.up", n, 1 / (n + 1)) for n in range(count)]
    explained = [
        (
            at,
            explanation(
                at,
                "different-weight",
                setting=f"{at.name}.W",
                values=("a's own", f"with other values (relative L2 1.{at.layer}e-03)"),
                sentence=f"b has {at.name}.W with other values (relative L2 1.{at.layer}e-03)",
            ),
        )
        for at in sites
    ]
    norm = site("norm", difference=0.01)
    causes = causes_of([*explained, (norm, explanation(norm))])
    assert len(causes) == wanted + 1
    assert causes[-1].cause == "layer-norm-epsilon"
    if wanted == 1:
        assert (
            causes[0].text == "b has the weights of 5 modules with other values, as another checkpoint has, layers 0–4"
        )
        assert causes[0].sites == tuple(at.name for at in sites)
        assert causes[0].difference == 1.0


def test_of_several_pairs_at_one_point_the_first_is_read_by_the_others() -> None:
    others = [f"up ({number})" for number in range(2, 9)]
    pairs = [*PAIRS[:2], *(Pair(name, "up:output#0", "up:output#0") for name in others), *PAIRS[2:]]
    for name in others:
        assert share(explained_at(name, lambda at: 2 * at("up"), "up"), pairs=pairs) == pytest.approx(1)


def test_a_cause_is_not_where_its_difference_goes_on() -> None:
    first, second = site("layers.0.norm", 0), site("layers.1.norm", 1)
    (cause,) = causes_of([(first, explanation(first)), (second, explanation(second, goes_on=True))])
    assert (cause.text, cause.sites) == ("epsilon 1e-05 in a and 1e-06 in b, layer 0", ("layers.0.norm",))
