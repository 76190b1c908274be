"""Lines that are refined where they bend, and the bound of what contributions miss, against closed forms."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import methods
from embgrad.attribution.quadrature import RULES, error_along, integrals_up_to_nodes, largest_gap, nodes_and_weights
from embgrad.attribution.refinement import MOST_STEPS, SHORTEST, refine
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import causal, means, weights
from tests.unit.attribution.models import BATCH, IDS, MASK, HalfSquare, curved, linear
from tests.unit.attribution.test_attribute_tokens import alone

WEIGHTS = {"E": np.random.default_rng(0).normal(size=(12, 3)), "W": np.random.default_rng(1).normal(size=(3, 2))}
LOGIT = embgrad.Logit(0)
LANGUAGE = weights()


def of_sum(function: Any, slope: Any, calls: list[int] | None = None) -> ReferenceModel:
    """Return a model whose first logit is a function of the first logit of a linear one."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = lookup(model["E"], input_ids)
        if attention_mask is not None:
            rows = rows * Tensor(attention_mask[..., None].astype(float))
        sums = rows.sum(1) @ model["W"]
        if calls is not None:
            calls.append(len(input_ids))
        return Tensor(function(sums.value), [(sums, lambda gradient: gradient * slope(sums.value))])

    return ReferenceModel(forward, WEIGHTS)


def cornered(corner: float, calls: list[int] | None = None) -> ReferenceModel:
    """Return a model that is linear with a corner where the sum is at `corner`."""
    return of_sum(lambda z: z + 3 * np.maximum(z - corner, 0), lambda z: 1 + 3 * (z > corner), calls)


def terms_of(ids: np.ndarray = IDS, mask: np.ndarray = MASK) -> np.ndarray:
    return np.asarray(WEIGHTS["E"][ids] @ WEIGHTS["W"][:, 0] * mask)


def attributed(model: Any, method: Any, batch: Any = BATCH, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        return embgrad.attribute(model, batch, LOGIT, method, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 50])
def test_integrals_up_to_the_nodes_are_those_of_what_a_rule_integrates(rule: str, steps: int) -> None:
    nodes, shares = nodes_and_weights(rule, steps)
    degree = steps - 1 if rule == "gausslegendre" else int(rule == "riemann_trapezoid" and steps > 1)
    found = integrals_up_to_nodes(rule, np.stack([(degree + 1) * nodes**degree, np.full(steps, 2.0)], 1))
    np.testing.assert_allclose(found, np.stack([nodes ** (degree + 1), 2 * nodes], 1), atol=1e-12)
    assert shares @ nodes**0 == pytest.approx(1)


def test_the_largest_gap_is_that_of_any_stretch() -> None:
    gaps = np.array([[0.5, 1.0, -1.0], [-0.25, 2.0, -3.0], [0.25, 1.5, -0.5]])
    np.testing.assert_array_equal(largest_gap(gaps), [0.75, 2.0, 3.0])


def test_errors_of_two_stretches_do_not_cancel() -> None:
    """The slopes miss by +1 on the first half and by -1 on the second: the sum is right, and half of the line is not."""
    objectives = np.array([[0.25], [0.75]])
    error = error_along("riemann_middle", np.array([[2.0], [0.0]]), objectives, np.zeros(1), np.zeros(1))
    np.testing.assert_allclose(error, [0.25])  # at both nodes: 2 × 1/4 - 1/4, and 2 × 1/2 - 3/4
    end = error_along("riemann_middle", np.array([[2.0], [0.0]]), objectives, np.zeros(1), np.array([-0.5]))
    np.testing.assert_allclose(end, [0.75])


@pytest.mark.parametrize("rule", ["gausslegendre", "riemann_trapezoid"])
def test_the_error_of_a_quadratic_form_is_zero(rule: str) -> None:
    """The slope along the line is linear, which both rules integrate exactly, up to each node as well."""
    found = embgrad.attribute(linear(), BATCH, HalfSquare(), methods.IntegratedGradients(4, rule=rule))
    np.testing.assert_allclose(found.error, 0, atol=1e-12)


@pytest.mark.parametrize("tolerance", [0.03, 1e-3])
def test_a_corner_is_found_and_its_error_bounded(tolerance: float) -> None:
    """Between zero and the sum z the slope is 1 up to the corner c and 4 after it: contributions are terms × (4z - 3c) / z."""
    calls: list[int] = []
    corner = terms_of().sum(1)[0] * 0.37
    model = cornered(corner, calls)
    found = attributed(model, methods.IntegratedGradients(10, tolerance=tolerance))
    terms, sums = terms_of(), terms_of().sum(1)
    factor = 1 + 3 * np.where(sums > 0, np.maximum(sums - corner, 0), np.where(corner < 0, sums - corner, 0)) / sums
    factor = np.where(sums < corner, 1 + 0 * sums, factor) if corner > 0 else factor
    exact = terms * factor[:, None]
    assert found.error is not None
    difference = found.objective - found.baseline_objective
    assert (np.abs(found.delta) <= found.error).all()
    assert (found.error <= tolerance * np.abs(difference) + 1e-12).all()
    # All terms have one slope along the line, so that each misses the same share as their sum.
    share = np.abs(found.delta) / np.abs(sums)
    np.testing.assert_allclose(np.abs(found.scores - exact), share[:, None] * np.abs(terms), atol=1e-12)
    taken = found.provenance["method"]["steps_taken"]
    assert max(taken) <= 320
    assert taken[0] > 10, "the corner is not at a node"


def test_a_corner_takes_fewer_steps_than_even_ones() -> None:
    corner = terms_of().sum(1)[0] * 0.37
    found = attributed(cornered(corner), methods.IntegratedGradients(10, tolerance=1e-3))
    steps = found.provenance["method"]["steps_taken"][0]
    even = embgrad.attribute(cornered(corner), BATCH, LOGIT, methods.IntegratedGradients(4 * steps))
    assert abs(found.delta[0]) < abs(even.delta[0])


def test_without_a_tolerance_the_steps_stay_and_the_error_bounds_the_sum() -> None:
    corner = terms_of().sum(1)[0] * 0.37
    found = embgrad.attribute(cornered(corner), BATCH, LOGIT, methods.IntegratedGradients(50))
    assert found.provenance["method"]["steps_taken"] == [50, 50]
    assert found.error is not None
    assert abs(found.delta[0]) < found.error[0] < 0.2 * abs(found.objective[0])


class Cubic:
    """A line along which L is the cube of the place, of one example."""

    examples, is_free, at_once = 1, True, 3

    def objectives_at(self, examples: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return L."""
        return np.asarray(places[:, None] ** 3)

    def integrals(
        self, examples: np.ndarray, places: np.ndarray, weights: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the sums of the slopes."""
        sums = (3 * places**2 * weights).sum(0)
        return [sums], sums[:, None]


@pytest.mark.parametrize(("allowed", "length"), [(0.0626, 1 / 2), (0.0624, 1 / 4), (0.0157, 1 / 4), (0.0155, 1 / 8)])
def test_parts_are_halved_until_each_misses_its_share_at_most(allowed: float, length: float) -> None:
    """By the middle of a part of length h the cube misses h³ / 4, which may be h times the whole error that is allowed."""
    ends, none = (np.zeros((1, 1)), np.ones((1, 1))), np.zeros((1, 1))
    made = refine(Cubic(), np.arange(1), ends, np.full((1, 1), allowed), none, "riemann_middle", 1, 1000)
    assert made is not None
    np.testing.assert_allclose(made.contributions[0], [1 - length**2 / 4])
    np.testing.assert_allclose(made.error, [[length**2 / 4]])
    assert made.taken == [1 + sum(2**number for number in range(1, round(1 - np.log2(2 * length)) + 1))]


def winding(z: np.ndarray) -> np.ndarray:
    return np.asarray(z + np.sin(40 * z))


def test_a_winding_line_converges_and_matches_its_closed_form() -> None:
    """Contributions are terms × (f(z) - f(0)) / z for a function f of the sum z."""
    model = of_sum(winding, lambda z: 1 + 40 * np.cos(40 * z))
    with pytest.warns(embgrad.EmbgradWarning, match="with 20 steps .* do not sum to .* or a tolerance"):
        poor = embgrad.attribute(model, BATCH, LOGIT, methods.IntegratedGradients(20))
    assert np.abs(poor.delta).max() > 0.3  # type: ignore[arg-type]
    found = attributed(model, methods.IntegratedGradients(20, tolerance=1e-4, most=4000))
    terms, sums = terms_of(), terms_of().sum(1)
    np.testing.assert_allclose(found.scores, terms * (winding(sums) / sums)[:, None], atol=1e-3)
    assert (found.error <= 1e-4 * np.abs(winding(sums)) + 1e-12).all()
    assert max(found.provenance["method"]["steps_taken"]) <= 4000


@pytest.mark.parametrize("most", [20, 30, 60, 200])
def test_no_example_takes_more_steps_than_are_allowed(most: int) -> None:
    calls: list[int] = []
    model = of_sum(winding, lambda z: 1 + 40 * np.cos(40 * z), calls)
    method = methods.IntegratedGradients(20, tolerance=1e-9, most=most)
    with pytest.warns(
        embgrad.EmbgradWarning,
        match="Give most=... for more steps, .* keep_first=True, or take a method that needs no path",
    ):
        found = embgrad.attribute(model, BATCH[:1], LOGIT, method, batch_size=1)
    (taken,) = found.provenance["method"]["steps_taken"]
    assert 20 <= taken <= most
    assert (taken == 20) == (most < 20 + 2 * MOST_STEPS)
    assert found.error is not None
    assert found.error[0] >= abs(found.delta[0])  # type: ignore[index]


def test_the_most_steps_are_thirty_two_times_the_first_where_the_user_names_none() -> None:
    assert methods.IntegratedGradients(5).most_steps == 160
    assert methods.IntegratedGradients(5, most=70).most_steps == 70


def test_an_example_is_refined_as_it_is_alone_and_in_passes_of_any_size() -> None:
    corner = terms_of().sum(1)[0] * 0.37
    method = methods.IntegratedGradients(10, tolerance=1e-3)
    whole = attributed(cornered(corner), method)
    for size in (1, 2, 3, 7, 50):
        found = attributed(cornered(corner), method, batch_size=size)
        np.testing.assert_allclose(found.values, whole.values, atol=1e-12)
        np.testing.assert_allclose(found.error, whole.error, atol=1e-12)
        assert found.provenance["method"]["steps_taken"] == whole.provenance["method"]["steps_taken"]
    for example in range(2):
        alone = attributed(cornered(corner), method, BATCH[example : example + 1])
        np.testing.assert_allclose(alone.values[0], whole.values[example], atol=1e-12)
        assert alone.provenance["method"]["steps_taken"][0] == whole.provenance["method"]["steps_taken"][example]


def test_a_function_as_objective_is_refined_in_whole_batches() -> None:
    corner = terms_of().sum(1)[0] * 0.37
    method, calls = methods.IntegratedGradients(10, tolerance=1e-3), list[int]()
    expected = attributed(cornered(corner), method)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = embgrad.attribute(cornered(corner, calls), BATCH, lambda outputs: outputs.column(0), method)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-12)
    assert set(calls) == {2}


def test_a_part_whose_gradient_is_not_finite_leaves_the_even_steps() -> None:
    """The slope is not finite below a place that the even steps do not reach."""
    model = of_sum(np.sin, lambda z: np.where(np.abs(z) < 1e-4, np.nan, 3 * np.cos(z)))
    method = methods.IntegratedGradients(5, tolerance=1e-6, most=10**5)
    with pytest.warns(embgrad.EmbgradWarning, match="with 5 steps .* Give most"):
        found = embgrad.attribute(model, BATCH, LOGIT, method)
    assert found.provenance["method"]["steps_taken"] == [5, 5]
    assert SHORTEST < 1e-3


@pytest.mark.parametrize("at_baseline", [True, False])
def test_the_baseline_needs_no_gradient(at_baseline: bool) -> None:
    """At zeros the slope is not finite, also where a pass runs that row alone."""
    calls: list[int] = []
    model = of_sum(np.cbrt, lambda z: np.where(z == 0, np.nan, 1 / (3 * np.cbrt(z) ** 2 + (z == 0))), calls)
    embgrad.attribute(model, BATCH, LOGIT, methods.Occlusion("zero"))
    calls.clear()
    size = None if at_baseline else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        found = embgrad.attribute(model, BATCH, LOGIT, methods.IntegratedGradients(6), batch_size=size)
    # The last passes run the batch once more, since the warning says whether the model is random.
    assert calls == ([2, 4, 2, 12, 2] if at_baseline else [1] * 18)
    nodes, shares = np.polynomial.legendre.leggauss(6)
    factor = (shares / 2 / (3 * np.cbrt((nodes + 1) / 2) ** 2)).sum()
    sums = terms_of().sum(1)
    np.testing.assert_allclose(found.scores, terms_of() * (factor / np.cbrt(sums) ** 2)[:, None], rtol=1e-10)


@pytest.mark.parametrize("rule", ["riemann_left", "riemann_trapezoid"])
def test_a_rule_that_needs_a_gradient_at_the_baseline_says_so(rule: str) -> None:
    model = of_sum(np.cbrt, lambda z: np.where(z == 0, np.nan, 1.0))
    with pytest.raises(
        embgrad.errors.NoGradientError, match="takes a step at the baseline itself: rule='gausslegendre'"
    ):
        embgrad.attribute(model, BATCH, LOGIT, methods.IntegratedGradients(6, rule=rule))


def steep_causal(calls: list[int] | None = None) -> ReferenceModel:
    """Return a causal language model whose logits wind along the line."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        if calls is not None:
            calls.append(len(input_ids))
        return (means(lookup(model["E"], input_ids), attention_mask) * Tensor(np.array(12.0))).tanh() @ model["W"]

    return ReferenceModel(forward, weights())


def test_output_tokens_are_refined_until_each_is_right() -> None:
    ids = np.array([[2, 7, 1, 5, 9], [3, 8, 6, 0, 0]])
    batch = embgrad.TokenBatch(ids, [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with pytest.warns(embgrad.EmbgradWarning, match="output tokens miss"):
        poor = embgrad.attribute_tokens(steep_causal(), batch, method=methods.IntegratedGradients(10))
    method = methods.IntegratedGradients(10, tolerance=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = embgrad.attribute_tokens(steep_causal(), batch, method=method)
        small = embgrad.attribute_tokens(steep_causal(), batch, method=method, batch_size=3)
        alone = embgrad.attribute_tokens(steep_causal(), batch[:1], method=method)
        many = embgrad.attribute_tokens(steep_causal(), batch, method=methods.IntegratedGradients(400))
    assert found.error is not None
    assert poor.error is not None
    present = ~np.isnan(found.objective)
    difference = np.abs(found.objective - found.baseline_objective)[present]
    assert (np.abs(found.delta)[present] <= found.error[present]).all()
    assert (found.error[present] <= 1e-3 * difference + 1e-9).all()
    assert (poor.error[present] > 1e-3 * difference).any()
    assert np.isnan(found.error[~present]).all()
    np.testing.assert_allclose(found.scores, many.scores, atol=5e-3 * difference.max())
    np.testing.assert_allclose(small.scores, found.scores, atol=1e-12)
    np.testing.assert_allclose(alone.scores[0], found.scores[0], atol=1e-12)
    taken = found.provenance["method"]["steps_taken"]
    assert len(taken) == 2
    assert 10 < max(taken) <= 320
    np.testing.assert_array_equal(found.of_output(0).error, found.error[:, 0])


def test_output_tokens_that_do_not_converge_are_named_with_what_to_do() -> None:
    method = methods.IntegratedGradients(10, tolerance=1e-9, most=40)
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"with \d+ steps .* by more than 1e-09 of it.* Give most=... for more"
    ):
        found = embgrad.attribute_tokens(steep_causal(), [[2, 7, 1]], method=method)
    assert found.provenance["method"]["steps_taken"][0] <= 40
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        usual = embgrad.attribute_tokens(causal(), [[2, 7, 1]], method=methods.IntegratedGradients(40, tolerance=0.01))
    assert usual.provenance["method"]["steps_taken"] == [40]
    with pytest.raises(embgrad.EmbgradError, match="most is 9: expected a whole number of at least 10"):
        methods.IntegratedGradients(10, tolerance=0.1, most=9)


def test_other_methods_with_a_sum_have_an_error_too() -> None:
    """Of sequential integrated gradients each position's sum is known, of a path along rows that up to each of its points."""
    sequential = embgrad.attribute(curved(), BATCH, LOGIT, methods.SequentialIntegratedGradients(60, 4))
    np.testing.assert_allclose(sequential.error, 0, atol=1e-9)
    with pytest.warns(embgrad.EmbgradWarning, match="steps a position"):
        poor = embgrad.attribute(curved(), BATCH, LOGIT, methods.SequentialIntegratedGradients(1, 4))
    exact = embgrad.attribute(curved(), BATCH, LOGIT, methods.Occlusion(4))
    np.testing.assert_allclose(poor.error, np.abs(poor.scores - exact.scores).sum(1), atol=1e-12)
    on_line = embgrad.attribute(linear(), BATCH, LOGIT, methods.DiscretizedIntegratedGradients(6, 4))
    np.testing.assert_allclose(on_line.error, 0, atol=1e-12)
    with pytest.warns(embgrad.EmbgradWarning, match="with 6 steps"):
        winding_rows = embgrad.attribute(curved(), BATCH, LOGIT, methods.DiscretizedIntegratedGradients(6, 4))
    assert (winding_rows.error >= np.abs(winding_rows.delta)).all()  # type: ignore[operator]
    shap = embgrad.attribute(curved(), BATCH, LOGIT, methods.GradientShap(samples=5))
    np.testing.assert_array_equal(shap.error, np.abs(shap.delta))  # type: ignore[arg-type]
    assert embgrad.attribute(curved(), BATCH, LOGIT, methods.Saliency()).error is None


def _rooted(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Return logits of the square roots of the rows' sizes, whose gradient at zero is not finite."""
    rows = lookup(model["E"], input_ids)
    root = np.sqrt(np.abs(rows.value))

    def pullback(gradient: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(gradient * np.sign(rows.value) / (2 * root))

    return means(Tensor(root, [(rows, pullback)]), attention_mask) @ model["W"]


@pytest.mark.parametrize("rule", ["gausslegendre", "riemann_right", "riemann_middle"])
@pytest.mark.filterwarnings("ignore:.*do not sum to:embgrad.EmbgradWarning", "ignore:.*miss the difference")
def test_no_gradient_is_needed_at_an_end_of_the_path_without_weight(rule: str) -> None:
    """The gradient at the baseline is nan, and the sum over the rule's own nodes has a closed form."""
    ids, model, method = alone(0), ReferenceModel(_rooted, LANGUAGE), embgrad.methods.IntegratedGradients(6, rule=rule)
    count = ids.shape[1] - 1
    direction = (LANGUAGE["W"][:, ids[0, -1]] - LANGUAGE["W"][:, 3]) / count
    whole = np.sqrt(np.abs(LANGUAGE["E"][ids[0, :count]])) @ direction
    if rule == "gausslegendre":
        nodes, shares = np.polynomial.legendre.leggauss(6)
        nodes, shares = (nodes + 1) / 2, shares / 2
    else:
        nodes, shares = (np.arange(6) + (1 if rule == "riemann_right" else 0.5)) / 6, np.full(6, 1 / 6)
    factor = (shares / (2 * np.sqrt(nodes))).sum()
    result = embgrad.attribute_tokens(model, ids, [-1], contrast=3, method=method)
    np.testing.assert_allclose(result.scores[0, 0, :count], factor * whole, atol=1e-12)
    assert result.baseline_objective is not None
    assert result.delta is not None
    np.testing.assert_allclose(result.baseline_objective, 0, atol=1e-12)
    np.testing.assert_allclose(result.delta, [[(factor - 1) * whole.sum()]], atol=1e-12)
    margin = embgrad.Margin(ids[0, -1:], 3, position=count - 1)
    by_attribute = embgrad.attribute(model, ids, margin, method)
    np.testing.assert_allclose(by_attribute.scores[0, :count], factor * whole, atol=1e-12)


def test_a_gradient_that_is_not_finite_at_a_node_with_weight_is_refused() -> None:
    model, method = ReferenceModel(_rooted, LANGUAGE), embgrad.methods.IntegratedGradients(6, rule="riemann_left")
    with pytest.raises(
        embgrad.errors.NoGradientError,
        match=r"the gradient of the output tokens at index 0 at 'word' is .* The rule 'riemann_left' takes a step at the",
    ):
        embgrad.attribute_tokens(model, alone(0), [-1], contrast=3, method=method)
