"""Attributions, measures of them and searches of a model in training mode: each pass runs in it, and random draws are said."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution import language_models
from tests.unit.attribution.models import BATCH, IDS, MASK

LOGIT = embgrad.Logit(1)
WEIGHTS = {
    "E": np.random.default_rng(5).normal(size=(12, 3)),
    "W": np.random.default_rng(6).normal(size=(3, 2)),
}
METHODS = (
    "input_x_gradient",
    embgrad.methods.IntegratedGradients(3),
    embgrad.methods.GradientShap(samples=2),
    embgrad.methods.SequentialIntegratedGradients(2, "zero"),
    embgrad.methods.Occlusion("zero"),
    embgrad.methods.KernelShap(32, "zero"),
    embgrad.methods.Lime(60, "zero", ridge=0.0),
)


def scaled(in_training: float = 3.0, otherwise: float = 1.0) -> ReferenceModel:
    """Return a model whose logits are linear in the embeddings, with another factor in training mode."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        factor = in_training if model.training else otherwise
        real = np.ones(input_ids.shape) if attention_mask is None else attention_mask
        rows = lookup(model["E"], input_ids) * Tensor(factor * real[..., None])
        return rows.sum(1) @ model["W"]

    return ReferenceModel(forward, WEIGHTS)


def drawing(sizes: list[int] | None = None) -> ReferenceModel:
    """Return a model that multiplies its logits by a random number in training mode, another one in each pass."""
    random = np.random.default_rng(0)

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        factor = random.uniform(0.5, 1.5) if model.training else 1.0
        if model.training and sizes is not None:
            sizes.append(len(input_ids))
        return (lookup(model["E"], input_ids) * Tensor(np.array(factor))).sum(1) @ model["W"]

    return ReferenceModel(forward, WEIGHTS)


def products() -> np.ndarray:
    """The contributions of the positions in evaluation mode, by hand."""
    return np.asarray(WEIGHTS["E"][IDS] @ WEIGHTS["W"][:, 1] * MASK)


@pytest.mark.parametrize("method", METHODS)
def test_each_pass_of_a_method_runs_in_training_mode(method: Any) -> None:
    model = scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = embgrad.attribute(model, BATCH, LOGIT, method, training=True)
    np.testing.assert_allclose(made.scores, 3 * products(), atol=1e-9)
    np.testing.assert_allclose(made.objective, 3 * products().sum(1))
    if made.delta is not None:
        np.testing.assert_allclose(made.delta, 0, atol=1e-9)
    assert (made.provenance["training"], made.provenance["random"], model.training) == (True, False, False)
    plain = embgrad.attribute(model, BATCH, LOGIT, method)
    np.testing.assert_allclose(plain.scores, products(), atol=1e-9)
    assert "random" not in plain.provenance


def test_a_hidden_state_of_an_id_as_baseline_is_that_in_training_mode() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        factor = Tensor(np.array(3.0 if model.training else 1.0))
        rows = model.module("block", lambda rows: rows * factor, lookup(model["E"], input_ids))
        return rows.sum(1) @ model["W"]

    method = embgrad.methods.IntegratedGradients(2, baseline=4)
    made = embgrad.attribute(ReferenceModel(forward, WEIGHTS), IDS, LOGIT, method, at="block", training=True)
    np.testing.assert_allclose(made.scores, 3 * (WEIGHTS["E"][IDS] - WEIGHTS["E"][4]) @ WEIGHTS["W"][:, 1], atol=1e-12)


#: Functions of a model and of whether it runs in training mode, which return numbers.
CALLS: dict[str, Callable[[Any, bool], Any]] = {
    "evaluate": lambda model, mode: embgrad.evaluate(model, BATCH, LOGIT, training=mode),
    "infidelity by deletion": lambda model, mode: embgrad.metrics.infidelity(
        model,
        BATCH,
        LOGIT,
        products(),
        keep_special=False,
        training=mode,
        removed=np.tile(np.arange(4) == 1, (1, 2, 1)),
    ),
    "faithfulness by zeros": lambda model, mode: (
        embgrad.metrics.faithfulness(
            model, BATCH, LOGIT, products(), keep_special=False, training=mode, remove="zero"
        ).leave_one_out
    ),
    "infidelity": lambda model, mode: embgrad.metrics.infidelity(
        model, BATCH, LOGIT, products(), keep_special=False, training=mode, remove="zero", samples=5
    ),
    "sensitivity": lambda model, mode: embgrad.metrics.sensitivity(
        model, BATCH, LOGIT, embgrad.methods.InputXGradient(), training=mode, samples=3
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_measures_the_model_of_training_mode(name: str) -> None:
    call, model = CALLS[name], scaled()
    in_training, otherwise = call(model, True), call(model, False)
    assert not model.training
    np.testing.assert_array_equal(in_training, call(scaled(3.0, 3.0), False))
    np.testing.assert_array_equal(otherwise, call(scaled(1.0, 1.0), False))
    if name != "sensitivity":  # which is relative
        assert not np.array_equal(in_training, otherwise)


def test_infidelity_in_training_mode_is_that_of_attributions_in_it() -> None:
    model = scaled()
    made = embgrad.attribute(model, BATCH, LOGIT, "input_x_gradient", training=True)
    options: dict[str, Any] = {"keep_special": False, "remove": "zero", "samples": 20}
    np.testing.assert_allclose(
        embgrad.metrics.infidelity(model, BATCH, LOGIT, made, training=True, **options), 0, atol=1e-20
    )
    assert (embgrad.metrics.infidelity(model, BATCH, LOGIT, made, **options) > 0.01).all()


@pytest.mark.parametrize(
    "method", ["saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(40), embgrad.methods.Occlusion(0)]
)
def test_output_tokens_are_attributed_in_training_mode(method: Any) -> None:
    def tripled(always: bool) -> ReferenceModel:
        plain = language_models.causal()

        def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
            factor = Tensor(np.array(3.0 if model.training or always else 1.0))
            rows = lookup(model["E"], input_ids) * factor
            return language_models.means(rows, attention_mask) @ model["W"]

        return ReferenceModel(forward, {name: tensor.value for name, tensor in plain.parameters.items()})

    model = tripled(always=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = embgrad.attribute_tokens(model, IDS, method=method, training=True)
    expected = embgrad.attribute_tokens(tripled(always=True), IDS, method=method)
    np.testing.assert_array_equal(made.scores, expected.scores)
    np.testing.assert_array_equal(made.objective, expected.objective)
    assert (made.provenance["training"], made.provenance["random"], model.training) == (True, False, False)
    assert not np.array_equal(made.scores, embgrad.attribute_tokens(model, IDS, method=method).scores)


def test_a_model_that_draws_random_numbers_is_named_where_contributions_do_not_add_up() -> None:
    method = embgrad.methods.IntegratedGradients(3, tolerance=1e-3)
    with pytest.warns(embgrad.EmbgradWarning, match="do not sum to") as seen:
        made = embgrad.attribute(drawing(), IDS, LOGIT, method, training=True)
    (message,) = [str(entry.message) for entry in seen]
    assert (
        "draws other random numbers in each pass, and more steps do not help: give its dropout a rate of 0" in message
    )
    assert "Take more steps" not in message
    assert made.provenance["random"]
    assert made.provenance["method"]["steps_taken"] == [3, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embgrad.attribute(drawing(), IDS, LOGIT, method)


def test_output_tokens_of_a_model_that_draws_random_numbers() -> None:
    random = np.random.default_rng(1)

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        factor = Tensor(np.array(random.uniform(0.5, 1.5) if model.training else 1.0))
        return language_models.means(lookup(model["E"], input_ids) * factor, None) @ model["W"]

    model = ReferenceModel(forward, language_models.weights())
    with pytest.warns(embgrad.EmbgradWarning, match="draws other random numbers in each pass, and more steps do not"):
        made = embgrad.attribute_tokens(model, IDS, method=embgrad.methods.IntegratedGradients(20), training=True)
    assert made.provenance["random"]


def test_a_pass_of_a_model_that_draws_random_numbers_has_the_examples_of_the_batch() -> None:
    """Whether examples depend on one another, as in batch norm, cannot be tested."""
    sizes: list[int] = []
    embgrad.attribute(drawing(sizes), IDS, LOGIT, embgrad.methods.Occlusion("zero"), training=True)
    assert set(sizes) == {len(IDS)}


def test_an_attribution_of_other_draws_is_no_other_model() -> None:
    model = drawing()
    made = embgrad.attribute(model, IDS, LOGIT, "input_x_gradient", training=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = embgrad.metrics.faithfulness(
            model, IDS, LOGIT, made, keep_special=False, remove="zero", training=True, shares=[0.5]
        )
    assert found.provenance["training"]


def test_a_search_in_training_mode_goes_on_in_it(tmp_path: Path) -> None:
    def found(steps: int, **options: Any) -> embgrad.results.Search:
        return embgrad.search(
            scaled(), BATCH, LOGIT, embgrad.methods.HotFlip(steps=steps), to=tmp_path / "search", **options
        )

    found(1, training=True)
    assert found(2, training=True).provenance["training"]
    with pytest.raises(embgrad.errors.FileFormatError, match="holds another search: training"):
        found(3)


def test_random_numbers_are_no_effect_of_a_further_input() -> None:
    """An input of which the model reads nothing may stay where tokens are deleted or replaced, also in training mode."""
    options: dict[str, Any] = {"call": lambda model, inputs: model(inputs["input_ids"]), "training": True}
    counting, copying = (embgrad.TokenBatch(IDS, extras={"labels": numbers}) for numbers in (np.array([1, 2]), IDS))
    removed = np.tile(np.arange(4) == 1, (1, 2, 1))
    embgrad.metrics.infidelity(drawing(), counting, LOGIT, products(), keep_special=False, removed=removed, **options)
    found = embgrad.search(drawing(), copying, LOGIT, embgrad.methods.HotFlip(steps=1), **options)
    np.testing.assert_array_equal(found.batch.extras["labels"], IDS)


@pytest.mark.parametrize("name", ["attribute", "attribute_tokens", "infidelity", "substitutions", "search"])
def test_training_is_true_or_false(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "attribute": (LOGIT, "saliency"),
        "attribute_tokens": (),
        "infidelity": (LOGIT, products()),
        "substitutions": (LOGIT,),
        "search": (LOGIT, "hotflip"),
    }
    with pytest.raises(embgrad.errors.BatchError, match="training is 'yes': expected True or False"):
        getattr(embgrad.metrics if name == "infidelity" else embgrad, name)(
            scaled(), IDS, *arguments[name], training="yes"
        )


@pytest.mark.parametrize(
    "method", ["input_x_gradient", embgrad.methods.IntegratedGradients(3), embgrad.methods.Occlusion("zero")]
)
def test_of_examples_that_depend_on_one_another_each_has_its_own(method: Any) -> None:
    """As of batch norm, which takes the batch's mean off in training mode: the gradient of the sum of L is 0."""

    def centred(model: Any, input_ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], input_ids).sum(1)
        return (sums + sums.mean(0) * -1.0 if model.training else sums) @ model["W"]

    model = ReferenceModel(centred, WEIGHTS)
    made = embgrad.attribute(model, IDS, LOGIT, method, training=True)
    own = WEIGHTS["E"][IDS] @ WEIGHTS["W"][:, 1]
    np.testing.assert_allclose(made.scores, own * (1 - 1 / len(IDS)), atol=1e-12)
    assert not made.provenance["random"]


def test_of_a_model_that_keeps_a_state_more_steps_are_proposed() -> None:
    """Its objectives differ from call to call, and no random numbers are drawn."""

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], input_ids).sum(1)
        kept = model.kept["state"] if len(model.kept["state"]) == len(input_ids) else np.zeros((len(input_ids), 3))
        out = (sums + Tensor(kept)).tanh()
        model.kept["state"] = kept + 0.01
        return out @ model["W"]

    model = ReferenceModel(forward, WEIGHTS)
    model.kept = {"state": np.ones((2, 3))}  # type: ignore[attr-defined]
    with pytest.warns(embgrad.EmbgradWarning, match="do not sum to .* Take more steps"):
        embgrad.attribute(model, IDS, LOGIT, embgrad.methods.IntegratedGradients(1, rule="riemann_left"))
