"""Sites behind products and sums whose input is no point of both models, seen as sites before these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.norm import applied, norms_of
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values, arrived
from embgrad.comparison.sites import difference, name_of
from embgrad.model_points.points import OUTPUT

__all__ = [
    "INPUTS",
    "before_carried",
    "before_product",
    "before_sum",
    "before_taken",
    "behind_known_input",
    "carried_into_norm",
    "carried_on",
    "projected",
    "unprojected",
    "with_added",
    "with_carried",
    "with_carried_input",
]

#: The key in a site's memory of the inputs of products that are explained, a's values and the explanation.
INPUTS: Final = "inputs"

#: The condition number up to which a matrix is inverted.
MOST_CONDITION: Final = 1e4

#: The relative L2 up to which an output is a product.
EXACT: Final = 1e-4

#: By how much the part of a difference along an earlier one may be off where that goes on in it: what else differs is seldom
#: along it, and the differences of points that are alike in two layers have little in common.
NEARLY: Final = 0.5

#: The number of outputs for each input from which an input is solved, and the most entries of a matrix.
ENOUGH: Final = 4
MOST_ENTRIES: Final = 2**27

Projection = Callable[[np.ndarray], np.ndarray]


def before_product(site: Site) -> Iterator[tuple[Site, Projection]]:
    """Yield the site at the input of a module of a that multiplies with one matrix, and the product, if b's input is no point.

    The head that a function of the port applies to the last norm is such a product.
    """
    for entry, key, matrix, bias in _products_of(site):
        solved, product = _solved(matrix, site.b - bias), _product(matrix, bias)
        if solved is not None and site.off(product(solved[0])) <= EXACT:
            pair = replace(site.pair, name=entry.name, a=key)
            yield replace(site, pair=pair, a=entry.values, b=solved[0], floor=site.floor * solved[1]), product
            return


def behind_known_input(site: Site) -> Iterator[tuple[Explanation, Projection]]:
    """Yield the explanations of an input of earlier sites that a module of a multiplies with one matrix, and the product.

    Where keys and values have fewer features than queries, their common input does not follow from theirs.
    """
    known: list[tuple[np.ndarray, Explanation]] = site.memory.get(INPUTS, [])
    for entry, _, matrix, bias in _products_of(site) if known else ():
        for values, explanation in known:
            if np.array_equal(values, entry.values):
                yield explanation, _product(matrix, bias)


def _products_of(site: Site) -> Iterator[tuple[Before, str, np.ndarray, np.ndarray]]:
    """Yield an input of a module of a that b has not, its key, and the matrix and the bias with which it becomes the output."""
    for path, entry in site.modules if np.isfinite(site.b[site.real]).all() else ():
        tensor = next((it for it in site.recordings[0].tensors.values() if name_of(it) == entry.name), None)
        if entry.shared or tensor is None or entry.values.shape[:2] != site.a.shape[:2]:
            continue
        for matrix in _matrices_of(site, path, entry.values.shape[-1]):
            bias = site.rows(site.a).mean(0) - site.rows(entry.values).mean(0) @ matrix
            if site.off(_product(matrix, bias)(entry.values), from_a=True) <= EXACT:
                yield entry, tensor.key, matrix, bias


def _solved(matrix: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, float] | None:
    """Return what a product with a matrix was made of, and the matrix's condition number; None for one that is singular.

    Of a head with many outputs some are enough.
    """
    width, features = matrix.shape
    step = max(features // (ENOUGH * width), 1)
    some = matrix[:, ::step]
    powers = some @ some.T
    values = np.linalg.eigvalsh(powers)
    if values[0] <= values[-1] / MOST_CONDITION**2:
        return None
    found = np.linalg.solve(powers, some @ product[..., ::step].reshape(-1, some.shape[1]).T).T
    return found.reshape(*product.shape[:-1], width), float(np.sqrt(values[-1] / values[0]))


def before_sum(site: Site) -> Iterator[tuple[Site, Before]]:
    """Yield the site at the output of a module of a alone that a adds to a tensor that both have, and this tensor.

    The residual around a norm that a function of the port applies to what a layer adds is such a sum.
    """
    tensors = {name_of(tensor): tensor for tensor in site.recordings[0].tensors.values()}
    for added in site.before:
        tensor = tensors.get(added.name)
        if added.shared or tensor is None or tensor.side != OUTPUT or added.values.shape != site.a.shape:
            continue
        rest = site.a - added.values
        other = next(
            (it for it in site.before if it.shared and it.values.shape == rest.shape and _is(site, it, rest)), None
        )
        if other is not None:
            pair = replace(site.pair, name=added.name, a=tensor.key)
            yield replace(site, pair=pair, a=added.values, b=site.b - other.values), other


def before_taken(site: Site) -> Iterator[tuple[Site, Projection]]:
    """Yield the site at the output of a module of a alone of which a takes the first vector of each text, and the taking."""
    tensors = {name_of(tensor): tensor for tensor in site.recordings[0].tensors.values()}
    for whole in site.before if site.real.shape[1] == 1 else ():
        if whole.shared or whole.name not in tensors or not np.array_equal(whole.values[:, :1], site.a):
            continue
        real, b = np.zeros(whole.values.shape[:2], bool), np.array(whole.values)
        real[:, :1], b[:, :1] = True, site.b
        pair = replace(site.pair, name=whole.name, a=tensors[whole.name].key)
        yield replace(site, pair=pair, a=whole.values, b=b, real=real), lambda values: np.asarray(values[:, :1])
        return


def before_carried(site: Site) -> tuple[Site, Site, Explanation] | None:
    """Return the site without the difference of an earlier one that goes on beside it, the earlier site, and its explanation.

    None where no such difference is known. Points on the way are set where modules read them, not in the residual itself.
    """
    for earlier, explanation in reversed(site.memory.get("explained", [])):
        is_known = explanation is not None and earlier.a.shape == site.a.shape
        if is_known and any(np.array_equal(before.values, earlier.a) for before in site.before):
            step, whole = (site.rows(it.b - it.a) for it in (earlier, site))
            if abs((step * whole).sum() / (step**2).sum() - 1) <= NEARLY:
                return replace(site, b=site.b - (earlier.b - earlier.a)), earlier, explanation
    return None


def carried_into_norm(site: Site) -> tuple[Site, Site, Explanation, str] | None:
    """Return the site at a norm of a whose input has the difference of an earlier site, as where b adds to what a norm returns.

    The earlier site, the explanation by its difference alone, and the name of the norm's input are returned as well; None where
    there is no norm or no such difference, or none that makes the outputs more alike.
    """
    best: tuple[Site, Site, Explanation, str] | None = None
    for entry, norm in norms_of(site):
        for earlier, explanation in site.memory.get("explained", []):
            if explanation is None or earlier.a.shape != entry.values.shape:
                continue
            given = replace(entry, values=entry.values + earlier.b - earlier.a)
            before = [given if it.name == entry.name else it for it in site.before]
            inner = replace(site, a=norm.apply(given.values), before=before)
            if inner.difference < (site if best is None else best[0]).difference:
                compute = partial(applied, norm, entry.name)
                best = inner, earlier, _gone_on(explanation, inner.a, compute, entry.name), entry.name
    return best


def _gone_on(
    explanation: Explanation, predicted: np.ndarray, compute: Callable[[Values], np.ndarray], *names: str
) -> Explanation:
    """Return an earlier site's explanation as that of what its difference leads to."""
    return replace(explanation, predicted=predicted, compute=compute, inputs=names, also=(), rivals=(), goes_on=True)


def with_carried_input(explanation: Explanation, earlier: Site, name: str) -> Explanation:
    """Return an explanation of a function whose input has the difference of an earlier site."""
    compute = explanation.compute

    def changed(at: Values) -> np.ndarray:
        assert compute is not None
        carried = at(earlier.name) - at(arrived(earlier.name))
        return compute(lambda read: at(read) + carried if read == name else at(read))

    names = tuple(dict.fromkeys((*explanation.inputs, earlier.name)))
    also = tuple(with_carried_input(it, earlier, name) for it in explanation.also)
    return replace(explanation, compute=None if compute is None else changed, inputs=names, also=also)


def carried_on(site: Site, earlier: Site, explanation: Explanation) -> Explanation:
    """Return the explanation that a site differs by what an earlier one differs by."""
    own = arrived(site.name)
    return with_carried(_gone_on(explanation, site.a, lambda at: at(own)), earlier)


def with_carried(explanation: Explanation, earlier: Site) -> Explanation:
    """Return an explanation of a site without an earlier one's difference as one of the site with it."""
    name, predicted = earlier.name, explanation.predicted + earlier.b - earlier.a
    if name in explanation.inputs:  # it reads what the earlier site is changed to
        return explanation.behind(predicted, lambda values, at: values)
    return explanation.behind(predicted, lambda values, at: values + at(name) - at(arrived(name)), [name])


def _is(site: Site, before: Before, values: np.ndarray) -> bool:
    return difference(values, before.values, site.real) <= EXACT


def with_added(explanation: Explanation, added: Before) -> Explanation:
    """Return an explanation of the site before a sum as one of the sum."""
    predicted = explanation.predicted + added.values
    return explanation.behind(predicted, lambda values, at: values + at(added.name), [added.name])


def _matrices_of(site: Site, path: str, width: int) -> Iterator[np.ndarray]:
    """Yield the matrices, (input, output), that a module may multiply with: its own, or others where it has none."""
    features = site.a.shape[-1]
    size = width * features
    shaped = [weight for weight in site.recordings[0].weights if int(np.prod(weight.shape)) == size <= MOST_ENTRIES]
    own = [weight for weight in shaped if weight.module == path]
    for weight in own or shaped:
        values = weight.get().astype(np.float64)
        if values.shape[0] == width:
            yield values.reshape(width, features)
        if values.shape[-1] == width:
            yield values.reshape(features, width).T


def unprojected(site: Site) -> Iterator[tuple[Site, Projection]]:
    """Yield the site before the product with each square matrix of its module, and the product.

    Only modules with several matrices have such sites: the others' inputs are points.
    """
    held = [weight for weight, _, _ in site.held.values()] if site.is_output else []
    matrices = [weight for weight in held if len(weight.shape) in (2, 3)]
    width = site.a.shape[-1]
    vectors = [weight.get().astype(np.float64).ravel() for weight in held if int(np.prod(weight.shape)) == width]
    for weight in matrices if len(matrices) > 1 else ():
        if int(np.prod(weight.shape)) != width**2:
            continue
        values = weight.get().astype(np.float64)
        for matrix in (values.reshape(values.shape[0], -1).T, values.reshape(-1, values.shape[-1])):
            if matrix.shape != (width, width) or np.linalg.cond(matrix) > MOST_CONDITION:
                continue
            for bias in [*vectors, np.zeros(width)]:
                yield _before(site, matrix, bias), _product(matrix, bias)


def projected(explanation: Explanation, product: Projection) -> Explanation:
    """Return an explanation of the site before a product as one of the site behind it."""
    return explanation.behind(product(explanation.predicted), lambda values, at: product(values))


def _product(matrix: np.ndarray, bias: np.ndarray) -> Projection:
    return lambda values: np.asarray(values @ matrix + bias)


def _before(site: Site, matrix: np.ndarray, bias: np.ndarray) -> Site:
    inverse = np.linalg.inv(matrix)
    a, b = (site.a - bias) @ inverse, (site.b - bias) @ inverse
    growth = np.linalg.norm(inverse, 2) * np.linalg.norm(site.a) / (np.linalg.norm(a) or 1.0)
    return replace(site, a=a, b=b, floor=site.floor * max(float(growth), 1.0))
