"""The hypothesis of a product with a matrix, whose weights, bias or output differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.common.tolerance import HALVES
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation
from embgrad.comparison.hypotheses.site import NEAR, Before, Explanation, Site
from embgrad.comparison.hypotheses.sources import relative, skipped_norms
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weight_values import matrices_of, order_of_rows, rounded, roundings
from embgrad.comparison.weights import Match, kind_of
from embgrad.model_points.points import INPUT

__all__ = ["Product", "cause_of"]

Function = Callable[[np.ndarray], np.ndarray]

#: The most tensors before a site that may be the factor of the output's product with a table.
MOST_FACTORS: Final = 4

#: The most tensors before a site that may be the product whose activation is the output.
MOST_PRODUCTS: Final = 6

#: The number of tokens by which a matrix is tried first.
FEW: Final = 8

#: The number of tokens from which a scale and a zero point of each row are fitted.
LEAST_ROWS: Final = 16

#: The causes by the beginning of the text that says how two weights relate.
CAUSES_OF: Final = {
    "rounded": "half-weights",
    "equal to": "swapped-weights",
    "with the same numbers": "permuted-weight",
}


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
        number: what the product is multiplied by.
        activation: the function of the product that a's output is; None where it is the product.
    """

    entry: Before
    matrix: np.ndarray
    bias: np.ndarray
    weight: HeldWeight
    other: HeldWeight | None
    match: Match | None
    cap: float | None = None
    number: float = 1.0
    activation: Activation | None = None

    def affine(self, matrix: np.ndarray, bias: np.ndarray) -> Function:
        """Return the function that multiplies by another matrix and adds another bias."""
        apply = IDENTITY.apply if self.activation is None else self.activation.apply
        return lambda x: np.asarray(self.number * apply(x @ matrix.T + bias))


class Product:
    """A product with a matrix of weights, with a bias, and an activation of it that is no point of b."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the products of both models differ; an empty list where a computes none."""
        factors = next(itertools.chain(_factors(site), _activated(site)), None)
        if factors is None:
            return []
        if factors.cap is not None:
            return list(_of_cap(site, factors))
        if factors.activation is not None:
            return [*_of_held_biases(site, factors), *_of_layout(site, factors), *_of_weights(site, factors)]
        return [
            *_of_weights(site, factors),
            *_of_other_layers(site, factors),
            *_of_norm_input(site, factors),
            *_of_other_heads(site, factors),
            *_of_bias(site, factors),
            *_of_layout(site, factors),
            *_of_output(site, factors),
            *_of_scales(site, factors),
        ]


def _factors(site: Site) -> Iterator[Factors]:
    """Yield the factors whose product, with a bias, a number or a cap, is a's output."""
    wanted = site.rows(site.a)
    near = site.near * float(np.linalg.norm(wanted))
    for entry, weight, other, match in _candidates(site):
        x = site.rows(entry.values)
        if len(x) != len(wanted):
            continue
        for matrix in _oriented(weight.get(), site, x.shape[1]):
            product = x @ matrix.T
            bias, none = (wanted - product).mean(0), np.zeros(len(matrix))
            if np.linalg.norm(wanted - product - bias) <= near:
                small = np.linalg.norm(bias) * len(x) ** 0.5 <= near
                yield Factors(entry, matrix, none if small else bias, weight, other, match)
                continue
            cap = _cap(product, wanted)
            if cap is not None and np.linalg.norm(cap * np.tanh(product / cap) - wanted) <= near:
                yield Factors(entry, matrix, none, weight, other, match, cap)
                continue
            number = float((product * wanted).sum() / ((product**2).sum() or 1.0))
            if np.linalg.norm(number * product - wanted) <= near:
                yield Factors(entry, matrix, none, weight, other, match, number=number)


def _activated(site: Site) -> Iterator[Factors]:
    """Yield the factors of a product of which a's output is an activation."""
    wanted = site.rows(site.a)
    near = [before for before in site.before if before.values.shape == site.a.shape][:MOST_PRODUCTS]
    for product in near:
        values = site.rows(product.values)
        weights = [held for held in site.recordings[0].weights if held.module == product.name and len(held.shape) > 1]
        entry = next((before for before in site.before if before.name == f"{product.name}:{INPUT}"), None)
        if not weights or entry is None:
            continue
        x = site.rows(entry.values)
        for activation in ACTIVATIONS:
            if np.linalg.norm(activation.apply(values) - wanted) > site.near * np.linalg.norm(wanted):
                continue
            for matrix in _oriented(weights[0].get(), site, x.shape[1]):
                bias = (values - x @ matrix.T).mean(0)
                if np.linalg.norm(values - x @ matrix.T - bias) <= site.near * np.linalg.norm(values):
                    other, match = site.partners.get(weights[0].name, (None, None))
                    yield Factors(entry, matrix, bias, weights[0], other, match, activation=activation)


def _candidates(site: Site) -> Iterator[tuple[Before, HeldWeight, HeldWeight | None, Match | None]]:
    for path, entry in site.modules:
        matrices = [held for held in site.held_by(path).values() if len(held[0].shape) > 1]
        if matrices:
            yield from ((entry, *held) for held in matrices)
            return
    whole = site.recordings[0].tensors[site.pair.a].features
    for before in site.before[:MOST_FACTORS]:
        for weight in _tables(site, 0):
            if sorted(weight.shape) == sorted((before.values.shape[-1], whole)):
                yield before, weight, *site.partners.get(weight.name, (None, None))


def _tables(site: Site, side: int) -> list[HeldWeight]:
    """Return the matrices of a model that its output may be a product with: tables, and those without a partner."""
    lookups = {tensor.path for tensor in site.recordings[side].tensors.values() if tensor.side is None}
    alone = set(site.matching.alone_b if side else site.matching.alone_a)
    return [
        weight
        for weight in site.recordings[side].weights
        if len(weight.shape) == 2 and (weight.module in lookups or weight.name in alone)
    ]


def _oriented(values: np.ndarray, site: Site, inputs: int, side: int = 0) -> Iterator[np.ndarray]:
    """Yield a weight of a model as a matrix (output, input), in each way in which it may be one."""
    pair = site.pair.gradients  # without the biases that are added behind the product
    key, taken = ((pair.a, pair.in_a), (pair.b, pair.in_b))[side]
    whole = site.recordings[side].tensors[key].features
    for matrix in matrices_of(values):
        for turned in (matrix, matrix.T):
            if turned.shape == (whole, inputs):
                yield taken(turned.T).T.astype(np.float64)


def _explanation(
    cause: str,
    setting: str,
    values: tuple[str, str],
    factors: Factors,
    function: Function,
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
    relation = match.relation.removesuffix(" in b")
    is_table = relation.removeprefix("equal to ") in {weight.name for weight in _tables(site, 0)}
    cause = "head-untied" if is_table else cause_of(match)
    sentence = f"b has {factors.weight.name} {match.as_object}"
    if relation.startswith("rounded") and (turned := _turned(site, factors, other)) is not None:
        how = f"transposed, which is {relation}" if relation.endswith(" in a") else f"transposed and {relation}"
        cause, sentence = "transposed-weight", f"b uses {factors.weight.name} {how}"
        relation = f"transposed and {relation}"
        function = factors.affine(turned, factors.bias)
        yield _explanation(cause, factors.weight.name, ("a's own", relation), factors, function, sentence)
        return
    matrices = _oriented(other.get(), site, factors.matrix.shape[1], 1)
    biases = _biases_of(site, factors.weight.module, factors.bias)
    ways: list[tuple[str, Function]] = [("", np.asarray)]
    if "bits" in relation:
        further = roundings(factors.matrix.shape[1])
        ways += [(f", and rounds what it multiplies with to {text}", rounding) for text, rounding in further]
    for matrix, bias, (text, rounding) in itertools.product(matrices, biases, ways):
        function = partial(_behind, factors.affine(matrix, bias), rounding)
        values = ("a's own", relation + text)
        yield _explanation(cause, factors.weight.name, values, factors, function, sentence + text)


def _behind(second: Function, first: Function, x: np.ndarray) -> np.ndarray:
    return second(first(x))


def _turned(site: Site, factors: Factors, other: HeldWeight) -> np.ndarray | None:
    """Return the transpose of a's square matrix in b's numbers if b multiplies with that; None if it does not."""
    x, b = site.rows(factors.entry.values), site.rows(site.b)
    if factors.matrix.shape[0] != factors.matrix.shape[1] or not _is_product(x, factors.matrix.T, b, site.near):
        return None
    matrices = _oriented(other.get(), site, len(factors.matrix), 1)
    return min(matrices, key=lambda matrix: relative(matrix, factors.matrix.T))


def _of_other_layers(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation that b multiplies by the matrix of another layer, though it holds a's own, or by a part of it."""
    if factors.match is not None and not factors.match.is_equal:
        return
    kind, x, b = kind_of(factors.weight.name), site.rows(factors.entry.values), site.rows(site.b)
    for weight in site.recordings[0].weights:
        if weight.name == factors.weight.name or weight.shape != factors.weight.shape or kind_of(weight.name) != kind:
            continue
        for matrix in _oriented(weight.get(), site, x.shape[1]):
            if all(_is_product(x[:count], matrix, b[:count], site.near) for count in (FEW, len(x))):
                function = factors.affine(matrix, (b - x @ matrix.T).mean(0))
                values = ("a's own", f"that of {weight.name}")
                sentence = f"b has {factors.weight.name} equal to a's {weight.name}"
                yield _explanation("swapped-weights", factors.weight.name, values, factors, function, sentence)
                return


def _is_product(x: np.ndarray, matrix: np.ndarray, y: np.ndarray, near: float) -> bool:
    """Return whether rows are products with a matrix, (output, input), up to a bias."""
    rest = y - x @ matrix.T
    return bool(np.linalg.norm(rest - rest.mean(0)) <= near * np.linalg.norm(y))


def _biases_of(site: Site, path: str, own: np.ndarray) -> list[np.ndarray]:
    """Return a's bias at a module, and b's where it differs."""
    others = [
        other.get().astype(np.float64).ravel()  # which may have an axis of heads
        for _, other, _ in site.differing_by(path)
        if int(np.prod(other.shape)) == len(own)
    ]
    return [own, *others]


def cause_of(match: Match) -> str:
    """Return the cause that a difference between two weights is."""
    return next((key for start, key in CAUSES_OF.items() if match.relation.startswith(start)), "different-weight")


def _of_norm_input(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation that b multiplies what a norm is given, where a multiplies what it returns."""
    function = factors.affine(factors.matrix, factors.bias)
    for norm, entry in skipped_norms(site, factors.entry.values):
        own = replace(factors, entry=entry)
        yield _explanation(
            "missing-norm", "the norm", ("applied", "missing"), own, function, f"b lacks the norm {norm}"
        )


def _of_other_heads(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by a head that shares the table in one model alone."""
    own, alone_a = factors.weight.name, set(site.matching.alone_a)
    partners = {other.name: name for name, (other, _) in site.partners.items()}
    for weight in _tables(site, 1):
        if partners.get(weight.name) == own:
            continue
        for matrix in _oriented(weight.get(), site, factors.matrix.shape[1], 1):
            cause, sentence = "head-untied", f"b multiplies by {weight.name}, "
            dtype = next((it for it in HALVES if np.array_equal(rounded(factors.matrix, it), matrix)), None)
            if dtype is not None:
                cause, sentence = "half-weights", f"{sentence}which is {own} rounded to {dtype}"
            elif weight.name not in partners:
                sentence += f"which equals no weight of a, where a multiplies by {own}"
            elif own in alone_a:
                sentence = f"a multiplies by {own}, which equals no weight of b, where b multiplies by {weight.name}"
            else:
                sentence += f"which is {partners[weight.name]} of a, where a multiplies by {own}"
            function, values = factors.affine(matrix, factors.bias), (own, weight.name)
            yield _explanation(cause, "the matrix of the output", values, factors, function, sentence)


def _of_held_biases(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by a bias that one model alone adds before an activation."""
    path = factors.weight.module
    module = "" if factors.other is None else factors.other.module
    values = (("added", "missing"), f"b adds no bias at {path}, and a does")
    found = [np.zeros_like(factors.bias)]
    if float(np.abs(factors.bias).max()) <= NEAR:
        values = (("missing", "added"), f"b adds a bias at {path}, and a does not")
        held = [weight for weight in site.recordings[1].weights if weight.module == module]
        found = [weight.get().astype(np.float64) for weight in held if weight.shape == factors.bias.shape]
    for bias in found:
        function = factors.affine(factors.matrix, bias)
        yield _explanation("missing-bias", f"the bias of {path}", values[0], factors, function, values[1])


def _of_bias(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation by another bias."""
    rest = site.rows(site.b) - site.rows(factors.entry.values) @ factors.matrix.T
    bias = rest.mean(0)
    if np.linalg.norm(rest - bias) > site.near * np.linalg.norm(site.rows(site.b)):
        return
    size = float(np.abs(factors.bias).max())
    none_in_b = float(np.abs(bias).max()) <= site.near * max(size, float(np.abs(rest).max()))
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
        cause, values, sentence = _of_other_bias(site, factors, bias)
    yield _explanation(cause, f"the bias of {place}", values, factors, factors.affine(factors.matrix, bias), sentence)


def _of_other_bias(site: Site, factors: Factors, bias: np.ndarray) -> tuple[str, tuple[str, str], str]:
    """Return the cause, its values and the text of another bias, which is b's weight where that holds it."""
    most = site.near * float(np.abs(bias).max())
    for weight, other, match in site.differing_by(factors.weight.module):
        if weight.shape == factors.bias.shape == other.shape and np.abs(other.get() - bias).max() <= most:
            relation = match.relation.removesuffix(" in b")
            return cause_of(match), ("a's own", relation), f"b has {weight.name} {match.as_object}"
    return "different-weight", ("a's own", "different"), f"b adds another bias at {site.path or 'the output'}"


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
            factors.affine(matrix.T, factors.bias),
            f"b uses {name} transposed",
        )
    if factors.match is not None and factors.other is not None and _may_be_reordered(factors.match, factors.other):
        for turned in _oriented(factors.other.get(), site, matrix.shape[1], 1):
            moved = [] if site.pair.features_b is None else [site.pair.gradients.in_b(factors.bias)]
            for bias in [*_biases_of(site, factors.weight.module, factors.bias), *moved]:
                yield _explanation(
                    "permuted-weight",
                    name,
                    ("in order", "in another order"),
                    factors,
                    factors.affine(turned, bias),
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


def _may_be_reordered(match: Match, other: HeldWeight) -> bool:
    """Return whether b's weight may hold a's outputs in another order: by its rows, or by an axis of heads of its own."""
    return match.order is not None or len(other.shape) > 2


def _order_of_features(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the order of a's features in b; None where b's are others."""
    order = order_of_rows(b.T, a.T)
    if order is None or np.array_equal(order, np.arange(len(order))):
        return None
    return order if np.linalg.norm(a[:, order] - b) <= NEAR * np.linalg.norm(b) else None


def _of_output(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by a number on the matrix, and by a number or a cap on the output."""
    a, b = site.rows(site.a), site.rows(site.b)
    if factors.bias.any():
        product = a - factors.bias
        number = float((product * (b - factors.bias)).sum() / ((product * product).sum() or 1.0))
        name, values = factors.weight.name, ("1", site.text_of(number))
        scaled = factors.affine(number * factors.matrix, factors.bias)
        yield _explanation("different-weight", f"{name} is multiplied by", values, factors, scaled)
    share = float((a * b).sum() / ((a * a).sum() or 1.0))
    own = factors.affine(factors.matrix, factors.bias)
    yield _explanation(
        "logit-scale",
        f"the output of {site.path or 'the model'} is multiplied by",
        (site.text_of(factors.number), site.text_of(share * factors.number)),
        factors,
        lambda x: share * own(x),
    )
    cap = None if site.layer is not None else _cap(a, b)  # what projections return has none
    if cap is not None:
        yield _explanation(
            "logit-cap",
            f"the output of {site.path or 'the model'} has",
            ("no cap", f"the cap {cap:.4g}"),
            factors,
            lambda x: cap * np.tanh((x @ factors.matrix.T + factors.bias) / cap),
        )


def _of_scales(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanation by other scales and zero points of the rows of a matrix, as of one that is stored in few bits."""
    x, b = site.rows(factors.entry.values), site.rows(site.b) - factors.bias
    if len(x) < LEAST_ROWS:
        return
    product, sums = x @ factors.matrix.T, x.sum(1)
    powers, mixed = (product**2).sum(0), sums @ product
    determinant = powers * (sums @ sums) - mixed**2
    determinant = np.where(determinant > 0, determinant, np.inf)
    scales = ((product * b).sum(0) * (sums @ sums) - (sums @ b) * mixed) / determinant
    offsets = ((sums @ b) * powers - (product * b).sum(0) * mixed) / determinant
    if np.linalg.norm(scales * product + np.outer(sums, offsets) - b) > site.near * np.linalg.norm(b):
        return
    name, matrix = factors.weight.name, scales[:, None] * factors.matrix + offsets[:, None]
    changes = ["a factor of its own"] * bool(np.abs(scales - 1).max() > site.near)
    changes += ["a number added to it"] * bool(np.abs(offsets).max() > site.near * np.abs(matrix).max())
    text = " and ".join(changes)
    sentence = f"each row of {name} has {text} in b, as with other scales or zero points of few bits"
    function = factors.affine(matrix, factors.bias)
    yield _explanation("different-weight", name, ("a's own rows", text), factors, function, sentence)


def _of_cap(site: Site, factors: Factors) -> Iterator[Explanation]:
    """Yield the explanations by another cap of the output, or none."""
    place = site.path or "the model"
    own = f"the cap {factors.cap:.4g}"
    product = factors.affine(factors.matrix, factors.bias)
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
    low, high = capped, largest * 1e4
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * np.tanh(largest / middle) < capped else (low, middle)
    return float((low * high) ** 0.5)
