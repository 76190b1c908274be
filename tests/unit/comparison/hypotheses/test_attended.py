"""Another way of weighing the vectors of a text by scores is found by its values."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attended import AttentivePooling
from embgrad.comparison.hypotheses.site import Site
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site
from tests.unit.comparison.hypotheses.planted import expect_exact

RANDOM = np.random.default_rng(0)
STATES, WORDS = RANDOM.normal(size=(2, *REAL.shape, 4))
SCORES = 2 * RANDOM.normal(size=(*REAL.shape, 1))
TOKENS = "the softmax over tokens"


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores) / np.exp(scores).sum()


def weighed(weights: np.ndarray, vectors: np.ndarray = STATES) -> np.ndarray:
    """Return the sum of vectors, (example, 1, feature), by weights that are 0 at padding or not."""
    return np.array(
        [
            [sum(share * vector for share, vector in zip(*pair, strict=True))]
            for pair in zip(weights, vectors, strict=True)
        ]
    )


def by_text(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each text's scores at its tokens, and 0 at its padding."""
    shares = np.zeros(REAL.shape)
    for row, real, own in zip(shares, REAL, scores[..., 0], strict=True):
        row[real] = softmax(own[real])
    return shares


def over_texts() -> np.ndarray:
    columns = [softmax(np.where(real, own, -1e9)) for own, real in zip(SCORES[..., 0].T, REAL.T, strict=True)]
    return np.array(columns).T


MINE = by_text(SCORES)
OTHERS = {
    "the softmax over all positions": np.array([softmax(own) for own in SCORES[..., 0]]),
    "the softmax over all positions, of scores that are 0 at padding": np.array(
        [softmax(own) for own in SCORES[..., 0] * REAL]
    ),
    "the softmax over the examples of the batch": over_texts(),
    "the logistic function at tokens": REAL / (1 + np.exp(-SCORES[..., 0])),
    "the scores at tokens": REAL * SCORES[..., 0],
    "the same at each token": REAL / REAL.sum(1, keepdims=True),
}
CAUSES = ["mask-ignored", "mask-ignored", "pooling", "activation", "activation", "pooling"]


def site(b: np.ndarray, a: np.ndarray | None = None) -> Site:
    mine = weighed(MINE) if a is None else a
    return module_site(mine, b, {"score": SCORES, "states": STATES, "words": WORDS})


@pytest.mark.parametrize(("name", "cause"), list(zip(OTHERS, CAUSES, strict=True)))
def test_other_weights_are_named_with_both(name: str, cause: str) -> None:
    at = site(weighed(OTHERS[name]))
    found = best(at, AttentivePooling().explain(at))
    assert found.cause == cause
    assert found.text == f"the vectors are weighed by {TOKENS} in a and {name} in b"
    expect_exact(at, found)


def test_the_scale_of_the_scores_is_named() -> None:
    at = site(weighed(by_text(SCORES / 2)))  # one over the root of four features
    found = best(at, AttentivePooling().explain(at))
    assert (found.cause, found.text) == ("attention-scale", "the scale of the scores 1 in a and 0.5 in b")
    expect_exact(at, found)


def test_scores_whose_exponential_is_infinite_are_weighed() -> None:
    large = 1000 + SCORES
    at = module_site(weighed(MINE), weighed(OTHERS["the same at each token"]), {"score": large, "states": STATES})
    found = best(at, AttentivePooling().explain(at))
    assert found.text == f"the vectors are weighed by {TOKENS} in a and the same at each token in b"


def test_other_vectors_are_named() -> None:
    at = site(weighed(MINE, WORDS))
    found = best(at, AttentivePooling().explain(at))
    assert (found.cause, found.text) == ("pooling", "the vectors that are weighed are states in a and words in b")
    expect_exact(at, found)


@pytest.mark.parametrize(
    ("a", "b"),
    [(None, weighed(MINE) * 1.01), (weighed(MINE) * 1.01, weighed(OTHERS["the same at each token"])), (None, None)],
)
def test_what_is_no_such_sum_is_not_explained(a: np.ndarray | None, b: np.ndarray | None) -> None:
    assert AttentivePooling().explain(site(weighed(MINE) if b is None else b, a)) == []


def test_a_tensor_of_positions_is_no_such_sum() -> None:
    at = module_site(STATES, WORDS, {"score": SCORES, "states": STATES})
    assert AttentivePooling().explain(at) == []
