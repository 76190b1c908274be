"""Checks of ports on small models in NumPy, from the call to the causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.comparison.ported import (
    BATCH,
    DIM,
    EVERY,
    LAYERS,
    OBJECTIVE,
    PORT,
    W,
    checked,
    found,
    in_other_words,
    model,
    relu,
)


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


FAULTS: dict[str, tuple[Callable[..., ReferenceModel], str, str, str]] = {
    "epsilon": (lambda **port: model(epsilon=1e-4, **port), "layers.0.norm", "layer-norm-epsilon",
        f"epsilon 0.01 in a and 0.0001 in b, {EVERY}"),
    "activation": (lambda **port: model(activation=relu, **port), "layers.0.down:input", "activation",
        f"the activation is tanh in a and ReLU in b, {EVERY}"),
    "bias": (lambda **port: model({"layers.1.down.b": np.zeros(DIM)}, **port), "layers.1.down", "missing-bias",
        "b adds no bias at layers.N.down, and a does, layer 1"),
    "transposed": (lambda **port: model({"layers.1.mix.W": W["layers.1.mix.W"].T}, **port), "layers.1.mix",
        "transposed-weight", "b uses layers.N.mix.W transposed, layer 1"),
    "half": (lambda **port: model({"layers.2.up.W": rounded(W["layers.2.up.W"])}, **port), "layers.2.up",
        "half-weights", "b has layers.N.up.W rounded to float16, layer 2"),
    "swapped": (
        lambda **port: model({"layers.0.up.W": W["layers.1.up.W"], "layers.1.up.W": W["layers.0.up.W"]}, **port),
        "layers.0.up", "swapped-weights",
        "b has layers.N.up.W equal to a's layers.1.up.W, layer 0",
    ),
    "residual": (lambda **port: model(residual=0.5, **port), "layers.0", "residual-scale",
        f"layers.N.down is multiplied by 1 in a and 0.5 in b, {EVERY}"),
    "layer again": (lambda **port: model(order=(0, 1, 1, 2), **port), "layers.2.norm:input", "layer-order",
        "the layers run in the order 0–2 in a and 0–1, 1–2 in b"),
    "layer left out": (lambda **port: model(order=(0, 2), **port), "layers.2.norm:input", "missing-part",
        "b does not run the layer 1"),
    "head": (lambda **port: model(at={"head": lambda y: y * 0.25}, **port), "head", "logit-scale",
        "the output of head is multiplied by 1 in a and 0.25 in b, at head"),
    "table": (lambda **port: model(scale=DIM**0.5, **port), "embed", "scaled-lookup",
        "table.W is multiplied by 1 in a and 2.82843 in b, at embed"),
    "positions": (lambda **port: model(offset=1, **port), "places.W", "position-ids-offset",
        "the rows of places.W start at 0 in a and 1 in b, at places.W"),
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (lambda ids: np.roll(ids, 1, 1), "those of the position before"),
        (lambda ids: np.roll(ids, -1, 1), "those of the position behind"),
        (lambda ids: np.minimum(ids + 1, 29), "the ids + 1"),
    ],
)
def test_ids_of_other_positions_are_named_though_they_do_not_show_where_the_batchs_are(
    ids: Callable[[np.ndarray], np.ndarray], text: str
) -> None:
    report = checked(model(ids=ids))
    wanted = f"the rows of table.W are the ids in a and {text} in b, at table.W"
    assert found(report) == [("other-ids", wanted)]
    assert report.unexplained == ()


def test_a_port_that_turns_texts_round_and_its_output_back_is_right() -> None:
    def port(m: ReferenceModel, input_ids: np.ndarray, *, is_right: bool) -> Tensor:
        turned = lookup(m["table.W"], input_ids[:, ::-1]).tanh() @ m["head.W"]
        return Tensor(turned.value[:, ::-1], [(turned, lambda g: g[:, ::-1])]) if is_right else turned

    held = {"table.W": W["table.W"], "head.W": W["head.W"]}
    reference = ReferenceModel(lambda m, input_ids: lookup(m["table.W"], input_ids).tanh() @ m["head.W"], held)
    right, wrong = (ReferenceModel(partial(port, is_right=is_right), held) for is_right in (True, False))
    batch = {"input_ids": np.arange(1, 13).reshape(2, 6)}
    assert embgrad.check_port(reference, right, batch).agrees
    (cause,) = embgrad.check_port(reference, wrong, batch).causes
    assert cause.text == "the rows of table.W are the ids in a and those of the text from its end in b, at table.W"


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


def in_half(*, is_half: bool) -> ReferenceModel:
    """Return a model of which each module's output may be rounded."""

    def forward(m: ReferenceModel, input_ids: np.ndarray) -> Any:
        def kept(x: Tensor) -> Tensor:
            return Tensor(rounded(x.value), [(x, lambda g: g)]) if is_half else x

        x = kept(lookup(m["table.W"], input_ids))
        for path in ("up", "down"):
            x = m.module(path, lambda x, path=path: kept(x @ m[f"{path}.W"]), x)
        return x

    held = {"table.W": W["table.W"], "up.W": W["layers.0.up.W"], "down.W": W["layers.0.down.W"]}
    return ReferenceModel(forward, held, ["up", "down"])


def test_a_port_that_computes_in_half_precision_is_named() -> None:
    sides = in_half(is_half=False), in_half(is_half=True)
    report = embgrad.check_port(*sides, BATCH)
    (cause,) = report.causes
    assert (cause.cause, cause.text) == ("half-precision", "a computes in float64 and b in float16")
    differing = [point for point in report.points if point.values > 2**-24]
    assert cause.sites == tuple(point.name for point in differing)
    assert (cause.layers, cause.difference) == ((), max(point.values for point in differing))
    assert cause.remaining == max(point.local or 0.0 for point in differing)
    text = "up to rounding in float16 the port agrees at all points; pass floor='float16' to accept that precision"
    assert text in report.notes
    for same in (embgrad.check_port(*sides, BATCH, floor="float16"), embgrad.check_port(*sides[1:] * 2, BATCH)):
        assert (same.causes, same.notes, same.floor) == ((), (), "float16")


def test_single_precision_is_no_coarser_one() -> None:
    report = checked(model({name: values.astype(np.float32) for name, values in W.items()}))
    assert (report.agrees, report.causes, report.floor) == (True, (), "float32")


def test_each_model_is_run_on_its_own_batch() -> None:
    given: list[list[bool]] = [[], []]

    def made(log: list[bool]) -> ReferenceModel:
        def forward(m: ReferenceModel, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
            log.append(attention_mask is None)
            return linear(m, "head", lookup(m["table.W"], input_ids))

        def linear(m: ReferenceModel, path: str, x: Tensor) -> Tensor:
            result: Tensor = m.module(path, lambda value: value @ m[f"{path}.W"], x)
            return result

        return ReferenceModel(forward, {name: W[name] for name in ("table.W", "head.W")}, ["head"])

    batches = embgrad.TokenBatch(BATCH.ids), embgrad.TokenBatch(BATCH.ids, np.ones(BATCH.shape))
    assert embgrad.check_port(*map(made, given), batches).agrees
    assert [set(log) for log in given] == [{True}, {False}]


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
