"""The hypothesis of a product with a matrix, whose weights, bias or output differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weights import Match, matrices_of

__all__ = ["Product", "biases_of", "cause_of", "oriented", "oriented_of_b"]

#: The largest relative L2 between the product and the reference's output.
NEAR: Final = 1e-4

#: The most tensors before a site that may be the factor of the output's product with a table.
MOST_FACTORS: Final = 4

#: The causes by the beginning of the text that says how two weights relate.
CAUSES_OF: Final = {"rounded": "half-weights", "equal to": "swapped-weights"}


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of the product that a computes.

    Attributes:
        entry: the tensor that is multiplied.
        matrix: the matrix, float64, (output, input).
        bias: what is added, (output,).
        weight: the weight that holds the matrix.
        other: b's partner of it; None where it has none.
        match: how the two relate; None where there is no partner.
        cap: the number c for which a's output is c tanh(product / c); None where it is the product.
    """

    entry: Before
    matrix: np.ndarray = field(repr=False)
    bias: np.ndarray = field(repr=False)
    weight: HeldWeight
    other: HeldWeight | None
    match: Match | None
    cap: float | None = None


class Product:
    """A product with a matrix of weights, and a bias."""

    causes = (
        "different-weight",
        "half-weights",
        "swapped-weights",
        "transposed-weight",
        "permuted-weight",
        "missing-bias",
        "logit-cap",
        "logit-scale",
        "head-untied",
    )

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the products of both models differ; an empty list where a computes none."""
        factors = next(_factors(site), None)
        if factors is None:
            return []
        if factors.cap is not None:
            return list(_of_cap(site, factors))
        return [
            *_of_weights(site, factors),
            *_of_other_heads(site, factors),
            *_of_bias(site, factors),
            *_of_layout(site, factors),
            *_of_output(site, factors),
        ]


def _factors(site: Site) -> Iterator[Factors]:
    """Yield the factors whose product, with a bias, is a's output."""
    wanted = site.rows(site.a)
    for entry, weight, other, match in _candidates(site):
        x = site.rows(entry.values)
        if len(x) != len(wanted):
            continue
        for matrix in oriented(weight.get(), site, x.shape[1]):
            rest = wanted - x @ matrix.T
            bias = rest.mean(0)
            if np.linalg.norm(rest - bias) <= NEAR * np.linalg.norm(wanted):
                small = np.linalg.norm(bias) * len(x) ** 0.5 <= NEAR * np.linalg.norm(wanted)
                yield Factors(entry, matrix, np.zeros_like(bias) if small else bias, weight, other, match)
                continue
            product = x @ matrix.T
            cap = _cap(product, wanted)
            if cap is not None and np.linalg.norm(cap * np.tanh(product / cap) - wanted) <= NEAR * np.linalg.norm(
                wanted
            ):
                yield Factors(entry, matrix, np.zeros(len(matrix)), weight, other, match, cap)


def _candidates(site: Site) -> Iterator[tuple[Before, HeldWeight, HeldWeight | None, Match | None]]:
    matrices = [entry for entry in site.held.values() if len(entry[0].shape) > 1]
    if site.entry is not None and matrices:
        for weight, other, match in matrices:
            yield site.entry, weight, other, match
        return
    others = {weight.name: weight for weight in site.recordings[1].weights}
    matches = {match.a: match for match in site.matching.matches}
    lookups = {tensor.path for tensor in site.recordings[0].tensors.values() if tensor.side is None}
    tables = [
        weight
        for weight in site.recordings[0].weights
        if weight.module in lookups and len(weight.shape) == 2 and site.a.shape[-1] in weight.shape
    ]
    for before in site.before[:MOST_FACTORS]:
        for weight in tables:
            if before.values.shape[-1] in weight.shape:
                match = matches.get(weight.name)
                yield before, weight, None if match is None else others[match.b], match


def oriented(values: np.ndarray, site: Site, inputs: int) -> Iterator[np.ndarray]:
    """Yield a weight as a matrix (output, input), in each way in which it may be one."""
    whole = site.recordings[0].tensors[site.pair.a].features
    for matrix in matrices_of(values):
        for turned in (matrix, matrix.T):
            if turned.shape == (whole, inputs):
                yield site.pair.in_a(turned.T).T.astype(np.float64)


def _explanation(
    cause: str,
    setting: str,
    values: tuple[str, str],
    factors: Factors,
    function: Callable[[np.ndarray], np.ndarray],
    sentence: str = "",
) -> Explanation:
    name = factors.entry.name
    predicted = function(factors.entry.values)
    return Explanation(cause, setting, values, predicted, lambda at: function(at(name)), (name,), sentence)


def _of_weights(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation by b's weight, where it differs from a's."""
    match, other = factors.match, factors.other
    if match is None or other is None or match.is_equal:
        return
    cause = cause_of(match)
    relation = match.relation.removesuffix(" in b")
    sentence = f"b has {factors.weight.name} {match.as_object}"
    matrices = oriented_of_b(other.get(), site, factors.matrix.shape[1])
    for matrix, bias in itertools.product(matrices, biases_of(site, factors.weight.module, factors.bias)):
        yield _explanation(cause, factors.weight.name, ("a's own", relation), factors, _affine(matrix, bias), sentence)


def biases_of(site: Site, path: str, own: np.ndarray) -> list[np.ndarray]:
    """Return a's bias at a module, and b's where it differs."""
    others = [
        other.get().astype(np.float64).ravel()
        for _, other, match in site.held_by(path).values()
        if other is not None and match is not None and not match.is_equal and len(other.shape) == 1
    ]
    return [own, *(other for other in others if len(other) == len(own))]


def cause_of(match: Match) -> str:
    """Return the cause that a difference between two weights is."""
    return next((key for start, key in CAUSES_OF.items() if match.relation.startswith(start)), "different-weight")


def _affine(matrix: np.ndarray, bias: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.asarray(x @ matrix.T + bias)


def oriented_of_b(values: np.ndarray, site: Site, inputs: int) -> Iterator[np.ndarray]:
    """Yield a weight of b as a matrix (output, input), in each way in which it may be one."""
    whole = site.recordings[1].tensors[site.pair.b].features
    for matrix in matrices_of(values):
        for turned in (matrix, matrix.T):
            if turned.shape == (whole, inputs):
                yield site.pair.in_b(turned.T).T.astype(np.float64)


def _of_other_heads(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by a weight of b without a partner in a, as a head that should share the table has."""
    alone = set(site.matching.alone_b)
    own = factors.weight.name
    for weight in site.recordings[1].weights:
        if weight.name in alone and len(weight.shape) == 2:
            for matrix in oriented_of_b(weight.get(), site, factors.matrix.shape[1]):
                sentence = f"b multiplies by {weight.name}, which equals no weight of a, where a multiplies by {own}"
                yield _explanation(
                    "head-untied",
                    "the matrix of the output",
                    (own, weight.name),
                    factors,
                    _affine(matrix, factors.bias),
                    sentence,
                )


def _of_bias(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation by another bias."""
    rest = site.rows(site.b) - site.rows(factors.entry.values) @ factors.matrix.T
    bias = rest.mean(0)
    if np.linalg.norm(rest - bias) > NEAR * np.linalg.norm(site.rows(site.b)):
        return
    size = float(np.abs(factors.bias).max(initial=0.0))
    none_in_b = float(np.abs(bias).max(initial=0.0)) <= NEAR * max(size, float(np.abs(rest).max(initial=0.0)))
    if none_in_b:
        bias = np.zeros_like(bias)
    place = site.path or "the output"
    if not none_in_b and factors.bias.any() and _is_shared(site, factors):
        return
    if none_in_b:
        cause, values, sentence = "missing-bias", ("added", "missing"), f"b adds no bias at {place}, and a does"
    elif not factors.bias.any():
        cause, values, sentence = "missing-bias", ("missing", "added"), f"b adds a bias at {place}, and a does not"
    else:
        cause, values, sentence = "different-weight", ("a's own", "different"), f"b adds another bias at {place}"
    yield _explanation(cause, f"the bias of {place}", values, factors, _affine(factors.matrix, bias), sentence)


def _is_shared(site: Site, factors: Factors) -> bool:
    """Return whether b holds a's bias as well, so that what it adds is explained by no weight."""
    held = site.held_by(factors.weight.module).values()
    biases = [match for weight, _, match in held if match is not None and weight.shape == factors.bias.shape]
    return bool(biases) and all(match.is_equal for match in biases)


def _of_layout(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by the same weight used in another layout."""
    matrix, name = factors.matrix, factors.weight.name
    if matrix.shape[0] == matrix.shape[1]:
        yield _explanation(
            "transposed-weight",
            name,
            ("as stored", "transposed"),
            factors,
            _affine(matrix.T, factors.bias),
            f"b uses {name} transposed",
        )
    if factors.match is not None and factors.match.order is not None and factors.other is not None:
        for turned in oriented_of_b(factors.other.get(), site, matrix.shape[1]):
            for bias in biases_of(site, factors.weight.module, factors.bias):
                yield _explanation(
                    "permuted-weight",
                    name,
                    ("in order", "in another order"),
                    factors,
                    _affine(turned, bias),
                    f"b has {name} in another order",
                )
    order = _order_of_features(site.rows(site.a), site.rows(site.b))
    if order is not None:
        yield _explanation(
            "permuted-weight",
            f"the outputs of {site.path}",
            ("in order", "in another order"),
            factors,
            lambda x: (x @ matrix.T + factors.bias)[..., order],
            f"b has the outputs of {site.path} in another order",
        )


def _order_of_features(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the order of a's features in b; None where b's are others."""
    if len(a) < 3:
        return None
    keys = [values.T @ np.cos(1.0 + np.arange(len(values))) for values in (a, b)]
    ranked = [np.argsort(key, kind="stable") for key in keys]
    order = np.empty(a.shape[1], np.int64)
    order[ranked[1]] = ranked[0]
    moved = not np.array_equal(order, np.arange(len(order)))
    return order if moved and np.linalg.norm(a[:, order] - b) <= NEAR * np.linalg.norm(b) else None


def _of_output(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by a number or a cap on the output."""
    a, b = site.rows(site.a), site.rows(site.b)
    number = float((a * b).sum() / ((a * a).sum() or 1.0))
    yield _explanation(
        "logit-scale",
        f"the output of {site.path or 'the model'} is multiplied by",
        ("1", f"{number:.6g}"),
        factors,
        lambda x: number * (x @ factors.matrix.T + factors.bias),
    )
    cap = _cap(a, b)
    if cap is not None:
        yield _explanation(
            "logit-cap",
            f"the output of {site.path or 'the model'} has",
            ("no cap", f"the cap {cap:.4g}"),
            factors,
            lambda x: cap * np.tanh((x @ factors.matrix.T + factors.bias) / cap),
        )


def _of_cap(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by another cap of the output, or none."""
    place = site.path or "the model"
    own = f"the cap {factors.cap:.4g}"
    product = _affine(factors.matrix, factors.bias)
    yield _explanation("logit-cap", f"the output of {place} has", (own, "no cap"), factors, product)
    cap = _cap(site.rows(product(factors.entry.values)), site.rows(site.b))
    if cap is not None:
        values = (own, f"the cap {cap:.4g}")
        function = lambda x: cap * np.tanh(product(x) / cap)  # noqa: E731  # it differs from the product's function by the cap
        yield _explanation("logit-cap", f"the output of {place} has", values, factors, function)


def _cap(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the cap c for which b = c tanh(a / c), from the largest output; None where b is not smaller."""
    at = np.unravel_index(np.abs(a).argmax(), a.shape)
    largest, capped = float(abs(a[at])), float(abs(b[at]))
    if not 0 < capped < largest * (1 - 1e-6):
        return None
    low, high = capped, max(largest, capped) * 1e4
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * np.tanh(largest / middle) < capped else (low, middle)
    return float((low * high) ** 0.5)
