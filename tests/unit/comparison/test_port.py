"""Checks of ports on small models in NumPy, from the call to the causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.results.port_report import PortReport
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM, INNER, LAYERS, VOCAB = 8, 12, 3, 30
BATCH = embgrad.TokenBatch(
    np.random.default_rng(1).permutation(np.arange(1, 25))[:18].reshape(3, 6), [[1] * 6, [1] * 6, [1, 1, 1, 1, 0, 0]]
)


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {"table.W": random.normal(size=(VOCAB, DIM)), "places.W": random.normal(size=(9, DIM))}
    for layer in range(LAYERS):
        arrays |= {
            f"layers.{layer}.norm.W": 1 + 0.3 * random.normal(size=DIM),
            f"layers.{layer}.up.W": random.normal(size=(DIM, INNER)) / 3,
            f"layers.{layer}.up.b": random.normal(size=INNER) / 2,
            f"layers.{layer}.mix.W": random.normal(size=(INNER, INNER)) / 4,
            f"layers.{layer}.down.W": random.normal(size=(INNER, DIM)) / 3,
            f"layers.{layer}.down.b": random.normal(size=DIM) / 2,
        }
    return {**arrays, "head.W": random.normal(size=(DIM, 5))}


def normalised(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Return the root-mean-square norm of the features."""
    spread = np.sqrt((x.value**2).mean(-1, keepdims=True) + epsilon)
    unit = x.value / spread

    def back(g: np.ndarray) -> np.ndarray:
        inner = g * gain.value
        return (inner - unit * (inner * unit).mean(-1, keepdims=True)) / spread

    return Tensor(unit * gain.value, [(x, back)])


def relu(x: Tensor) -> Tensor:
    return Tensor(np.maximum(x.value, 0), [(x, lambda g: g * (x.value > 0))])


def model(
    changes: Mapping[str, np.ndarray] | None = None,
    *,
    names: Callable[[str], str] = lambda name: name,
    transposed: bool = False,
    epsilon: float = 1e-2,
    activation: Callable[[Tensor], Tensor] = Tensor.tanh,
    offset: int = 0,
    scale: float = 1.0,
    residual: float = 1.0,
    at: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    layers: int = LAYERS,
) -> ReferenceModel:
    """Return a model: rows and places, layers of a norm and three products with a residual, and a head for each position.

    Args:
        changes: arrays in place of the usual weights.
        names: returns the port's name of a module.
        transposed: whether matrices are stored as (output, input).
        epsilon: what the norms add.
        activation: the function before the last product of a layer.
        offset: the first position.
        scale: a multiplier of the table's rows.
        residual: a multiplier of what each layer adds.
        at: by path a change of what a module returns.
        layers: the number of layers.
    """
    hooks = at or {}
    arrays = {**weights(), **(changes or {})}

    def is_matrix(name: str) -> bool:
        return name.endswith(".W") and arrays[name].ndim == 2 and not name.startswith(("table", "places"))

    def stored(name: str) -> str:
        path, _, last = name.rpartition(".")
        return f"{names(path)}.{last}"

    held = {stored(name): values.T if transposed and is_matrix(name) else values for name, values in arrays.items()}

    def linear(m: ReferenceModel, path: str, x: Tensor) -> Tensor:
        def dense(x: Tensor) -> Tensor:
            matrix = m[stored(f"{path}.W")]
            y = x @ (matrix.swap(0, 1) if transposed else matrix)
            if stored(f"{path}.b") in m.parameters:
                y = y + m[stored(f"{path}.b")]
            return hooks.get(path, lambda value: value)(y)

        result: Tensor = m.module(names(path), dense, x)
        return result

    def layer(m: ReferenceModel, path: str, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            gain = m[stored(f"{path}.norm.W")]
            hidden = m.module(names(f"{path}.norm"), lambda value: normalised(value, gain, epsilon), x)
            hidden = linear(m, f"{path}.mix", linear(m, f"{path}.up", hidden).tanh())
            return x + linear(m, f"{path}.down", activation(hidden)) * residual

        result: Tensor = m.module(names(path), block, x)
        return result

    def forward(m: ReferenceModel, input_ids: np.ndarray) -> Tensor:
        def embed(ids: np.ndarray) -> Tensor:
            rows = lookup(m[stored("table.W")], ids) * scale
            return rows + lookup(m[stored("places.W")], offset + np.arange(ids.shape[1])[None])

        hidden = m.module(names("embed"), embed, input_ids)
        for number in range(layers):
            hidden = layer(m, f"layers.{number}", hidden)
        return linear(m, "head", hidden)

    paths = [f"layers.{n}{part}" for n in range(layers) for part in ("", ".norm", ".up", ".mix", ".down")]
    return ReferenceModel(forward, held, [names(path) for path in ("embed", *paths, "head")])


def in_other_words(path: str) -> str:
    """Return a module's name in another framework."""
    for mine, its in {
        "layers.": "block/",
        "norm": "ln",
        "up": "fc1",
        "mix": "fc2",
        "down": "fc3",
        "table": "words",
    }.items():
        path = path.replace(mine, its)
    return path.replace(".", "/")


PORT: dict[str, Any] = {"names": in_other_words, "transposed": True}


def checked(port: ReferenceModel, **further: Any) -> PortReport:
    return embgrad.check_port(model(), port, BATCH, **further)


def found(report: PortReport) -> list[tuple[str, str]]:
    return [(cause.cause, cause.text) for cause in report.causes]


@pytest.mark.parametrize("port", [{}, PORT], ids=["the same", "other names and layouts"])
def test_a_right_port_agrees(port: dict[str, Any]) -> None:
    report = checked(model(**port))
    assert report.agrees
    assert (report.first, report.causes, report.unexplained, report.settings, report.notes) == (None, (), (), (), ())
    assert report.explained is None
    assert report.floor == "float64"
    assert report.labels == ("reference ReferenceModel", "reference ReferenceModel")
    names = [point.name for point in report.points]
    assert {"table.W", "places.W", "embed", "head", "output"} <= set(names)
    for number in range(LAYERS):
        parts = {f"layers.{number}", *(f"layers.{number}.{part}" for part in ("norm", "up", "mix", "down"))}
        assert parts <= set(names)
        assert {f"{part}:input" for part in parts if part != f"layers.{number}"} <= set(names)
    assert names[-1] == "output"
    assert all(point.agrees and point.values < 1e-14 for point in report.points)
    assert all(point.gradient is None and point.local_gradient is None for point in report.points)
    by_name = {point.name: point for point in report.points}
    assert by_name["layers.1.mix"].layer == 1
    assert by_name["embed"].layer is None
    assert 1e-17 < by_name["head"].floor < 1e-14
    wanted = in_other_words("layers.1.mix") if port else "layers.1.mix"
    assert by_name["layers.1.mix"].port_name == f"{wanted}:output#0"
    assert set(report.seconds) == {"reference", "port", "weights", "led", "gradients", "floor", "causes", "share"}


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float64)


W = weights()
EVERY = f"layers 0–{LAYERS - 1}"
FAULTS: dict[str, tuple[Callable[..., ReferenceModel], str, str, str]] = {
    "epsilon": (
        lambda **port: model(epsilon=1e-4, **port),
        "layers.0.norm",
        "layer-norm-epsilon",
        f"epsilon 0.01 in a and 0.0001 in b, {EVERY}",
    ),
    "activation": (
        lambda **port: model(activation=relu, **port),
        "layers.0.down:input",
        "activation",
        f"the activation is tanh in a and ReLU in b, {EVERY}",
    ),
    "bias": (
        lambda **port: model({"layers.1.down.b": np.zeros(DIM)}, **port),
        "layers.1.down",
        "missing-bias",
        "b adds no bias at layers.N.down, and a does, layer 1",
    ),
    "transposed": (
        lambda **port: model({"layers.1.mix.W": W["layers.1.mix.W"].T}, **port),
        "layers.1.mix",
        "transposed-weight",
        "b uses layers.N.mix.W transposed, layer 1",
    ),
    "half": (
        lambda **port: model({"layers.2.up.W": rounded(W["layers.2.up.W"])}, **port),
        "layers.2.up",
        "half-weights",
        "b has layers.N.up.W rounded to float16, layer 2",
    ),
    "swapped": (
        lambda **port: model({"layers.0.up.W": W["layers.1.up.W"], "layers.1.up.W": W["layers.0.up.W"]}, **port),
        "layers.0.up",
        "swapped-weights",
        "b has layers.N.up.W equal to a's layers.1.up.W, layer 0",
    ),
    "residual": (
        lambda **port: model(residual=0.5, **port),
        "layers.0",
        "residual-scale",
        f"layers.N.down is multiplied by 1 in a and 0.5 in b, {EVERY}",
    ),
    "head": (
        lambda **port: model(at={"head": lambda y: y * 0.25}, **port),
        "head",
        "logit-scale",
        "the output of head is multiplied by 1 in a and 0.25 in b, at head",
    ),
    "table": (
        lambda **port: model(scale=DIM**0.5, **port),
        "embed",
        "scaled-lookup",
        "table.W is multiplied by 1 in a and 2.82843 in b, at embed",
    ),
    "positions": (
        lambda **port: model(offset=1, **port),
        "places.W",
        "position-ids-offset",
        "the rows of places.W start at 0 in a and 1 in b, at places.W",
    ),
}


@pytest.mark.parametrize("port", [{}, PORT], ids=["same names", "other names"])
@pytest.mark.parametrize(("faulty", "first", "cause", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_its_values_and_its_place(
    faulty: Callable[..., ReferenceModel], first: str, cause: str, text: str, port: dict[str, Any]
) -> None:
    report = checked(faulty(**port))
    assert not report.agrees
    assert report.first == first
    assert (cause, text) in found(report)
    assert {held for held, _ in found(report)} == {cause}
    assert report.unexplained == ()
    assert report.explained == pytest.approx(1, abs=1e-6)
    points = {point.name: point for point in report.points}
    assert not points[first].agrees
    assert points["output"].values > 1e-5
    assert points["table.W"].values < 1e-14


def test_sites_and_layers_of_a_cause_are_listed() -> None:
    (cause,) = checked(model(epsilon=1e-4)).causes
    assert cause.sites == tuple(f"layers.{number}.norm" for number in range(LAYERS))
    assert cause.layers == tuple(range(LAYERS))
    assert cause.values == ("0.01", "0.0001")
    assert 1e-4 < cause.difference < 1e-1
    assert cause.remaining < 1e-9


def test_several_faults_are_all_named_each_by_itself() -> None:
    report = checked(
        model({"layers.1.down.b": np.zeros(DIM), "head.W": rounded(W["head.W"])}, epsilon=1e-4, activation=relu, **PORT)
    )
    assert {cause for cause, _ in found(report)} == {
        "layer-norm-epsilon",
        "activation",
        "missing-bias",
        "half-weights",
    }
    assert report.unexplained == ()
    assert report.explained == pytest.approx(1, abs=1e-6)
    differences = [cause.difference for cause in report.causes]
    assert differences == sorted(differences, reverse=True)
    assert report.causes[0].cause in {"activation", "missing-bias"}


def test_the_points_behind_a_fault_agree_by_themselves() -> None:
    report = checked(model({"layers.1.down.b": np.zeros(DIM)}, **PORT))
    differing = [point.name for point in report.points if not point.agrees]
    assert differing == ["layers.1.down"]
    points = {point.name: point for point in report.points}
    assert points["layers.2.mix"].values > 1e-3
    assert points["layers.2.mix"].local is not None
    assert points["layers.2.mix"].local < 1e-14
    assert points["layers.1.down"].local == pytest.approx(points["layers.1.down"].values)
    assert points["layers.1.up"].values < 1e-14


def test_what_no_hypothesis_explains_is_listed() -> None:
    odd = model(activation=lambda x: Tensor(np.sin(3 * x.value) + x.value[..., ::-1]), **PORT)
    report = checked(odd)
    assert report.first == "layers.0.down:input"
    assert report.causes == ()
    assert report.unexplained == tuple(f"layers.{number}.down:input" for number in range(LAYERS))
    assert report.explained is None


def test_settings_that_are_declared_are_compared() -> None:
    a, b = model(), model(epsilon=1e-4)
    a.config = {"rms_norm_eps": 1e-2, "hidden_act": "tanh", "n_head": 4}  # type: ignore[attr-defined]
    b.config = {"epsilon": 1e-4, "activation": "tanh", "num_heads": 2}  # type: ignore[attr-defined]
    epsilon, heads = embgrad.check_port(a, b, BATCH).settings
    assert (epsilon.name, epsilon.a, epsilon.b, epsilon.matters) == ("epsilon", "0.01", "0.0001", True)
    assert epsilon.where == ("rms_norm_eps", "epsilon")
    assert (heads.name, heads.matters) == ("heads", False)
    b.config["num_heads"] = 4  # type: ignore[attr-defined]
    assert [item.name for item in embgrad.check_port(a, b, BATCH).settings] == ["epsilon"]


def test_a_setting_may_matter_where_a_site_is_not_explained() -> None:
    a, b = model(), model(activation=lambda x: Tensor(np.sin(3 * x.value) + x.value[..., ::-1]))
    a.config, b.config = {"n_head": 4}, {"n_head": 2}  # type: ignore[attr-defined]
    (heads,) = embgrad.check_port(a, b, BATCH).settings
    assert heads.matters is None


@pytest.mark.parametrize(("floor", "agrees"), [(None, False), ("float32", False), ("bfloat16", True)])
def test_a_port_in_lower_precision_agrees_under_the_floor_of_that_precision(floor: str | None, agrees: bool) -> None:
    port = model({name: rounded(values) for name, values in W.items()})
    report = checked(port, floor=floor)
    assert report.agrees is agrees
    assert report.floor == (floor or "float64")
    if not agrees:
        assert {cause for cause, _ in found(report)} == {"half-weights"}


def test_random_ports_are_named() -> None:
    random = np.random.default_rng(3)

    def dropped(y: Tensor) -> Tensor:
        return Tensor(y.value * (random.random(y.shape) < 0.9), [(y, lambda g: g)])

    report = checked(model(at={"layers.1.mix": dropped}))
    assert report.first == "layers.1.mix"
    assert (
        "dropout",
        "b draws random numbers in evaluation mode, for example by dropout that was left on, layer 1",
    ) in (found(report))
    assert report.unexplained == ()
    assert report.explained is None


def test_a_difference_behind_all_points_is_noted() -> None:
    calls: list[int] = []

    def first_alone(y: Tensor) -> Tensor:
        calls.append(0)
        return y * (2.0 if len(calls) <= 2 else 1.0)  # in the passes that list and record the points

    report = checked(model(at={"head": first_alone}))
    assert len(calls) > 2
    assert (report.agrees, report.first, report.causes) == (False, None, ())
    assert report.notes == ("the models differ at 'output', and no pair of points shows where",)


OBJECTIVE = embgrad.Sum()


def test_gradients_are_compared_with_an_objective() -> None:
    report = checked(model(**PORT), objective=OBJECTIVE)
    assert report.agrees
    points = {point.name: point for point in report.points}
    for name in ("table.W", "layers.1.norm", "layers.2.mix", "layers.0"):
        gradient = points[name].gradient
        assert gradient is not None
        assert gradient < 1e-13
    assert points["layers.2.mix:input"].gradient is None  # there only the module's own use counts
    assert points["output"].gradient is None
    assert all(point.local_gradient is None for point in report.points)


def test_a_fault_of_the_values_is_found_with_an_objective_as_well() -> None:
    report = checked(model(epsilon=1e-4, **PORT), objective=OBJECTIVE)
    assert found(report) == [("layer-norm-epsilon", f"epsilon 0.01 in a and 0.0001 in b, {EVERY}")]
    points = {point.name: point for point in report.points}
    assert points["table.W"].gradient is not None
    assert points["table.W"].gradient > 1e-4


def backward(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    return lambda y: Tensor(y.value, [(y, change)])


def note(name: str) -> str:
    return (
        f"all values agree, and the gradient differs first at {name!r} on the way back from the objective: check for a custom "
        "backward pass or a detached tensor"
    )


def test_a_wrong_gradient_is_found_behind_which_module_it_arises() -> None:
    report = checked(model(at={"layers.1.mix": backward(lambda g: 2 * g)}, **PORT), objective=OBJECTIVE)
    assert not report.agrees
    assert report.first == "layers.1.up"  # in front of which the pullback of the module goes
    assert report.notes == (note("layers.1.up"),)
    assert (report.causes, report.unexplained) == ((), ("layers.1.up",))
    points = {point.name: point for point in report.points}
    assert [point.name for point in report.points if not point.agrees] == ["layers.1.up"]
    assert points["layers.1.up"].local_gradient == pytest.approx(1)
    local = points["layers.0.up"].local_gradient
    assert local is not None
    assert local < 1e-12
    assert points["table.W"].gradient is not None
    assert points["table.W"].gradient > 1e-2


def test_each_wrong_gradient_is_found_the_last_first() -> None:
    wrong = {f"layers.{number}.mix": backward(lambda g: -g) for number in (0, 2)}
    report = checked(model(at=wrong), objective=OBJECTIVE)
    assert report.unexplained == ("layers.2.up", "layers.0.up")


@pytest.mark.parametrize("factor", [1 + 1e-7, 1 + 1e-3])
def test_small_errors_of_a_gradient_are_rounding(factor: float) -> None:
    port = model(at={"layers.1.mix": backward(lambda g: factor * g)})
    assert checked(port, objective=OBJECTIVE).agrees is (factor < 1 + 1e-5)
    assert checked(port, objective=OBJECTIVE, floor="bfloat16").agrees


@pytest.mark.parametrize(
    ("path", "first"), [("head", "layers.2"), ("layers.1.down", "layers.0")], ids=["everywhere", "in a layer"]
)
def test_a_detached_tensor_is_found(path: str, first: str) -> None:
    port = model(at={path: Tensor.detach})
    report = checked(port, objective=OBJECTIVE)
    assert (report.agrees, report.first, report.notes) == (False, first, (note(first),))
    if path == "head":
        assert report.unexplained == ("layers.2", "layers.1", "layers.0", "table.W")
    back = embgrad.check_port(port, model(), BATCH, OBJECTIVE)
    assert (back.agrees, back.first) == (False, first)
    assert checked(port).agrees  # the values do


@pytest.mark.parametrize("fused", [(False, True), (True, False)], ids=["fused in b", "fused in a"])
def test_fused_projections_have_the_same_gradients(fused: tuple[bool, bool]) -> None:
    random = np.random.default_rng(0)
    table, q, k, last = (random.normal(size=shape) for shape in ((VOCAB, DIM), (DIM, 6), (DIM, 6), (6, 5)))

    def side(is_fused: bool) -> ReferenceModel:
        def forward(m: ReferenceModel, input_ids: np.ndarray) -> Any:
            x = m.module("norm", lambda ids: normalised(lookup(m["table.W"], ids), m["norm.W"], 1e-2), input_ids)
            if is_fused:
                both = m.module("qk", lambda x: x @ m["qk.W"], x)
                first, second = both[..., 0:6], both[..., 6:12]
            else:
                first, second = (m.module(name, lambda x, name=name: x @ m[f"{name}.W"], x) for name in ("q", "k"))
            return m.module("last", lambda x: x @ m["last.W"], first.tanh() * second)

        held = {"table.W": table, "norm.W": 1 + 0.1 * q[:, 0], "last.W": last}
        held |= {"qk.W": np.concatenate([q, k], 1)} if is_fused else {"q.W": q, "k.W": k}
        return ReferenceModel(forward, held, [*("norm", "last"), *(["qk"] if is_fused else ["q", "k"])])

    report = embgrad.check_port(*map(side, fused), BATCH, OBJECTIVE)
    assert report.agrees
    assert report.notes == ()
    assert len([point for point in report.points if point.gradient is not None]) >= 4


def test_gradients_of_two_dumps_are_compared(tmp_path: Path) -> None:
    sides = {"a": model(), "same": model(**PORT), "wrong": model(at={"layers.1.mix": backward(lambda g: 2 * g)})}
    for name, side in sides.items():
        embgrad.dump(side, BATCH, tmp_path / name, OBJECTIVE)
    assert embgrad.check_port(tmp_path / "a", tmp_path / "same", objective=OBJECTIVE).agrees
    report = embgrad.check_port(tmp_path / "a", tmp_path / "wrong", objective=OBJECTIVE)
    assert (report.agrees, report.first) == (False, "layers.1.up")
    assert report.unexplained == ("layers.1.up",)
    assert note("layers.1.up") in report.notes


def test_an_objective_that_cannot_be_computed_is_noted() -> None:
    report = checked(model(**PORT), objective=embgrad.Logit(9))
    assert report.agrees
    assert [note[:3] for note in report.notes] == ["a: ", "b: "]
    assert all(point.gradient is None for point in report.points)


def ids_of(text: str) -> list[int]:
    return [1 + len(word) for word in text.split()]


TEXTS = ["a bc", "def a bc"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda text: [*ids_of(text)[:1], 7, *ids_of(text)[2:]], "text 0, token 1: a has the id 3, and b the id 7"),
        (lambda text: [*ids_of(text), 5], "text 0, token 2: a has nothing, and b the id 5"),
        (lambda text: ids_of(text)[:2], "text 1, token 2: a has the id 3, and b nothing"),
    ],
)
def test_tokenizers_that_differ_are_named_with_the_first_differing_token(
    other: Callable[[str], list[int]], message: str
) -> None:
    with pytest.raises(BatchError) as caught:
        embgrad.check_port(model(), model(), TEXTS, tokenizer=(ids_of, other))
    assert message in caught.value.message
    assert caught.value.message.endswith("Pass one tokenizer, or a batch of ids that both models take")


def test_a_pair_of_batches_must_hold_the_same_texts() -> None:
    first = embgrad.TokenBatch([[3, 4], [5, 6]])
    with pytest.raises(BatchError, match=r"return 2 and 1 texts\. Pass the same texts for a and for b"):
        embgrad.check_port(model(), model(), (first, embgrad.TokenBatch([[3, 4]])))
    with pytest.raises(BatchError, match="text 1, token 0: a has the id 5, and b the id 7"):
        embgrad.check_port(model(), model(), (first, embgrad.TokenBatch([[3, 4], [7, 6]])))
    assert embgrad.check_port(model(), model(), (first, embgrad.TokenBatch([[3, 4], [5, 6]], [[1, 1], [1, 1]]))).agrees


def test_padding_must_stand_at_the_same_positions() -> None:
    ids = [[3, 4, 5, 6], [7, 8, 0, 0]]
    a = embgrad.TokenBatch(ids, [[1, 1, 1, 1], [1, 1, 0, 0]])
    left = embgrad.TokenBatch([ids[0], [0, 0, 7, 8]], [[1, 1, 1, 1], [0, 0, 1, 1]])
    wide = embgrad.TokenBatch([[*row, 0] for row in ids], [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    for b, shape in ((left, r"\(2, 4\) and \(2, 4\)"), (wide, r"\(2, 4\) and \(2, 5\)")):
        message = f"return the same ids with padding at other positions, in arrays of shape {shape}. Pass one tokenizer"
        with pytest.raises(BatchError, match=message):
            embgrad.check_port(model(), model(), (a, b))
    longer = embgrad.TokenBatch(ids, [[1, 1, 1, 1], [1, 1, 1, 0]])
    with pytest.raises(BatchError, match="text 1, token 2: a has nothing, and b the id 0"):
        embgrad.check_port(model(), model(), (a, longer))


def test_a_model_may_take_no_mask() -> None:
    ids = [[3, 4, 5, 6], [7, 8, 0, 0]]
    masked = embgrad.TokenBatch(ids, [[1, 1, 1, 1], [1, 1, 0, 0]])
    assert embgrad.check_port(model(), model(), (masked, embgrad.TokenBatch(ids))).agrees
    assert embgrad.check_port(model(), model(), (embgrad.TokenBatch(ids), masked)).agrees


def test_padding_may_have_other_ids() -> None:
    mask = [[1, 1, 1, 1], [1, 1, 0, 0]]
    a, b = (embgrad.TokenBatch([[3, 4, 5, 6], [7, 8, pad, pad]], mask) for pad in (0, 1))
    assert embgrad.check_port(model(), model(), (a, b)).agrees


def test_each_model_may_be_called_in_its_own_way() -> None:
    calls: list[str] = []

    def call(name: str) -> Callable[..., Any]:
        def run(m: Any, inputs: Mapping[str, Any]) -> Any:
            calls.append(name)
            return m(inputs["input_ids"])

        return run

    assert checked(model(**PORT), call=(call("a"), call("b"))).agrees
    assert calls[0] == "a"
    assert set(calls) == {"a", "b"}
    calls.clear()
    assert checked(model(**PORT), call=call("both")).agrees
    assert set(calls) == {"both"}
    calls.clear()
    assert checked(model(**PORT), call=(None, call("b"))).agrees
    assert set(calls) == {"b"}


def test_models_are_left_as_they_were() -> None:
    a, b = model(), model(epsilon=1e-4)
    before = {name: tensor.value.copy() for name, tensor in b.parameters.items()}
    states = [dict(vars(side)) for side in (a, b)]
    embgrad.check_port(a, b, BATCH, OBJECTIVE)
    for side, state in zip((a, b), states, strict=True):
        assert vars(side) == state
    for name, tensor in b.parameters.items():
        np.testing.assert_array_equal(tensor.value, before[name])


def test_a_shorter_port_is_found_at_the_first_missing_layer() -> None:
    report = checked(model(layers=2))
    assert not report.agrees
    assert report.first == "layers.2"
    assert {point.name for point in report.points if point.name.startswith("layers.2.")} == set()
