"""Bisection on the reference: the layer and the module of a fault are named, forward and backward."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, EmbgradError, ObjectiveError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM, LAYERS = 6, 4
IDS = np.random.default_rng(1).permutation(np.arange(1, 25))[:12].reshape(3, 4)
OBJECTIVE = embgrad.Projection([1.0, -2.0, 0.5])

#: Faults, by the path at which they change the tensor.
Hooks = Mapping[str, Callable[[Tensor], Tensor]]


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    actual = {"table": random.normal(size=(30, DIM)), "places": random.normal(size=(9, DIM))}
    for layer in range(LAYERS):
        actual |= {
            f"layers.{layer}.up.W": random.normal(size=(DIM, DIM)) / 2,
            f"layers.{layer}.up.b": random.normal(size=DIM) / 2,
            f"layers.{layer}.down.W": random.normal(size=(DIM, DIM)) / 2,
            f"layers.{layer}.down.b": random.normal(size=DIM) / 2,
        }
    return {**actual, "head.W": random.normal(size=(DIM, 3))}


def model(
    changes: Mapping[str, np.ndarray] | None = None, hooks: Hooks | None = None, offset: int = 0, layers: int = LAYERS
) -> ReferenceModel:
    at: Hooks = hooks or {}

    def linear(m: ReferenceModel, path: str, hidden: Tensor) -> Tensor:
        def compute(given: Tensor) -> Tensor:
            made = given @ m[f"{path}.W"] + m[f"{path}.b"]
            return at.get(path, lambda x: x)(made)

        return m.module(path, compute, hidden)

    def layer(m: ReferenceModel, path: str, hidden: Tensor) -> Tensor:
        def compute(given: Tensor) -> Tensor:
            bent = at.get(f"{path}.activation", lambda x: x)(linear(m, f"{path}.up", given).tanh())
            return at.get(f"{path}.residual", lambda x: x)(given) + linear(m, f"{path}.down", bent)

        return m.module(path, compute, hidden)

    def forward(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
        def embed(ids: np.ndarray) -> Tensor:
            return lookup(m["table"], ids) + lookup(m["places"], offset + np.arange(ids.shape[1])[None])

        hidden = m.module("embed", embed, input_ids)
        for number in range(layers):
            hidden = layer(m, f"layers.{number}", hidden)
        return at.get("logits", lambda x: x)(hidden.mean(1) @ m["head.W"])

    paths = [f"layers.{n}{part}" for n in range(LAYERS) for part in ("", ".up", ".down")]
    return ReferenceModel(forward, {**weights(), **(changes or {})}, ["embed", *paths])


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor * factor


def with_wrong_gradient(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: Tensor(tensor.value, [(tensor, lambda g: g * factor)])


def noisy(scale: float) -> Callable[[Tensor], Tensor]:
    random = np.random.default_rng(5)
    return lambda tensor: tensor + Tensor(scale * random.normal(size=tensor.value.shape))


def test_equal_models_agree_at_every_role() -> None:
    actual = embgrad.bisect(model(), model(), IDS, OBJECTIVE)
    assert actual.agrees
    assert (actual.first, actual.direction, actual.module, actual.parameters) == (None, None, None, ())
    names = [item.name for item in actual.steps]
    assert names[:6] == [
        "word",
        "position",
        "embeddings",
        "layers.0.up:input",
        "layers.0.up:output",
        "layers.0.down:input",
    ]
    assert names[-3:] == ["layer.3", "output", "objective"]
    assert all(item.agrees and item.forward == 0 for item in actual.steps)
    assert all(item.backward == 0 for item in actual.steps if item.name.startswith("layer."))
    assert actual.tolerance is None
    assert (
        actual.text == "The models agree at all 24 points and in the objective, forward and backward, up to rounding."
    )


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize(("part", "kind"), [("up", "W"), ("down", "b")])
@pytest.mark.parametrize("size", [1e-2, 1e-9])
def test_a_different_weight_is_named(layer: int, part: str, kind: str, size: float) -> None:
    name = f"layers.{layer}.{part}.{kind}"
    actual = embgrad.bisect(model(), model({name: weights()[name] * (1 + size)}), IDS, OBJECTIVE)
    assert (actual.first, actual.direction) == (f"layer.{layer}", "forward")
    assert actual.after == (f"layer.{layer - 1}" if layer else "embeddings")
    assert actual.module == f"layers.{layer}.{part}"
    assert [(item.a, item.b) for item in actual.parameters if item.differs] == [(name, name)]
    assert actual.parameters[0].relation == "different"
    assert actual.parameters[0].relative_l2 == pytest.approx(size, rel=1e-5)
    assert actual.parameters[1].relation == "equal"
    assert name in actual.text


def test_a_transposed_weight_and_swapped_weights_are_named() -> None:
    up, down = "layers.2.up.W", "layers.2.down.W"
    turned = embgrad.bisect(model(), model({up: weights()[up].T}), IDS, OBJECTIVE)
    assert (turned.first, turned.module) == ("layer.2", "layers.2.up")
    assert (turned.parameters[0].a, turned.parameters[0].relation) == (up, "transposed")
    swapped = embgrad.bisect(model(), model({up: weights()[down], down: weights()[up]}), IDS, OBJECTIVE)
    assert (swapped.first, swapped.module) == ("layer.2", "layers.2")
    assert [(weight.a, weight.relation) for weight in swapped.parameters if weight.differs] == [
        (up, f"swapped with {down}"),
        (down, f"swapped with {up}"),
    ]
    holding = embgrad.bisect(model(), model({up: weights()["layers.0.up.W"]}), IDS, OBJECTIVE)
    assert holding.parameters[0].relation == "equal to layers.0.up.W"


def test_weights_belong_together_by_value_and_not_by_name() -> None:
    renamed = {name: f"net.{name.replace('layers', 'blocks').replace('up', 'wide')}" for name in weights()}

    def port(scale: float) -> ReferenceModel:
        def linear(m: ReferenceModel, path: str, hidden: Tensor) -> Tensor:
            return m.module(path, lambda given: given @ m[f"{path}.W"] + m[f"{path}.b"], hidden)

        def layer(m: ReferenceModel, path: str, hidden: Tensor) -> Tensor:
            return m.module(path, lambda x: x + linear(m, f"{path}.down", linear(m, f"{path}.wide", x).tanh()), hidden)

        def forward(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
            places = lookup(m["net.places"], np.arange(input_ids.shape[1])[None])
            hidden = lookup(m["net.table"], input_ids) + places
            for number in range(LAYERS):
                hidden = layer(m, f"net.blocks.{number}", hidden)
            return hidden.mean(1) @ m["net.head.W"]

        arrays = {renamed[name]: value for name, value in weights().items()}
        arrays["net.blocks.2.wide.W"] = arrays["net.blocks.2.wide.W"] * scale
        return ReferenceModel(
            forward, arrays, [f"net.blocks.{n}{part}" for n in range(LAYERS) for part in ("", ".wide", ".down")]
        )

    assert embgrad.bisect(model(), port(1.0), IDS, OBJECTIVE).agrees
    actual = embgrad.bisect(model(), port(2.0), IDS, OBJECTIVE)
    assert (actual.first, actual.module) == ("layer.2", "layers.2.up")
    pairs = [(weight.a, weight.b, weight.relation) for weight in actual.parameters]
    assert pairs == [
        ("layers.2.up.W", "net.blocks.2.wide.W", "times 2"),
        ("layers.2.up.b", "net.blocks.2.wide.b", "equal"),
    ]
    assert "'layers.2.up.W' (times 2, relative L2 1.0e+00, in b 'net.blocks.2.wide.W')" in actual.text


def test_a_different_computation_with_equal_weights_is_named() -> None:
    actual = embgrad.bisect(model(), model(hooks={"layers.1.up": scaled(1.01)}), IDS, OBJECTIVE)
    assert (actual.first, actual.module) == ("layer.1", "layers.1.up")
    assert [item.relation for item in actual.parameters] == ["equal", "equal"]
    assert "Its 2 weights agree, so the computation there differs" in actual.text


def test_the_cause_is_named_where_it_is_known() -> None:
    added = model(hooks={"layers.1.residual": scaled(0.0)})
    actual = embgrad.bisect(model(), added, IDS, OBJECTIVE)
    assert actual.text.endswith("Cause: layers.N.up:input is added in a and left out in b, layer 1.")
    assert "check an epsilon" not in actual.text
    unknown = embgrad.bisect(model(), model(hooks={"layers.1.up": lambda x: (x * 3.0).tanh()}), IDS, OBJECTIVE)
    assert "check an epsilon" in unknown.text
    assert "Cause" not in unknown.text


def test_an_operation_between_modules_belongs_to_their_parent() -> None:
    actual = embgrad.bisect(model(), model(hooks={"layers.3.activation": scaled(1.01)}), IDS, OBJECTIVE)
    assert (actual.first, actual.module) == ("layer.3", "layers.3")
    assert "they diverge at 'layers.3.down:input' and agree at 'layers.3.up:output'" in actual.text
    assert actual.parameters == ()
    dropped = embgrad.bisect(model(), model(hooks={"layers.0.residual": scaled(0.0)}), IDS, OBJECTIVE)
    assert (dropped.first, dropped.module) == ("layer.0", "layers.0")
    assert "The difference lies in 'layers.0': they agree at 'layers.0.down:output'" in dropped.text


@pytest.mark.parametrize(
    ("path", "module"),
    [("layers.2.up", "layers.2.up"), ("layers.2.activation", "layers.2"), ("layers.2.residual", "layers.2")],
)
def test_a_different_backward_pass_is_named(path: str, module: str) -> None:
    actual = embgrad.bisect(model(), model(hooks={path: with_wrong_gradient(1.5)}), IDS, OBJECTIVE)
    assert (actual.first, actual.direction, actual.after) == ("layer.1", "backward", "layer.2")
    assert actual.module == module
    by_name = {item.name: item for item in actual.steps}
    assert all(by_name[f"layer.{n}"].agrees is (n > 1) for n in range(LAYERS))
    assert by_name["objective"].agrees
    assert "All values agree. In the backward pass the gradients agree at" in actual.text


def test_a_gradient_that_does_not_reach_a_point_is_named() -> None:
    cut: Hooks = {"logits": lambda tensor: tensor.detach()}
    actual = embgrad.bisect(model(), model(hooks=cut), IDS, OBJECTIVE)
    assert (actual.first, actual.direction, actual.after) == ("layer.3", "backward", "objective")
    assert "diverge at 'layer.3', which no gradient reaches in b." in actual.text
    assert not next(item for item in actual.steps if item.name == "layer.3").agrees
    inside: Hooks = {
        "layers.2.activation": lambda tensor: tensor.detach(),
        "layers.2.residual": lambda tensor: tensor.detach(),
    }
    actual = embgrad.bisect(model(), model(hooks=inside), IDS, OBJECTIVE)
    assert (actual.first, actual.direction, actual.after) == ("layer.1", "backward", "layer.2")
    assert actual.module == "layers.2"
    both = embgrad.bisect(model(hooks=cut), model(hooks=cut), IDS, OBJECTIVE)
    assert both.agrees
    assert both.text == "The models agree at all 24 points and in the objective, forward, up to rounding."


def test_a_different_table_or_different_rows_are_named() -> None:
    actual = embgrad.bisect(model(), model({"table": weights()["table"] * 1.01}), IDS, OBJECTIVE)
    assert (actual.first, actual.parameters[0].a, actual.parameters[0].relation) == ("word", "table", "different")
    moved = embgrad.bisect(model(), model(offset=2), IDS, OBJECTIVE)
    assert (moved.first, moved.direction) == ("position", "forward")
    assert [item.relation for item in moved.parameters] == ["equal"]
    assert "the rows of places start at 0 in a and 2 in b" in moved.text


def test_a_different_head_or_objective_is_named() -> None:
    actual = embgrad.bisect(model(), model({"head.W": weights()["head.W"] * 1.01}), IDS, OBJECTIVE)
    assert (actual.first, actual.direction, actual.after) == ("output", "forward", "layer.3")
    assert [first.a for first in actual.parameters if first.differs] == ["head.W"]
    functions = (lambda logits: logits.column(1), lambda logits: logits.column(1) * 2.0)
    second = embgrad.bisect(model(), model(), IDS, functions)
    assert (second.first, second.after, second.module) == ("objective", "output", None)
    assert not any(first.differs for first in second.parameters)


def test_an_objective_that_cancels_to_rounding_agrees() -> None:
    logits = embgrad.gradients(model(), IDS, embgrad.Sum(), at="layer.3").activations.mean(1) @ weights()["head.W"]
    across = np.cross(logits[0], logits[1])  # of two examples the projection is zero but for rounding
    objective = embgrad.Projection(across / np.linalg.norm(across) + 1e-9)
    rounded = model({"head.W": weights()["head.W"] * (1 + 1e-15)})
    actual = embgrad.bisect(model(), rounded, IDS[:2], objective)
    assert actual.first is None
    slightly = embgrad.bisect(model(), model(), IDS[:2], (OBJECTIVE, embgrad.Projection([1.0, -2.0, 0.500001])))
    assert slightly.first == "objective"


@pytest.mark.parametrize("examples", [3, 1])
def test_a_random_model_is_named(examples: int) -> None:
    ids = IDS[:examples]
    actual = embgrad.bisect(model(), model(hooks={"layers.1.up": noisy(0.1)}), ids, OBJECTIVE)
    assert dict(actual.random) == {"b": "layer.1"}
    assert (actual.first, actual.direction, actual.module) == ("layer.1", "forward", "layers.1.up")
    assert not actual.agrees
    assert "b gives different results when run again, first at 'layer.1'" in actual.text
    alone = embgrad.bisect(model(hooks={"layers.2.up": noisy(0.1)}), model(), ids, OBJECTIVE)
    assert dict(alone.random) == {"a": "layer.2"}


def test_random_numbers_of_a_restored_generator_are_recognised() -> None:
    def drawing(tensor: Tensor) -> Tensor:
        return tensor * Tensor(np.random.default_rng(0).random(tensor.value.shape))

    actual = embgrad.bisect(model(), model(hooks={"layers.2.activation": drawing}), IDS, OBJECTIVE)
    assert dict(actual.random) == {"b": "layer.2"}
    assert actual.module == "layers.2"


def test_the_tolerance_decides() -> None:
    name = "layers.1.up.W"
    other = model({name: weights()[name] * 1.001})
    assert embgrad.bisect(model(), model(), IDS, OBJECTIVE, tolerance=0).agrees
    assert embgrad.bisect(model(), other, IDS, OBJECTIVE, tolerance=0.5).agrees
    assert not embgrad.bisect(model(), other, IDS, OBJECTIVE, tolerance=1e-6).agrees
    larger = model({name: weights()[name] * 1.001}, {"layers.3.activation": scaled(1.5)})
    actual = embgrad.bisect(model(), larger, IDS, OBJECTIVE, tolerance=0.02)
    assert (actual.first, actual.after, actual.tolerance) == ("layer.3", "layer.2", 0.02)
    dropped = model({name: weights()[name] * 1.001}, {"layers.3.residual": scaled(0.0)})
    text = embgrad.bisect(model(), dropped, IDS, OBJECTIVE, tolerance=0.02).text
    assert text.endswith("differs. Cause: layers.N.up:input is added in a and left out in b, layer 3.")
    twisted = model(hooks={"layers.2.up": with_wrong_gradient(1.001)})
    assert embgrad.bisect(model(), twisted, IDS, OBJECTIVE, tolerance=0.02).agrees
    actual = embgrad.bisect(model(), twisted, IDS, OBJECTIVE, tolerance=1e-6)
    assert (actual.first, actual.direction, actual.module) == ("layer.1", "backward", "layers.2.up")
    assert embgrad.bisect(model(), other, IDS, OBJECTIVE, tolerance=np.float32(0.5)).agrees  # type: ignore[arg-type]
    for wrong in (-1, float("nan"), "small", True):
        with pytest.raises(EmbgradError, match="expected a number of at least 0"):
            embgrad.bisect(model(), other, IDS, OBJECTIVE, tolerance=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("at_pads", "elsewhere", "agrees"), [(7.0, 0.0, True), (0.0, 1e-3, False)])
def test_values_are_compared_at_real_positions(at_pads: float, elsewhere: float, agrees: bool) -> None:
    def sequence(at_pads: float = 0.0, elsewhere: float = 0.0) -> ReferenceModel:
        def forward(m: ReferenceModel, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
            hidden = lookup(m["table"], input_ids)
            moved = Tensor(np.where(attention_mask, elsewhere, at_pads)[..., None])
            for number in range(2):
                hidden = m.module(f"layers.{number}", lambda x: x.tanh() + moved, hidden)
            return hidden

        return ReferenceModel(forward, weights(), ["layers.0", "layers.1"])

    batch = embgrad.TokenBatch(IDS, [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    actual = embgrad.bisect(sequence(), sequence(at_pads, elsewhere), batch, embgrad.Projection(np.arange(6.0)))
    assert actual.agrees is agrees


def test_an_objective_that_is_not_finite_is_named() -> None:
    bad = weights()["head.W"].copy()
    bad[0, 0] = np.nan
    actual = embgrad.bisect(model(), model({"head.W": bad}), IDS, OBJECTIVE)
    assert (actual.first, actual.direction) == ("output", "forward")
    assert "B alone: " in actual.text
    assert [item.a for item in actual.parameters if item.differs] == ["head.W"]
    with pytest.raises(ObjectiveError):
        embgrad.bisect(model({"head.W": bad}), model({"head.W": bad}), IDS, OBJECTIVE)
    with np.errstate(divide="ignore"):
        infinite = embgrad.bisect(model(), model(), IDS, (OBJECTIVE, lambda logits: logits.column(1) * np.inf))
    assert (infinite.first, infinite.direction, infinite.after) == ("objective", "forward", "output")


def test_a_bisection_as_dict_and_repr() -> None:
    name = "layers.1.up.W"
    actual = embgrad.bisect(model(), model({name: weights()[name] * 1.01}), IDS, OBJECTIVE)
    reported = json.loads(json.dumps(actual.to_dict(), allow_nan=False))
    assert reported["first"] == "layer.1"
    assert reported["agrees"] is False
    assert reported["parameters"][0]["relation"] == "different"
    shown = repr(actual).splitlines()
    assert shown[0] == "b = reference ReferenceModel against a = reference ReferenceModel"
    assert any(line.split()[:1] == ["layer.1"] and line.endswith("diverges") for line in shown)
    assert shown[-1] == actual.text


class Port(ReferenceModel):
    """A model of another class."""


def test_both_models_are_named() -> None:
    port = model()
    port.__class__ = Port
    assert embgrad.bisect(model(), port, IDS, OBJECTIVE).labels == ("reference ReferenceModel", "reference Port")


def test_progress_is_reported_and_the_models_are_not_modified() -> None:
    seen: list[tuple[int, int]] = []
    a, b = model(), model({"head.W": weights()["head.W"] * 2})
    before = [{name: item.value.tobytes() for name, item in m.parameters.items()} for m in (a, b)]
    embgrad.bisect(a, b, IDS, OBJECTIVE, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 8) for done in (2, 3, 4, 5, 5, 5, 7, 8)]
    assert [{name: item.value.tobytes() for name, item in m.parameters.items()} for m in (a, b)] == before


def test_a_call_and_models_without_layers() -> None:
    def plain(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
        return lookup(m["table"], input_ids).mean(1) @ m["head.W"]

    same = embgrad.bisect(*(ReferenceModel(plain, weights()) for _ in "ab"), IDS, OBJECTIVE)
    assert same.text.startswith("The models agree at all 2 points and in the objective, forward and backward, up to")
    a, b = ReferenceModel(plain, weights()), ReferenceModel(plain, {**weights(), "head.W": weights()["head.W"] * 2})
    actual = embgrad.bisect(a, b, IDS, OBJECTIVE, call_b=lambda m, inputs: m(inputs))
    assert (actual.first, actual.after) == ("output", "word")
    assert [item.a for item in actual.parameters if item.differs] == ["head.W"]


def test_models_without_a_common_point_are_refused() -> None:
    blind = ReferenceModel(lambda m, input_ids: Tensor(input_ids * 1.0) @ m["W"], {"W": np.ones((4, 2))})
    with pytest.raises(
        EmbgradError, match="the two models have nothing in common that can be compared: a is reference"
    ):
        embgrad.bisect(model(), blind, IDS, OBJECTIVE)


def test_models_with_different_numbers_of_layers() -> None:
    actual = embgrad.bisect(model(), model(layers=2), IDS, OBJECTIVE)
    assert (actual.first, actual.after, actual.direction) == ("layer.-1", "layer.1", "forward")
    assert "A has 4 layers, b 2." in actual.text


def test_other_objectives_and_calls_are_refused() -> None:
    for objectives in ((), (OBJECTIVE,), [OBJECTIVE] * 3):
        message = rf"of {len(objectives)}: expected one objective, or a pair"
        with pytest.raises(ObjectiveError, match=message):
            embgrad.bisect(model(), model(), IDS, objectives)  # type: ignore[arg-type]
    for name in ("call_a", "call_b"):
        with pytest.raises(BatchError, match=rf"{name} is \[\]: expected a function"):
            embgrad.bisect(model(), model(), IDS, OBJECTIVE, **{name: []})  # type: ignore[arg-type]


def test_values_that_are_not_finite_are_null_in_json() -> None:
    bad = weights()["layers.1.up.W"].copy()
    bad[0, 0] = np.nan
    actual = embgrad.bisect(model(), model({"layers.1.up.W": bad}), IDS, OBJECTIVE)
    assert (actual.first, actual.module) == ("layer.1", "layers.1.up")
    reported = json.loads(json.dumps(actual.to_dict(), allow_nan=False))
    assert "random numbers" not in str(
        embgrad.check_port(model(), model({"layers.1.up.W": bad}), IDS, OBJECTIVE).causes
    )
    (step,) = [item for item in reported["steps"] if item["name"] == "layer.1"]
    assert (step["forward"], step["agrees"]) == (None, False)


def test_models_of_different_widths_diverge_at_the_table() -> None:
    def plain(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
        return lookup(m["table"], input_ids).mean(1) @ m["head.W"]

    random = np.random.default_rng(3)
    a, b = (
        ReferenceModel(plain, {"table": random.normal(size=(30, wide)), "head.W": random.normal(size=(wide, 3))})
        for wide in (4, 6)
    )
    actual = embgrad.bisect(a, b, IDS, OBJECTIVE)
    assert (actual.first, actual.direction) == ("output", "forward")
    assert "At 'word' a has 4 features, b 6." in actual.text
