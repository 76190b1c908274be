"""Baselines: the one that a model can see, the mean row of the table, and the mean over several."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import methods
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import causal, means
from tests.unit.attribution.models import BATCH, DIM, IDS, MASK, HalfSquare, Tokenizer, curved, linear
from tests.unit.refusals import refused

LOGIT = embgrad.Logit(0)
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(12, DIM)),
    "W": np.random.default_rng(1).normal(size=(DIM, 2)),
    "V": np.random.default_rng(2).normal(size=(DIM, 12)),
}
E, W = WEIGHTS["E"], WEIGHTS["W"]
NO_DIRECTION = "L does not change with the scale of the values, which the model normalises: give baseline='auto', 'pad'"


class Ending(Tokenizer):
    """A tokenizer without padding, which knows the end of a text."""

    pad_token_id, eos_token_id = None, 6


def normalise(rows: Tensor, epsilon: float) -> Tensor:
    """Return the rows divided by the root of their sum of squares and `epsilon`."""
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt((rows.value**2).sum(-1, keepdims=True) + epsilon)
        unit = rows.value * scale

    def pullback(gradient: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(scale * (gradient - unit * (unit * gradient).sum(-1, keepdims=True)))

    return Tensor(unit, [(rows, pullback)])


def normalised(epsilon: float = 0.0, steep: float = 1.0, weights: Any = None) -> ReferenceModel:
    """Return a model of the sum of normalised rows, whose logits are of degree 0 in each row."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = normalise(lookup(model["E"], input_ids), epsilon)
        if attention_mask is not None:
            rows = rows * Tensor(attention_mask[..., None].astype(float))
        return (rows.sum(1) * Tensor(np.array(steep))).tanh() @ model["W"]

    return ReferenceModel(forward, WEIGHTS if weights is None else weights)


def attributed(model: Any, method: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        return embgrad.attribute(model, BATCH, LOGIT, method, **options)


@pytest.mark.parametrize("epsilon", [0.0, 1e-16])
@pytest.mark.parametrize(
    ("tokenizer", "taken", "of"), [(Tokenizer(), 0, "padding's"), (Ending(), 6, "end"), (None, "mean", "mean")]
)
def test_a_model_that_normalises_its_rows_gets_a_baseline_that_it_sees(
    epsilon: float, tokenizer: Any, taken: Any, of: str
) -> None:
    batch = embgrad.TokenBatch(IDS)
    model = normalised(epsilon)
    found = embgrad.attribute(model, batch, LOGIT, methods.IntegratedGradients(80), tokenizer=tokenizer)
    method = found.provenance["method"]
    assert method["baseline_taken"] == [taken, taken]
    assert method["baseline"] == "auto"
    why = "L at zeros is not finite" if epsilon == 0 else "L does not change with the scale of the values"
    assert all(reason.startswith(why) and of in reason for reason in method["reason"])
    expected = embgrad.attribute(model, batch, LOGIT, methods.IntegratedGradients(80, taken), tokenizer=tokenizer)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.baseline_objective, expected.baseline_objective)
    np.testing.assert_allclose(found.delta, 0, atol=1e-6)
    assert np.abs(found.scores).min() > 1e-4


def test_zeros_show_nothing_of_such_a_model_and_a_warning_says_what_to_give() -> None:
    """By Euler's theorem the gradient is at right angles to a row of whose scale L is independent."""
    for method in (methods.IntegratedGradients(50, "zero"), methods.IntegratedGradients(50, np.zeros(DIM))):
        with pytest.warns(embgrad.EmbgradWarning, match=re.escape(NO_DIRECTION)) as seen:
            found = embgrad.attribute(normalised(1e-16), BATCH, LOGIT, method)
        assert [warning.filename for warning in seen] == [__file__]
        np.testing.assert_allclose(found.scores, 0, atol=1e-6)
        np.testing.assert_allclose(found.error, np.abs(found.delta), rtol=1e-6)
    with pytest.warns(embgrad.EmbgradWarning, match="steps a position .*" + re.escape(NO_DIRECTION)):
        embgrad.attribute(normalised(1e-16), BATCH, LOGIT, methods.SequentialIntegratedGradients(20, "zero"))
    with pytest.warns(
        embgrad.EmbgradWarning,
        match="the contributions from zeros of example.s. '?0.* do not show how L changes. L does",
    ):
        embgrad.attribute(normalised(1e-16), BATCH, LOGIT, methods.GradientShap(["zero"]))


@pytest.mark.parametrize(
    "method",
    [methods.IntegratedGradients(5, "zero"), methods.SequentialIntegratedGradients(5, "zero"), methods.GradientShap(["zero"])],
    ids=lambda method: type(method).__name__,
)  # fmt: skip
def test_zeros_at_which_l_is_not_finite_are_refused(method: Any) -> None:
    with pytest.raises(
        embgrad.errors.ObjectiveError, match="The baseline of zeros has no direction, by which a model may divide: give"
    ):
        embgrad.attribute(normalised(), BATCH, LOGIT, method)


def test_a_pad_row_of_zeros_is_no_baseline_of_such_a_model() -> None:
    table = E.copy()
    table[0] = 0
    model = normalised(1e-16, weights={**WEIGHTS, "E": table})

    class Both(Tokenizer):
        eos_token_id = 3

    found = attributed(model, methods.IntegratedGradients(80), tokenizer=Both())
    assert found.provenance["method"]["baseline_taken"] == [3, 3]


def test_each_example_has_its_own_baseline() -> None:
    """An example of zeros alone has no other scale, and keeps what it has alone."""
    table = E.copy()
    table[[1, 4, 9, 3]] = 0
    model = normalised(1e-16, weights={**WEIGHTS, "E": table})
    found = embgrad.attribute(model, BATCH, LOGIT, methods.IntegratedGradients(80), tokenizer=Tokenizer())
    assert found.provenance["method"]["baseline_taken"] == [0, "zero"]
    assert not found.scores[1].any()
    for example in range(2):
        alone = embgrad.attribute(
            model, BATCH[example : example + 1], LOGIT, methods.IntegratedGradients(80), tokenizer=Tokenizer()
        )
        np.testing.assert_allclose(alone.scores[0], found.scores[example], atol=1e-14)


def _scaled(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) * Tensor(np.array(5.6))).mean(1).tanh() @ model["W"]


def _steep(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids).sum(1) * Tensor(np.array(40.0))).tanh() @ model["W"]


def _shifted(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids) + Tensor(np.arange(1.0, 1 + DIM))
    return normalise(rows, 1e-16).sum(1) @ model["W"]


def _coarse(model: Any, input_ids: np.ndarray) -> Tensor:
    return normalise(lookup(model["E"], input_ids), 1e-2).sum(1) @ model["W"]


@pytest.mark.parametrize("forward", [_scaled, _steep, _shifted, _coarse], ids=lambda forward: forward.__name__)
@pytest.mark.parametrize("steps", [50, 2])
@pytest.mark.filterwarnings("ignore:with 2 steps")
def test_zeros_stay_where_the_model_sees_them(forward: Any, steps: int) -> None:
    """A scaled lookup, a saturated one, positions before a norm, and an epsilon of the rows' size."""
    sizes: list[int] = []

    def counted(model: Any, inputs: Any) -> Tensor:
        sizes.append(len(inputs["input_ids"]))
        return forward(model, inputs["input_ids"])

    model, batch = ReferenceModel(forward, WEIGHTS), embgrad.TokenBatch(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if steps == 2 or forward is _steep else "error", embgrad.EmbgradWarning)
        found = embgrad.attribute(model, batch, LOGIT, methods.IntegratedGradients(steps), call=counted)
        expected = embgrad.attribute(model, batch, LOGIT, methods.IntegratedGradients(steps, "zero"))
    assert found.provenance["method"]["baseline_taken"] == ["zero", "zero"]
    assert found.provenance["method"]["reason"] == ["L changes with the scale of the values"] * 2
    np.testing.assert_array_equal(found.values, expected.values)
    if steps == 50:  # the objectives of fewer steps may be the same, so that a pass tests other scales
        assert sum(sizes) <= 2 * (2 + 3 + 2 + 2 * steps)


def test_the_objectives_of_samples_choose_the_baseline_of_other_methods() -> None:
    model = normalised(1e-16)
    for method, same in (
        (methods.GradientShap(samples=30, seed=2), methods.GradientShap(["pad"], samples=30, seed=2)),
        (
            methods.SmoothGrad(3, of=methods.IntegratedGradients(9)),
            methods.SmoothGrad(3, of=methods.IntegratedGradients(9, "pad")),
        ),
    ):
        found, expected = (attributed(model, entry, tokenizer=Tokenizer()) for entry in (method, same))
        np.testing.assert_allclose(found.values, expected.values, atol=1e-15)
        np.testing.assert_array_equal(found.baseline_objective, expected.baseline_objective)
    shap = attributed(normalised(), methods.GradientShap(samples=3), tokenizer=Tokenizer())
    assert shap.provenance["method"]["baseline_taken"] == [0, 0]
    assert attributed(curved(), methods.GradientShap(samples=3)).provenance["method"]["baseline_taken"] == ["zero"] * 2


def test_where_no_row_is_known_zeros_stay_and_the_reason_says_so() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        hidden = model.module("block", lambda rows: rows.tanh(), lookup(model["E"], input_ids))
        return normalise(hidden, 1e-16).sum(1) @ model["W"]

    model = ReferenceModel(forward, WEIGHTS, modules=["block"])
    with pytest.warns(embgrad.EmbgradWarning, match=re.escape(NO_DIRECTION)):
        found = embgrad.attribute(model, IDS, LOGIT, methods.IntegratedGradients(50), at="block")
    assert found.provenance["method"]["baseline_taken"] == ["zero", "zero"]
    assert found.provenance["method"]["reason"][0].endswith("and no other row is known")
    by_id = embgrad.attribute(model, IDS, LOGIT, methods.IntegratedGradients(50), at="block", tokenizer=Tokenizer())
    assert by_id.provenance["method"]["baseline_taken"] == [0, 0]
    with pytest.raises(
        embgrad.errors.UnsupportedError, match="the point 'block' has no table, whose mean row 'mean' puts"
    ):
        embgrad.attribute(model, IDS, LOGIT, methods.IntegratedGradients(5, "mean"), at="block")


def _normal_causal(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    return means(normalise(lookup(model["E"], input_ids), model.epsilon), attention_mask) @ model["V"]


@pytest.mark.parametrize("epsilon", [0.0, 1e-16])
def test_output_tokens_get_a_baseline_that_the_model_sees(epsilon: float) -> None:
    model = ReferenceModel(_normal_causal, WEIGHTS)
    model.epsilon = epsilon  # type: ignore[attr-defined]
    ids = np.array([[2, 7, 1, 9]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = embgrad.attribute_tokens(model, ids, method=methods.IntegratedGradients(60), tokenizer=Tokenizer())
        expected = embgrad.attribute_tokens(model, ids, method=methods.IntegratedGradients(60, 0))
    assert found.provenance["method"]["baseline_taken"] == [0]
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.baseline_objective, expected.baseline_objective)
    np.testing.assert_allclose(found.delta, 0, atol=1e-9)
    zero = methods.IntegratedGradients(60, "zero")
    if epsilon:
        with pytest.warns(embgrad.EmbgradWarning, match="3 of 3 output tokens .*" + re.escape(NO_DIRECTION)):
            embgrad.attribute_tokens(model, ids, method=zero)
        with pytest.warns(embgrad.EmbgradWarning, match="2 of 2 output tokens .*" + re.escape(NO_DIRECTION)):
            embgrad.attribute_tokens(model, ids, [slice(2, None), -1], [[[5, 8, 3], [6]]], zero)
    else:
        with pytest.raises(embgrad.errors.ObjectiveError, match="The baseline of zeros has no direction"):
            embgrad.attribute_tokens(model, ids, method=zero)
    usual = embgrad.attribute_tokens(causal(), ids, method=methods.IntegratedGradients(60))
    assert usual.provenance["method"]["baseline_taken"] == ["zero"]


def _sway(rows: Tensor) -> Tensor:
    """Return the sines of 300 times the rows."""
    return Tensor(np.sin(300 * rows.value), [(rows, lambda gradient: gradient * 300 * np.cos(300 * rows.value))])


def _swaying_causal(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """A causal model that sways on any line on which its first token changes, and is linear on the others before the softmax."""
    rows = lookup(model["E"], input_ids)
    first = (rows.swap(1, 2) @ Tensor(np.eye(input_ids.shape[1])[:, :1])).swap(1, 2)
    return (means(rows, attention_mask) + _sway(first)) @ model["V"]


def test_the_first_token_of_a_causal_model_stays_where_the_line_wanders_otherwise() -> None:
    model, ids = ReferenceModel(_swaying_causal, WEIGHTS), np.array([[2, 7, 1, 9], [3, 3, 8, 4]])
    with pytest.warns(embgrad.EmbgradWarning, match="with 20 steps the contributions to 6 of 6 output tokens miss"):
        embgrad.attribute_tokens(model, ids, method=methods.IntegratedGradients(20, "zero"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = embgrad.attribute_tokens(model, ids, method=methods.IntegratedGradients(20), tokenizer=Tokenizer())
        named = methods.IntegratedGradients(20, 0, keep_first=True)
        expected = embgrad.attribute_tokens(model, ids, method=named)
    method = found.provenance["method"]
    assert (method["baseline_taken"], method["first_kept"]) == ([0, 0], [True, True])
    assert method["reason"][0] == (
        "the error from zeros is larger than a quarter of the difference of L: the first token in place, and the padding's row"
    )
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.baseline_objective, expected.baseline_objective)
    assert not found.scores[..., 0].any()
    assert found.scores[..., 1:].any()
    assert found.error is not None
    assert found.error.max() < 1e-9


@pytest.mark.parametrize("baselines", [["zero"], [4], ["zero", 4]])
def test_the_first_real_position_can_be_kept(baselines: list[Any]) -> None:
    batch = embgrad.TokenBatch(IDS, np.array([[0, 1, 1, 1], [1, 1, 1, 1]]))
    own, first = embgrad.gradients(curved(), batch, LOGIT).activations, np.array([[0, 1, 0, 0], [1, 0, 0, 0]], bool)
    rows = [np.zeros(DIM) if baseline == "zero" else curved()["E"].value[baseline] for baseline in baselines]
    found = embgrad.attribute(curved(), batch, LOGIT, methods.IntegratedGradients(40, baselines, keep_first=True))
    by_arrays = [
        embgrad.attribute(
            curved(), batch, LOGIT, methods.IntegratedGradients(40, np.where(first[..., None], own, row))
        ).scores
        for row in rows
    ]
    np.testing.assert_allclose(found.scores[batch.real], np.mean(by_arrays, 0)[batch.real], rtol=1e-12, atol=1e-14)
    assert not found.scores[first].any()


def test_the_mean_row_of_the_table_is_a_baseline() -> None:
    model = linear()
    table, weights = model["E"].value, model["W"].value[:, 0]
    terms = (table[IDS] - table.mean(0)) @ weights * MASK
    for method in (
        methods.IntegratedGradients(2, "mean"),
        methods.Occlusion("mean"),
        methods.KernelShap(16, baseline="mean"),
        methods.SequentialIntegratedGradients(2, "mean"),
        methods.GradientShap(["mean"], samples=2),
    ):
        np.testing.assert_allclose(attributed(model, method).scores, terms, rtol=1e-10, atol=1e-13)


def test_the_result_for_several_baselines_is_their_mean() -> None:
    """Of half the square of a linear logit z the contributions are (z - z₀ of the position) × (z + z₀) / 2."""
    model, several = linear(), ["zero", 4, np.arange(DIM) / 7]
    table, weights = model["E"].value, model["W"].value[:, 0]
    terms, rows = table[IDS] @ weights * MASK, [np.zeros(DIM), table[4], np.arange(DIM) / 7]
    origins = [(row @ weights) * MASK for row in rows]
    expected = np.mean([(terms - origin) * (terms + origin).sum(1, keepdims=True) / 2 for origin in origins], axis=0)
    found = embgrad.attribute(model, BATCH, HalfSquare(), methods.IntegratedGradients(3, several))
    np.testing.assert_allclose(found.scores, expected, atol=1e-13)
    np.testing.assert_allclose(found.baseline_objective, np.mean([o.sum(1) ** 2 / 2 for o in origins], 0), atol=1e-13)
    np.testing.assert_allclose(found.delta, 0, atol=1e-12)
    np.testing.assert_allclose(found.error, 0, atol=1e-12)
    assert found.provenance["method"]["steps_taken"] == [9, 9]
    noisy = methods.SmoothGrad(1, 0.0, of=methods.IntegratedGradients(3, several))
    np.testing.assert_allclose(embgrad.attribute(model, BATCH, HalfSquare(), noisy).scores, expected, atol=1e-13)


@pytest.mark.parametrize(
    "method",
    [
        methods.Occlusion(["zero", 4]),
        methods.KernelShap(16, baseline=(4, "zero")),
        methods.Lime(40, baseline=["zero", 4]),
        methods.SequentialIntegratedGradients(5, ["zero", 4]),
        methods.DiscretizedIntegratedGradients(5, [3, 4]),
    ],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.filterwarnings("ignore:with .* do not sum")
def test_every_method_with_a_baseline_takes_several(method: Any) -> None:
    name = "replacement" if isinstance(method, methods.Occlusion) else "baseline"
    found = embgrad.attribute(curved(), BATCH, LOGIT, method)
    singles = [
        embgrad.attribute(curved(), BATCH, LOGIT, type(method)(**{**vars(method), name: entry}))
        for entry in getattr(method, name)
    ]
    np.testing.assert_allclose(found.scores, np.mean([single.scores for single in singles], 0), atol=1e-15)
    if singles[0].error is not None:
        np.testing.assert_allclose(found.error, np.mean([single.error for single in singles], 0), atol=1e-15)
    if isinstance(method, methods.KernelShap):
        assert found.provenance["method"]["exact"] == [True, True]


@pytest.mark.parametrize("moved", [False, True])
def test_output_tokens_take_several_baselines(moved: bool) -> None:
    ids, mask = np.array([[0, 0, 2, 7, 1]]), np.array([[0, 0, 1, 1, 1]])
    batch = embgrad.TokenBatch(ids, mask) if moved else embgrad.TokenBatch(ids[:, 2:])
    rows = np.random.default_rng(4).normal(size=(batch.shape[1], DIM))
    singles = [
        embgrad.attribute_tokens(causal(), batch, method=methods.IntegratedGradients(20, entry))
        for entry in ("zero", rows, "mean")
    ]
    several = methods.IntegratedGradients(20, ["zero", rows, "mean"])
    found = embgrad.attribute_tokens(causal(), batch, method=several)
    for name in ("scores", "baseline_objective", "delta", "error"):
        expected = np.mean([getattr(single, name) for single in singles], axis=0)
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-13)
    assert found.provenance["method"]["steps_taken"] == [60]
    occluded = embgrad.attribute_tokens(causal(), batch, method=methods.Occlusion([3, 4]))
    expected = np.mean(
        [embgrad.attribute_tokens(causal(), batch, method=methods.Occlusion(entry)).scores for entry in (3, 4)], axis=0
    )
    np.testing.assert_allclose(occluded.scores, expected, atol=1e-14)


@pytest.mark.parametrize("shape", [(3, 5, DIM), (2, 1, 5, DIM), (4, DIM)])
def test_a_baseline_that_does_not_fit_output_tokens_is_refused_on_whichever_side_the_padding_is(
    shape: tuple[int, ...],
) -> None:
    method = methods.IntegratedGradients(5, np.zeros(shape))
    for mask in ([1, 1, 1, 0, 0], [0, 0, 1, 1, 1]):
        batch = embgrad.TokenBatch([[4, 2, 2, 7, 1]], [mask])
        with refused(embgrad.EmbgradError, f"baseline has the shape {shape}: expected values that broadcast"):
            embgrad.attribute_tokens(causal(), batch, method=method)


@pytest.mark.parametrize("baseline", [[], ["zero", None], ["zeros"], [3, -1]])
def test_a_list_that_is_no_baselines_is_refused(baseline: Any) -> None:
    with pytest.raises(embgrad.EmbgradError, match=r"baseline is "):
        methods.IntegratedGradients(5, baseline)
    with pytest.raises(embgrad.EmbgradError, match=r"baseline is 'auto': expected"):
        methods.Lime(baseline="auto")


def test_the_configuration_of_a_model_knows_its_padding() -> None:
    class Config:
        pad_token_id = None
        eos_token_id = (6, 7)

    model = normalised(1e-16)
    model.config = Config()  # type: ignore[attr-defined]
    found = embgrad.attribute(model, IDS, LOGIT, methods.IntegratedGradients(80))
    assert found.provenance["method"]["baseline_taken"] == [6, 6]
    Config.eos_token_id = 0  # type: ignore[assignment]
    found = embgrad.attribute(model, IDS, LOGIT, methods.IntegratedGradients(80))
    assert found.provenance["method"]["baseline_taken"] == [0, 0]
