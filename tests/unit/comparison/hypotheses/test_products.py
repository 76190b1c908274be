"""Products with weights stand for tensors that no module outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.comparison.hypotheses.activation import ActivationFunction
from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.products import products
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import HeldWeight, Tensor
from tests.unit.comparison.hypotheses.attended import HEADS, QUERY, REAL, attended
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=QUERY.shape)
QUERIES, KEYS = RANDOM.normal(size=(2, 32, 32)) / 6
VALUES = RANDOM.normal(size=(32, HEADS, 8)) / 6
BIASES = RANDOM.normal(size=(3, 32))
MODULE = "layers.0.attention"
WEIGHTS = {
    "query_weight": QUERIES,
    "query_bias": BIASES[0],
    "key_weight": KEYS,
    "key_bias": BIASES[1],
    "value_weight": VALUES,
    "value_bias": BIASES[2].reshape(HEADS, 8),
}


def site_after(a: np.ndarray, b: np.ndarray, *, entered: float = 0.5, ended: bool = False) -> Site:
    """Return a site after a module with all weights, which has been entered at a time."""
    site = site_of(a, b, {f"{MODULE}:input": X} | ({MODULE: X + 1} if ended else {}), real=REAL)
    key = f"{MODULE}:input#0"
    tensors = {key: Tensor(key, MODULE, "input", 0, (), entered, X), **site.recordings[0].tensors}
    held = tuple(
        HeldWeight(f"{MODULE}.{name}", MODULE, values.shape, lambda values=values: values, layer=0)  # type: ignore[misc]
        for name, values in WEIGHTS.items()
    )
    recording = replace(site.recordings[0], tensors=tensors, weights=held)
    return replace(site, recordings=(recording, recording))


def only(found: list[Explanation], site: Site) -> Explanation:
    best = min(found, key=lambda explanation: site.off(explanation.predicted))
    expect_exact(site, best)
    return best


def test_each_matrix_is_multiplied_in_both_layouts_with_its_own_bias() -> None:
    (group,) = products(site_after(X, 2 * X))
    by_name = {(source.label, number % 2): source.values for number, source in enumerate(group)}
    assert len(group) == 5  # the values' matrix is square in one layout alone
    np.testing.assert_allclose(by_name[f"{MODULE}.query_weight", 0], X @ QUERIES + BIASES[0])
    np.testing.assert_allclose(by_name[f"{MODULE}.key_weight", 1], X @ KEYS.T + BIASES[1])
    np.testing.assert_allclose(group[-1].values, X @ VALUES.reshape(32, 32) + BIASES[2])


def test_weights_of_modules_that_have_ended_or_not_begun_are_left_out() -> None:
    assert not list(products(site_after(X, 2 * X, ended=True)))
    assert not list(products(site_after(X, 2 * X, entered=1.0)))


def test_an_attention_that_multiplies_itself_is_explained() -> None:
    projected = (X @ QUERIES + BIASES[0], X @ KEYS.T + BIASES[1], X @ VALUES.reshape(32, 32) + BIASES[2])
    site = site_after(attended(*projected), attended(*projected, scale=1.0))
    assert only(AttentionCore().explain(site), site).text == "attention scale 0.353553 in a and 1 in b"


def test_an_activation_inside_a_dense_layer_is_explained() -> None:
    argument = X @ QUERIES + BIASES[0]
    site = site_after(np.tanh(argument), np.maximum(argument, 0))
    assert only(ActivationFunction().explain(site), site).values == ("tanh", "ReLU")
