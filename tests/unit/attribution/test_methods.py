"""Attribution methods on models in NumPy, against their closed forms."""

from __future__ import annotations

import warnings
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.attribution.discretized import NearestRows, paths_of
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.attribution.shapley import exact_values, fit_values, sample_coalitions
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import BATCH, DIM, IDS, MASK, HalfSquare, Tokenizer, curved, linear

LOGIT = embgrad.Logit(0)
#: The methods whose scores on a linear model are the inner products of the weights with the inputs.
LINEAR = [
    embgrad.methods.InputXGradient(),
    embgrad.methods.IntegratedGradients(3),
    embgrad.methods.SequentialIntegratedGradients(2, baseline="zero"),
    embgrad.methods.GradientShap(samples=4),
    embgrad.methods.Occlusion("zero"),
    embgrad.methods.KernelShap(16, baseline="zero"),
]
SAMPLED = [
    embgrad.methods.SmoothGrad(7, 0.3),
    embgrad.methods.SmoothGrad(5, 0.3, reduce="variance", of=embgrad.methods.IntegratedGradients(3)),
    embgrad.methods.GradientShap((4, "zero"), samples=5, sigma=0.2),
    embgrad.methods.Lime(40, baseline=4),
    embgrad.methods.KernelShap(8, baseline=4),
]


def name_of(method: Any) -> str:
    return type(method).__name__


def rows_of(model: ReferenceModel) -> np.ndarray:
    return model["E"].value[IDS]


@pytest.mark.parametrize("method", LINEAR, ids=name_of)
def test_on_a_linear_model_scores_are_the_terms_of_the_sum(method: Any) -> None:
    model = linear()
    found = embgrad.attribute(model, BATCH, LOGIT, method)
    terms = (rows_of(model) @ model["W"].value[:, 0]) * MASK
    np.testing.assert_allclose(found.scores, terms, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.objective, terms.sum(1), rtol=1e-12)
    if found.delta is not None:
        np.testing.assert_allclose(found.delta, 0, atol=1e-13)


def test_saliency_is_the_gradient_and_its_scores_the_lengths() -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, "saliency")
    gradient = embgrad.gradients(curved(), BATCH, LOGIT)
    np.testing.assert_array_equal(found.values, gradient.values)
    np.testing.assert_allclose(found.scores, np.linalg.norm(gradient.values, axis=-1), rtol=1e-12)
    assert found.baseline_objective is None
    assert found.delta is None


@pytest.mark.parametrize("baseline", ["zero", 4, np.arange(DIM) / 7], ids=["zero", "id", "array"])
@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients_of_a_quadratic_form(rule: str, baseline: Any) -> None:
    """The gradient along the line is linear, so that each rule's result is known."""
    model = linear()
    found = embgrad.attribute(
        model, BATCH, HalfSquare(), embgrad.methods.IntegratedGradients(2, baseline, rule, tolerance=None)
    )
    weights, rows = model["W"].value[:, 0], rows_of(model) * MASK[..., None]
    origin = {"zero": np.zeros(DIM), "4": model["E"].value[4]}.get(str(baseline), baseline) * MASK[..., None]
    end, start = (rows @ weights).sum(1), (origin @ weights).sum(1)
    nodes, shares = nodes_and_weights(rule, 2)
    mean = sum(share * (start + node * (end - start)) for node, share in zip(nodes, shares, strict=True))
    np.testing.assert_allclose(found.scores, ((rows - origin) @ weights) * mean[:, None], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.baseline_objective, start**2 / 2, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.delta, found.scores.sum(1) - (end**2 - start**2) / 2, atol=1e-12)


def test_integrated_gradients_are_complete_at_a_hidden_state() -> None:
    method = embgrad.methods.IntegratedGradients(40)
    found = embgrad.attribute(curved(), BATCH, LOGIT, method, at="block")
    assert found.delta is not None
    assert np.abs(found.delta).max() < 1e-10
    hidden = embgrad.gradients(curved(), BATCH, LOGIT, at="block").activations
    assert found.values is not None
    np.testing.assert_array_equal(found.values == 0, (hidden == 0) | (MASK[..., None] == 0))


def test_an_id_as_baseline_at_a_hidden_state_is_the_hidden_state_of_that_id() -> None:
    other = embgrad.TokenBatch(np.where(MASK, 4, IDS), MASK)
    hidden = embgrad.gradients(curved(), other, LOGIT, at="block").activations
    by_id, by_array = (
        embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(4, baseline), at="block")
        for baseline in (4, hidden)
    )
    np.testing.assert_array_equal(by_id.scores, by_array.scores)


def test_no_pass_is_of_more_examples_than_the_batch_size() -> None:
    sizes = []

    def counted(model: Any, inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return model.forward(model, inputs["input_ids"], inputs["attention_mask"])

    for method in (embgrad.methods.IntegratedGradients(3, 4), embgrad.methods.Occlusion(4)):
        embgrad.attribute(curved(), BATCH, LOGIT, method, call=counted, batch_size=1)
    assert set(sizes) == {1}
    sizes.clear()
    few = embgrad.methods.IntegratedGradients(1, rule="riemann_left", tolerance=0.05)
    embgrad.attribute(curved(), BATCH, LOGIT, few, call=counted, batch_size=2)
    assert set(sizes) == {2}


def test_a_tolerance_refines_the_line_until_it_holds() -> None:
    few = embgrad.methods.IntegratedGradients(1, rule="riemann_middle", tolerance=0.05, most=600)
    found = embgrad.attribute(curved(), BATCH, LOGIT, few)
    assert found.provenance["method"]["steps"] == 1
    taken = found.provenance["method"]["steps_taken"]
    for example, steps in enumerate(taken):
        alone = embgrad.attribute(curved(), BATCH[example : example + 1], LOGIT, few)
        assert alone.provenance["method"]["steps_taken"] == [steps]
        np.testing.assert_allclose(alone.scores[0], found.scores[example], rtol=1e-12)
    assert found.delta is not None
    assert found.baseline_objective is not None
    assert found.error is not None
    assert (np.abs(found.delta) <= found.error).all()
    assert (found.error <= 0.05 * np.abs(found.objective - found.baseline_objective)).all()


def test_examples_that_miss_completeness_are_warned_of() -> None:
    with pytest.warns(
        embgrad.EmbgradWarning,
        match=r"with 1 steps the contributions of example\(s\) 0, 1 do not .* or a tolerance, with which the line",
    ):
        embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(1, rule="riemann_left"))
    with pytest.warns(
        embgrad.EmbgradWarning,
        match=r"with 31 steps .* on each stretch of the line within 1e-09 .* Give most=... for more",
    ):
        embgrad.attribute(
            curved(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(1, rule="riemann_left", tolerance=1e-9)
        )


def test_a_gradient_that_is_not_finite_at_the_baseline_alone_does_no_harm() -> None:
    """The square root of the squares has none at zero, and its contributions are those of the length."""

    class Length(embgrad.Objective):
        def _rows(self, rows: Any) -> Any:
            lengths = np.linalg.norm(rows.values, axis=1)
            with np.errstate(all="ignore"):
                return lengths, rows.values / lengths[:, None]

    found = embgrad.attribute(linear(), BATCH, Length(), embgrad.methods.IntegratedGradients(3))
    np.testing.assert_allclose(found.scores.sum(1), embgrad.evaluate(linear(), BATCH, Length()), rtol=1e-12)
    assert found.baseline_objective is not None
    assert not found.baseline_objective.any()


def test_sequential_integrated_gradients_add_up_position_by_position() -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.SequentialIntegratedGradients(80, baseline=4))
    occluded = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.Occlusion(4))
    np.testing.assert_allclose(found.scores, occluded.scores, atol=1e-9)
    assert found.delta is not None
    assert np.abs(found.delta).max() < 1e-9


def test_discretized_integrated_gradients_sum_the_segments_of_paths_along_rows() -> None:
    model, steps = curved(), 6
    method = embgrad.methods.DiscretizedIntegratedGradients(steps, baseline=4, neighbours=3)
    with pytest.warns(embgrad.EmbgradWarning, match="with 6 steps the contributions"):
        found = embgrad.attribute(model, BATCH, LOGIT, method)
    table = model["E"].value
    points = rows_of(model)[None].repeat(steps, 0)
    for example, position in np.argwhere(MASK):
        points[:, example, position] = plain_path(table, IDS[example, position], 4, steps, 3)
    gradients = [embgrad.gradients(model, BATCH, LOGIT, override={"word": values}).values for values in points[:-1]]
    expected = sum(gradient * segment for gradient, segment in zip(gradients, np.diff(points, axis=0), strict=True))
    np.testing.assert_allclose(found.values, expected, atol=1e-14)
    difference = embgrad.evaluate(model, BATCH, LOGIT) - embgrad.evaluate(
        model, BATCH, LOGIT, override={"word": points[0]}
    )
    np.testing.assert_allclose(found.delta, found.scores.sum(1) - difference, atol=1e-12)


def plain_path(table: np.ndarray, start: int, end: int, steps: int, neighbours: int) -> np.ndarray:
    """Return the path of the greedy strategy, one number at a time."""
    words, points = [start], [table[start]]
    for _ in range(steps - 2):
        word = words[-1]
        if word != end:
            nearest = sorted(set(range(len(table))) - {word}, key=lambda id_: np.linalg.norm(table[id_] - table[word]))
            candidates = [id_ for id_ in nearest[:neighbours] if id_ not in words and id_ != end]
            costs = [
                np.linalg.norm(table[id_] - between(table[id_], table[word], table[end], steps)) for id_ in candidates
            ]
            word = candidates[int(np.argmin(costs))] if candidates else end
        words.append(word)
        points.append(between(table[word], points[-1], table[end], steps))
    return np.stack([*points, table[end]][::-1])


def between(row: np.ndarray, last: np.ndarray, baseline: np.ndarray, steps: int) -> np.ndarray:
    return np.array(
        [
            number if min(before, to) <= number <= max(before, to) else before - (before - to) / steps
            for number, before, to in zip(row, last, baseline, strict=True)
        ]
    )


@pytest.mark.parametrize("place", [49, 50, 51])
def test_the_fifty_nearest_rows_are_the_candidates_of_a_step(place: int) -> None:
    """One row alone lies between the token and the baseline: a step to it changes no dimension."""
    angles = np.linspace(2, 4, 60)  # away from the baseline
    nearer = np.stack([np.cos(angles), np.sin(angles)], 1) * np.arange(1, 61)[:, None]
    between_both, baseline = [place - 0.5, 0.01], [100.0, 0.02]
    table = np.array([[0.0, 0.0], *nearer, between_both, baseline])
    model = ReferenceModel(lambda model, ids: lookup(model["E"], ids).sum(1) @ model["W"], {"E": table, "W": np.eye(2)})
    way = []

    class Seen(embgrad.Objective):
        def _rows(self, rows: Any) -> Any:
            way.append(rows.values.copy())
            return rows.values[:, 0], np.tile([1.0, 0.0], (len(rows.values), 1))

    method = embgrad.methods.DiscretizedIntegratedGradients(3, baseline=len(table) - 1)
    embgrad.attribute(model, [[0]], Seen(), method)
    assert (np.concatenate(way) == between_both).all(1).any() == (place <= 50)


@pytest.mark.parametrize("strategy", ["greedy", "maxcount"])
def test_each_dimension_of_a_path_moves_in_one_direction(strategy: str) -> None:
    table = np.random.default_rng(8).normal(size=(300, 5))
    nearest = NearestRows(table, 20)
    starts = np.array([0, 7, 9])
    for start, path in zip(starts, paths_of(nearest, starts, 7, 12, strategy), strict=True):
        np.testing.assert_array_equal(path[[0, -1]], table[[7, start]])
        assert (np.diff(path, axis=0) * np.sign(table[start] - table[7]) >= 0).all()
    distances = np.linalg.norm(table - table[0], axis=1)
    np.testing.assert_array_equal(nearest.of(0), np.argsort(distances)[1:21])
    assert NearestRows(table[:1], 20).of(0).shape == (0,), "a table of one row has no other"


def test_occlusion_is_the_difference_of_two_evaluations() -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.Occlusion("mask"), tokenizer=Tokenizer())
    whole = embgrad.evaluate(curved(), BATCH, LOGIT)
    for position in range(IDS.shape[1]):
        ids = IDS.copy()
        ids[:, position] = np.where(MASK[:, position], Tokenizer.mask_token_id, ids[:, position])
        without = embgrad.evaluate(curved(), embgrad.TokenBatch(ids, MASK), LOGIT)
        np.testing.assert_allclose(found.scores[:, position], whole - without, atol=1e-14)
    assert found.values is None
    assert found.scores[0, 3] == 0


def test_special_tokens_can_be_kept() -> None:
    method = embgrad.methods.Occlusion("zero", keep_special=True)
    found = embgrad.attribute(linear(), BATCH, LOGIT, method, tokenizer=Tokenizer())
    np.testing.assert_array_equal(found.scores == 0, np.isin(IDS, Tokenizer.all_special_ids) | (MASK == 0))
    tokens = [["[CLS]", "a", "b", "[PAD]"], ["a", "b", "c", "</s>"]]
    by_text = embgrad.attribute(linear(), embgrad.TokenBatch(IDS, MASK, tokens=tokens), LOGIT, method)
    np.testing.assert_array_equal(by_text.scores == 0, [[True, False, False, True], [False, False, False, True]])


def shapley_by_orders(values: dict[frozenset[int], float], members: int) -> np.ndarray:
    totals, orders = np.zeros(members), list(permutations(range(members)))
    for order in orders:
        for number, member in enumerate(order):
            before = frozenset(order[:number])
            totals[member] += values[before | {member}] - values[before]
    return totals / len(orders)


def test_enumerated_shapley_values_are_the_mean_over_all_orders() -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.KernelShap(16, baseline=4))
    assert found.provenance["method"]["exact"] == [True, True]
    for example, members in enumerate((3, 4)):
        values = {}
        for number in range(2**members):
            present = frozenset(member for member in range(members) if number >> member & 1)
            ids = IDS.copy()
            ids[example, [member for member in range(members) if member not in present]] = 4
            values[present] = embgrad.evaluate(curved(), embgrad.TokenBatch(ids, MASK), LOGIT)[example]
        np.testing.assert_allclose(found.scores[example, :members], shapley_by_orders(values, members), atol=1e-12)


def test_sampled_shapley_values_approach_the_exact_ones() -> None:
    generator = np.random.default_rng(0)
    members, weights = 10, np.random.default_rng(1).normal(size=(10, 10)) / 5

    def value(rows: np.ndarray) -> np.ndarray:
        return np.tanh(np.einsum("ci,ij,cj->c", rows, weights, rows))

    whole = sample_coalitions(members, 1024, generator)
    drawn = sample_coalitions(members, 900, generator)
    assert len(whole) == 1024
    assert len(drawn) == 900
    assert set(drawn.sum(1)) == set(range(members + 1))
    exact = exact_values(whole, value(whole.astype(float)))
    sampled = fit_values(drawn, value(drawn.astype(float)))
    assert np.linalg.norm(sampled - exact) < 0.1 * np.linalg.norm(exact)
    assert sampled.sum() == pytest.approx(exact.sum())


def test_shapley_values_of_too_few_samples_favour_no_position() -> None:
    drawn = sample_coalitions(30, 20, np.random.default_rng(0))
    sampled = fit_values(drawn, drawn.sum(1).astype(float))
    np.testing.assert_allclose(sampled, 1, atol=1e-12)


def test_lime_recovers_a_linear_model() -> None:
    model = linear()
    found = embgrad.attribute(model, BATCH, LOGIT, embgrad.methods.Lime(60, baseline="zero", ridge=0.0))
    np.testing.assert_allclose(found.scores, (rows_of(model) @ model["W"].value[:, 0]) * MASK, atol=1e-10)


def test_lime_is_a_weighted_ridge_regression_with_a_free_intercept() -> None:
    model, samples, width, ridge = curved(), 40, 25.0, 0.7
    found = embgrad.attribute(model, BATCH, LOGIT, embgrad.methods.Lime(samples, "zero", width, ridge, seed=3))
    for example, ids in enumerate(([2, 7, 7], [1, 4, 9, 3])):
        present = np.ones((samples, len(ids)))
        present[1:] = np.random.default_rng([3, *ids]).random((samples - 1, len(ids))) < 0.5
        rows = rows_of(model)[example, : len(ids)] * present[..., None]
        tokens = embgrad.TokenBatch([ids])
        objectives = [embgrad.evaluate(model, tokens, LOGIT, override={"word": row[None]})[0] for row in rows]
        cosine = present.sum(1) / np.sqrt(np.maximum(present.sum(1), 1) * len(ids))
        weights = np.diag(np.exp(-((100 * (1 - cosine) / width) ** 2) / 2))
        columns = np.column_stack([np.ones(samples), present])
        penalty = np.diag([0.0, *[ridge] * len(ids)])
        solution = np.linalg.solve(columns.T @ weights @ columns + penalty, columns.T @ weights @ objectives)
        np.testing.assert_allclose(found.scores[example, : len(ids)], solution[1:], atol=1e-12)


def test_an_error_of_rounding_is_not_warned_of() -> None:
    """Where L at the baseline equals L, 1 % of their difference is less than rounding."""
    model = curved("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = embgrad.methods.IntegratedGradients(20, rows_of(model) * (1 + 1e-7))
        found = embgrad.attribute(model, BATCH, embgrad.Logit(1), method)
    assert found.delta is not None
    assert found.delta.any()


def test_smooth_gradients_are_means_over_the_noise_of_the_seed() -> None:
    model, noise = curved(), np.zeros((6, *IDS.shape, DIM))
    for example, ids in enumerate(([2, 7, 7], [1, 4, 9, 3])):
        noise[:, example, : len(ids)] = np.random.default_rng([5, *ids]).standard_normal((6, len(ids), DIM))
    samples = np.stack([embgrad.gradients(model, BATCH, LOGIT, add={"word": 0.2 * added}).values for added in noise])
    expected = {"mean": samples.mean(0), "square": (samples**2).mean(0), "variance": samples.var(0)}
    for reduce, values in expected.items():
        found = embgrad.attribute(model, BATCH, LOGIT, embgrad.methods.SmoothGrad(6, 0.2, seed=5, reduce=reduce))
        np.testing.assert_allclose(found.values, values, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(found.scores, np.linalg.norm(values, axis=-1), rtol=1e-10, atol=1e-14)


def test_gradient_shap_is_the_mean_over_the_draws_of_the_seed() -> None:
    model, samples, sigma = curved(), 3, 0.4
    origins, expected = np.stack([np.zeros(DIM), model["E"].value[4]]), np.zeros((*IDS.shape, DIM))
    for example, ids in enumerate(([2, 7, 7], [1, 4, 9, 3])):
        generator, rows = np.random.default_rng([6, *ids]), model["E"].value[ids]
        for _ in range(samples):
            noisy = rows + sigma * generator.standard_normal(rows.shape)
            origin = origins[generator.integers(2)]
            place = origin + generator.random() * (noisy - origin)
            gradient = embgrad.gradients(model, [ids], LOGIT, override={"word": place[None]}).values[0]
            expected[example, : len(ids)] += gradient * (noisy - origin) / samples
    method = embgrad.methods.GradientShap(["zero", 4], samples, sigma, seed=6)
    found = embgrad.attribute(model, BATCH, LOGIT, method)
    np.testing.assert_allclose(found.values, expected, atol=1e-14)


@pytest.mark.parametrize(
    "method", [*SAMPLED, embgrad.methods.IntegratedGradients(5), embgrad.methods.Occlusion(4)], ids=name_of
)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_results_do_not_depend_on_the_batch_size(method: Any, size: int) -> None:
    whole = embgrad.attribute(curved(), BATCH, LOGIT, method)
    cut = embgrad.attribute(curved(), BATCH, LOGIT, method, batch_size=size)
    np.testing.assert_allclose(cut.scores, whole.scores, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("method", SAMPLED, ids=name_of)
def test_draws_do_not_depend_on_the_other_examples_nor_on_padding(method: Any) -> None:
    both = embgrad.attribute(curved(), BATCH, LOGIT, method)
    alone = embgrad.attribute(curved(), BATCH[1:], LOGIT, method)
    np.testing.assert_allclose(alone.scores[0], both.scores[1], rtol=1e-12, atol=1e-15)
    left = embgrad.TokenBatch([[0, 0, 2, 7, 7]], [[0, 0, 1, 1, 1]])
    np.testing.assert_allclose(
        embgrad.attribute(curved(), left, LOGIT, method).scores[0, 2:], both.scores[0, :3], rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize("method", [*LINEAR, *SAMPLED], ids=name_of)
def test_a_function_as_objective_has_the_same_attribution(method: Any, size: int | None) -> None:
    """It may know the labels of the batch in order, so that each pass runs the whole batch."""

    def function(output: Any) -> Any:
        assert output.shape == (2, 2)
        return (output * Tensor(np.array([1.0, 0.0]))).sum(1)

    expected = embgrad.attribute(curved(), BATCH, LOGIT, method)
    found = embgrad.attribute(curved(), BATCH, function, method, batch_size=size)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-12, atol=1e-15)


def test_labels_and_further_inputs_follow_their_examples() -> None:
    def scaled(model: Any, inputs: Any) -> Any:
        rows = model.forward(model, inputs["input_ids"], inputs["attention_mask"])
        return rows * Tensor(np.asarray(inputs["scale"], float)[:, None])

    batch = embgrad.TokenBatch(IDS, MASK, extras={"scale": np.array([1.0, -3.0])})
    objective = embgrad.CrossEntropy([0, 1])
    method = embgrad.methods.IntegratedGradients(20)
    both = embgrad.attribute(curved(), batch, objective, method, call=scaled, batch_size=7)
    for example in (0, 1):
        alone = embgrad.attribute(
            curved(), batch[example : example + 1], embgrad.CrossEntropy([example]), method, call=scaled
        )
        np.testing.assert_allclose(both.scores[example], alone.scores[0], atol=1e-12)


def test_an_input_shared_by_a_batch_of_one_example_stays_whole() -> None:
    def cooled(model: Any, inputs: Any) -> Any:
        assert inputs["temperature"].shape == (1,)
        return model.forward(model, inputs["input_ids"], inputs["attention_mask"]) * 0.5

    batch = embgrad.TokenBatch(IDS[1:], MASK[1:], extras={"temperature": np.array([2.0])})
    found = embgrad.attribute(curved(), batch, LOGIT, embgrad.methods.IntegratedGradients(20), call=cooled)
    plain = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(20))
    np.testing.assert_allclose(found.scores[0], plain.scores[1] / 2, atol=1e-12)


def test_words_merge_the_scores_of_their_tokens() -> None:
    tokens = [["[CLS]", "film", "##s", "[PAD]"], ["a", "film", "##s", "!"]]
    batch = embgrad.TokenBatch(IDS, MASK, tokens=tokens)
    found = embgrad.attribute(curved(), batch, LOGIT, embgrad.methods.IntegratedGradients(9))
    words = found.words()[1]
    assert [word.text for word in words] == ["a", "films", "!"]
    assert words[1].saliency == pytest.approx(found.scores[1, 1] + found.scores[1, 2])
    for method in ("saliency", embgrad.methods.SmoothGrad(3)):
        lengths = embgrad.attribute(curved(), batch, LOGIT, method)
        assert lengths.words()[0][1].saliency == pytest.approx(np.linalg.norm(lengths.scores[0, 1:3]))
    with pytest.raises(embgrad.EmbgradError, match="the tokens of this attribution are not known"):
        embgrad.attribute(curved(), BATCH, LOGIT, "saliency").words()


@pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
@pytest.mark.parametrize(
    "method", [*LINEAR[:4], embgrad.methods.DiscretizedIntegratedGradients(4, baseline=4), *SAMPLED[1:3]], ids=name_of
)
def test_the_score_of_a_position_is_the_sum_of_its_dimensions(method: Any) -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, method)
    np.testing.assert_allclose(found.scores, found.values.sum(-1), atol=1e-14)


def test_all_coalitions_of_twenty_members_at_most_are_enumerated() -> None:
    random = np.random.default_rng(0)
    assert [len(sample_coalitions(members, 2**members, random)) for members in (3, 20)] == [2**3, 2**20]
    assert sample_coalitions(21, 2**21, random)[1].all(), "the whole one is second among samples"


@pytest.mark.parametrize(("tokens", "exact"), [(10, True), (11, False)])
def test_kernel_shap_takes_1024_coalitions_where_the_user_names_no_number(tokens: int, exact: bool) -> None:
    ids = [np.arange(tokens)]
    found = embgrad.attribute(curved(), ids, LOGIT, embgrad.methods.KernelShap(baseline="zero"))
    assert found.provenance["method"]["exact"] == [exact]
    named = embgrad.attribute(curved(), ids, LOGIT, embgrad.methods.KernelShap(1024, "zero"))
    np.testing.assert_array_equal(found.scores, named.scores)


def test_lime_takes_the_kernel_of_its_authors_package_where_the_user_names_none() -> None:
    found = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.Lime(baseline="zero"))
    named = embgrad.methods.Lime(500, "zero", kernel_width=25.0, ridge=1.0, seed=0, keep_special=False)
    np.testing.assert_array_equal(found.scores, embgrad.attribute(curved(), BATCH, LOGIT, named).scores)


def test_attributions_share_no_arrays() -> None:
    batch = embgrad.TokenBatch(IDS, MASK, tokens=[["a"] * 4] * 2, words=[[0, 1, 2, -1], [0, 1, 2, 3]])
    first, second = embgrad.attribute(curved(), batch, LOGIT, ["saliency", "input_x_gradient"]).values()
    for name in ("scores", "values", "objective", "ids", "mask", "words_of"):
        assert not np.shares_memory(getattr(first, name), getattr(second, name))
    assert first.provenance["versions"] is not second.provenance["versions"]


def test_an_attribution_is_an_array_of_its_scores_and_names_its_method() -> None:
    found = embgrad.attribute(curved("float32"), BATCH, LOGIT, "integrated_gradients")
    assert np.asarray(found) is found.scores
    assert found.scores.dtype == np.float64
    assert found.values is not None
    assert found.values.dtype == np.float32
    assert repr(found).startswith("Attribution(2 × 4, IntegratedGradients at 'word' of")
    assert found.provenance["method"]["rule"] == "gausslegendre"


def test_several_methods_give_attributions_by_name_each_equal_to_its_own_call() -> None:
    model = curved()
    methods = ["saliency", embgrad.methods.IntegratedGradients(20), embgrad.methods.IntegratedGradients(21)]
    results = embgrad.attribute(model, BATCH, LOGIT, methods)
    assert list(results) == ["saliency", "integrated_gradients", "integrated_gradients#1"]
    for method, result in zip(methods, results.values(), strict=True):
        np.testing.assert_array_equal(result.scores, embgrad.attribute(model, BATCH, LOGIT, method).scores)
    assert list(embgrad.attribute(model, BATCH, LOGIT, {"mine": "saliency"})) == ["mine"]
    assert repr(results).startswith("saliency: Attribution(2 × 4, Saliency")
    with pytest.raises(KeyError, match=r"no attribution 'salience'. Did you mean 'saliency'"):
        results["salience"]
