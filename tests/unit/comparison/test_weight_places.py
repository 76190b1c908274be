"""Weights are matched by the places at which both models apply them, where values do not show which belong together."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.comparison.test_weights import matched, names, single

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def test_a_vector_that_two_modules_exchange_stays_with_its_matrix() -> None:
    w, v = numbers(2, 6, 6)
    first, second = numbers(2, 6)
    a = {"key.W": w, "key.b": first, "value.W": v, "value.b": second}
    b = {"k.W": w, "k.b": second, "v.W": v, "v.b": first}
    matching = matched(a, b)
    assert names(matching) == {"key.W": "k.W", "key.b": "k.b", "value.W": "v.W", "value.b": "v.b"}
    relations = {match.a: match.relation for match in matching.matches}
    assert (relations["key.b"], relations["value.b"]) == ("equal to value.b", "equal to key.b")
    fused = {"attention.w": w, "attention.wb": first, "attention.v": v, "attention.vb": second}
    assert names(matched(a, fused)) == dict(zip(a, fused, strict=True))


@pytest.mark.parametrize("layer", ["layers.0", "block"])
@pytest.mark.parametrize("between", ["up.W", "other.W"])
def test_norms_that_b_applies_in_each_others_place_are_paired_by_place(between: str, layer: str) -> None:
    """Where no matrix stands between them in both models, b may as well compute the parts in another order."""
    w, v = numbers(2, 6, 6)
    first, second, shift, other = numbers(4, 6)
    start, end = (
        {"layers.0.start.g": first, "layers.0.start.b": shift},
        {"layers.0.end.g": second, "layers.0.end.b": other},
    )
    a = {"layers.0.q.W": w, **start, "layers.0.up.W": v, **end}
    b = {"layers.0.q.W": w, **end, f"layers.0.{between}": v, **start}
    if between == "other.W":
        b = {"layers.0.q.W": w, **end, **start, "layers.0.other.W": v}
    matching = matched(a, {name.replace("layers.0", layer): values for name, values in b.items()})
    found = {match.a: (match.b, match.relation) for match in matching.matches}
    if between == "up.W":
        assert found["layers.0.start.g"] == (f"{layer}.end.g", "equal to layers.0.end.g")
        assert found["layers.0.end.b"] == (f"{layer}.start.b", "equal to layers.0.start.b")
    else:
        assert found["layers.0.end.g"] == (f"{layer}.end.g", "equal")


def test_norms_that_b_applies_before_the_parts_that_a_applies_them_behind_are_paired_by_value() -> None:
    """Each of them crosses another one, and none stands in the place of another."""
    q, o, up = numbers(3, 6, 6)
    query, attended, output = numbers(3, 6)
    a = {"0.q.W": q, "0.query.g": query, "0.o.W": o, "0.attended.g": attended, "0.up.W": up, "0.output.g": output}
    b = {"0.attended.g": attended, "0.q.W": q, "0.query.g": query, "0.o.W": o, "0.output.g": output, "0.up.W": up}
    a, b = ({f"layers.{name}": values for name, values in side.items()} for side in (a, b))
    matching = matched(a, b)
    assert names(matching) == {name: name for name in a}
    assert all(match.is_equal for match in matching.matches)


def test_other_values_of_a_layer_have_the_partners_of_other_layers() -> None:
    """A tree of JAX lists its weights by their names, and not in the order in which they are used."""
    values = {(layer, name): numbers(6) for layer in range(3) for name in ("query", "key")}
    a = {f"layers.{layer}.{name}.W": it for (layer, name), it in values.items()}
    b = {f"layers.{layer}.{name[0]}.W": values[layer, name] for layer in range(3) for name in ("key", "query")}
    b |= {f"layers.1.{name}.W": numbers(6) for name in "kq"}
    assert names(matched(a, b)) == {name: name.replace("query", "q").replace("key", "k") for name in a}


def test_a_bias_is_no_partner_of_a_gain_at_its_place() -> None:
    a = {"q.W": numbers(4, 6), "q.bias": numbers(4)}
    for name, paired in (("norm.weight", False), ("norm_gain", False), ("q/beta:0", True), ("q.it", True)):
        found = matched(a, {"q.W": a["q.W"], name: numbers(4)})
        assert [(it.a, it.b) for it in found.matches if not it.is_equal] == ([("q.bias", name)] if paired else [])


def test_of_the_layouts_of_different_weights_at_one_place_the_nearest_counts() -> None:
    w = numbers(6, 6)
    match = single(w, np.ascontiguousarray(w.T) + 0.2 * numbers(6, 6))
    assert (match.relation, match.transposed) == ("different", True)
    assert match.distance < 0.5


def test_layers_in_another_order_are_moved_though_they_are_most() -> None:
    a = {f"layers.{number}.up.W": numbers(6, 5) for number in range(3)}
    b = {**a, "layers.0.up.W": a["layers.1.up.W"], "layers.1.up.W": a["layers.0.up.W"]}
    found = {match.a: (match.b, match.relation) for match in matched(a, b).matches}
    assert found["layers.0.up.W"] == ("layers.0.up.W", "equal to layers.1.up.W")
    assert found["layers.2.up.W"] == ("layers.2.up.W", "equal")


def test_equal_shapes_of_a_module_stay_apart_where_layers_are_in_another_order() -> None:
    """The first layer's first matrix is called after its second one, as where a framework sorts by names."""
    kinds = ["wi.0", "wi.1"]
    layers = [{kind: numbers(6, 5) for kind in kinds} for _ in range(3)]
    a = {f"layers.{number}.{kind}.W": layer[kind] for number, layer in enumerate(layers) for kind in kinds}
    turned = [(0, 1), (1, 0), (2, 2)]
    b = {f"layers.{at}.{kind}.V": layers[held][kind] for at, held in turned for kind in reversed(kinds)}
    found = {match.a: (match.b, match.relation) for match in matched(a, b).matches}
    for at, held in turned:
        for kind in kinds:
            relation = "equal" if at == held else f"equal to layers.{held}.{kind}.W"
            assert found[f"layers.{at}.{kind}.W"] == (f"layers.{at}.{kind}.V", relation)


@pytest.mark.parametrize("is_fused_in_b", [True, False])
def test_parts_of_layers_in_another_order_are_those_at_their_place(is_fused_in_b: bool) -> None:
    layers = [{name: numbers(8, 6) for name in ("up", "part.0", "part.1")} for _ in range(4)]
    order = [0, 2, 1, 3]
    split = {f"layers.{at}.{name}.W": values for at, layer in enumerate(layers) for name, values in layer.items()}
    fused: dict[str, np.ndarray] = {}
    for at, layer in enumerate(layers[held] for held in order):
        fused[f"layers.{at}.up.W"] = layer["up"]
        fused[f"layers.{at}.both.W"] = np.concatenate([layer["part.0"], layer["part.1"]])
    matching = matched(*((split, fused) if is_fused_in_b else (fused, split)))
    for at in range(4):
        if is_fused_in_b:
            (part,) = matching.parts[f"layers.{at}.part.1.W"]
            assert (part.name, part.others.tolist()) == (f"layers.{at}.both.W", list(range(8, 16)))
        else:
            parts = matching.parts[f"layers.{at}.both.W"]
            assert [part.name for part in parts] == [f"layers.{at}.part.0.W", f"layers.{at}.part.1.W"]
    assert (matching.alone_a, matching.alone_b) == ((), ())
