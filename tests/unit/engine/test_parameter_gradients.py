"""The gradient of every trainable parameter, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import registry
from embgrad.checkpoints.load_bert import WeightTarget
from embgrad.engine.weights import substitute
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, Tensor, lookup
from tests.unit.numerics import differences
from tests.unit.refusals import refused

DIM, CLASSES = 4, 3
IDS = np.array([[3, 5, 3], [2, 6, 1]])
LABELS = [2, 0]
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(8, DIM)),
    "W": np.random.default_rng(1).normal(size=(DIM, DIM)),
    "b": np.random.default_rng(2).normal(size=(DIM,)),
    "H": np.random.default_rng(3).normal(size=(DIM, CLASSES)),
    "unused": np.random.default_rng(4).normal(size=(2, 5)),
}


def forward(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) @ model["W"] + model["b"]).tanh().mean(1) @ model["H"]


def model(function: Any = forward, dtype: str = "float64") -> ReferenceModel:
    return ReferenceModel(function, {name: value.astype(dtype) for name, value in WEIGHTS.items()})


@pytest.mark.parametrize("objective", [embgrad.CrossEntropy(LABELS), embgrad.Sum(), embgrad.Margin(0, against=1)])
def test_every_parameter_by_finite_differences(objective: Any) -> None:
    actual = embgrad.tables.parameter_gradients(model(), IDS, objective)
    assert list(actual) == list(WEIGHTS)
    assert len(actual) == 5
    assert actual.unreached == ("unused",)
    assert actual.provenance["names"] == "native"
    assert actual.provenance["objective"] == objective.describe()
    assert "point" not in actual.provenance
    for name, value in WEIGHTS.items():
        assert actual[name].shape == value.shape
        if name != "unused":

            def total(weight: np.ndarray, name: str = name) -> float:
                built = model()
                built[name].value[...] = weight
                return float(embgrad.gradients(built, IDS, objective).objective.sum())

            np.testing.assert_allclose(actual[name], differences(total, value), atol=1e-9)
    assert not actual["unused"].any()
    result = embgrad.gradients(model(), IDS, objective)
    np.testing.assert_array_equal(actual.objective, result.objective)
    np.testing.assert_allclose(actual["E"], result.table().to_dense(), atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    actual = embgrad.tables.parameter_gradients(model(dtype=dtype), IDS, embgrad.Sum())
    exact = embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum())
    assert actual.provenance["compute_dtype"] == dtype
    for name in WEIGHTS:
        np.testing.assert_allclose(actual[name], exact[name], atol=5e-2 if dtype == "float16" else 1e-5)
    assert actual["unused"].dtype == (np.float64 if dtype == "float64" else np.float32)


def test_it_is_a_mapping() -> None:
    actual = embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum())
    assert "W" in actual
    assert "w" not in actual
    assert dict(actual).keys() == WEIGHTS.keys()
    assert actual.get("nothing") is None
    assert repr(actual).startswith(
        "ParameterGradients(5 parameters, 74 numbers, 1 unreached, of embgrad.testing.tensors"
    )
    with pytest.raises(KeyError, match=r"no parameter 'unsued'\. Did you mean 'unused'\?"):
        actual["unsued"]


def test_the_arrays_are_the_callers_own() -> None:
    built = model()
    first = embgrad.tables.parameter_gradients(built, IDS, embgrad.Sum())
    before = {name: value.copy() for name, value in first.items()}
    for value in first.values():
        value[...] = 7
    again = embgrad.tables.parameter_gradients(built, IDS, embgrad.Sum())
    for name, value in before.items():
        np.testing.assert_array_equal(again[name], value)
        np.testing.assert_array_equal(built[name].value, WEIGHTS[name])


def test_canonical_names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["E", "H", "unused"]
    message = r"names='canonical' requires a BERT .* Omit it"
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum(), names="canonical")

    def target(source: str, native: str, transposed: bool = False) -> WeightTarget:
        return WeightTarget(source, WEIGHTS[native].shape, lambda value: None, native, transposed)

    class Able(ReferenceBackend):
        supports = ReferenceBackend.supports | {"load_bert"}

        def bert_targets(self, model: Any) -> list[WeightTarget]:
            dense = [target("encoder.dense.weight", "W", True), target("encoder.dense.bias", "b")]
            return [*dense, *(target(f"other.{name}", name) for name in named)]

    monkeypatch.setattr(registry, "_discover", lambda: registry.Discovery({"reference": Able()}, {}))
    native = embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum())
    actual = embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum(), names="canonical")
    assert list(actual) == ["other.E", "encoder.dense.weight", "encoder.dense.bias", "other.H", "other.unused"]
    np.testing.assert_array_equal(actual["encoder.dense.weight"], native["W"].T)
    assert actual["encoder.dense.weight"].flags.c_contiguous
    np.testing.assert_array_equal(actual["other.H"], native["H"])
    assert actual.unreached == ("other.unused",)
    assert actual.provenance["names"] == "canonical"
    named.pop()
    with refused(embgrad.errors.UnsupportedError, "no name for 1 of the 5 trainable parameters, 'unused'"):
        embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum(), names="canonical")


@pytest.mark.parametrize("names", ["natives", "canonic", None, 3, ["native"], np.array(["native", "canonical"])])
def test_names_that_are_refused(names: Any) -> None:
    with pytest.raises(embgrad.errors.BatchError, match=r"names is .*: expected 'native' or 'canonical'"):
        embgrad.tables.parameter_gradients(model(), IDS, embgrad.Sum(), names=names)


def test_an_objective_that_depends_on_no_parameter() -> None:
    def detached(model: Any, input_ids: np.ndarray) -> Tensor:
        return forward(model, input_ids).detach()

    with refused(embgrad.errors.NoGradientError, "depends on none of the 5 trainable parameters of ReferenceModel"):
        embgrad.tables.parameter_gradients(model(detached), IDS, embgrad.Sum())


def test_a_gradient_that_is_not_finite() -> None:
    def steep(model: Any, input_ids: np.ndarray) -> Tensor:
        table = model["W"]
        spike = np.ones_like(table.value)
        spike[2, 3] = np.inf
        return lookup(model["E"], input_ids).mean(1) @ Tensor(table.value, [(table, lambda g: g * spike)])

    message = r"the parameter 'W' is -?inf at \(2, 3\), and in 1 of 16 entries"
    with pytest.raises(embgrad.errors.NoGradientError, match=message):
        embgrad.tables.parameter_gradients(model(steep), IDS, embgrad.Sum())


def test_a_backend_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limited(ReferenceBackend):
        supports = frozenset({"word"})

    monkeypatch.setattr(registry, "_discover", lambda: registry.Discovery({"reference": Limited()}, {}))
    for ask, ability in (
        (embgrad.tables.parameter_gradients, "parameters"),
        (embgrad.tables.table_gradients, "tables"),
    ):
        with pytest.raises(embgrad.errors.UnsupportedError, match=f"does not support '{ability}'"):
            ask(model(), IDS, embgrad.Sum())
    with pytest.raises(embgrad.errors.UnsupportedError, match="does not support 'capture'"):
        embgrad.capture(model())
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("training", embgrad.Sum(), {"training": True}),
        ("split", embgrad.Sum(), {"split": True}),
        ("native", lambda logits: logits.column(0), {}),
        *((option, embgrad.Sum(), {option: {"word": lambda x: x}}) for option in ("override", "add", "edit")),
    ]
    for ability, objective, options in cases:
        message = f"the backend 'reference' does not support '{ability}': it supports 'word'; leave it out"
        with pytest.raises(embgrad.errors.UnsupportedError, match=message):
            embgrad.gradients(model(), IDS, objective, **options)
    assert embgrad.gradients(model(), IDS, embgrad.Sum()).values.any()


def test_training_draws_the_random_numbers_of_a_plain_forward_pass() -> None:
    def dropping(model: Any, input_ids: np.ndarray) -> Tensor:
        return model.dropout(lookup(model["E"], input_ids).mean(1) @ model["W"], 0.5) @ model["H"]

    built, own = model(dropping), model(dropping)
    actual = embgrad.tables.parameter_gradients(built, IDS, embgrad.Sum(), training=True)
    own.training = True
    np.testing.assert_allclose(actual.objective, own(IDS).value.sum(1), rtol=1e-12)
    assert not built.training


def test_a_value_that_is_no_array_cannot_be_substituted_for_a_weight() -> None:
    message = r"value for the weight 'b' is \[\[1, 2\], \[3\]\], which is no array \(.*\): expected real numbers"
    with pytest.raises(embgrad.EmbgradError, match=message), substitute(model(), {"b": [[1, 2], [3]]}):
        raise AssertionError("nothing is written")
