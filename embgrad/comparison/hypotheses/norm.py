"""The hypothesis of a layer norm or a root-mean-square norm with another epsilon, kind, gain or bias."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.common.tolerance import HALVES
from embgrad.comparison.hypotheses.changed_rows import with_changed_rows
from embgrad.comparison.hypotheses.in_half import MOST_ROUNDOFFS, has_digits_of
from embgrad.comparison.hypotheses.norm_fit import (
    EPSILONS,
    LEAST_WIDE,
    ROUGHLY,
    TRIED,
    Parameters,
    changed_norm,
    fitted_norm,
    norm_with_gain,
    norm_with_vectors,
    what_differs,
)
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.site import NEAR, Before, Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Term, carried, relative
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weight_values import rounded
from embgrad.comparison.weights import Match, kind_of
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = [
    "NUMBER",
    "Norm",
    "NormOfSum",
    "applied",
    "norm_of",
    "norm_with_weights_of_b",
    "norms_of",
    "with_weights_of_layer",
]

#: The number of a layer in a path.
NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")

#: The share of numbers that are equal where only what a norm returns is rounded to half precision.
EXACTLY: Final = 0.98

#: The most tensors among which those are looked for whose sum is given to a norm, and the number of tokens that shows it.
MOST_TERMS: Final = 8
LEAST_TOKENS: Final = 8


class Norm:
    """A norm over the features, with a gain and a bias."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the norms of both models differ; an empty list where a computes none."""
        found = [explanation for path, entry in _norms(site) for explanation in self._of_module(site, path, entry)]
        return [*found, *_missing_in_a(site), *_of_later(site)]

    def _of_module(self, site: Site, path: str, entry: Before) -> list[Explanation]:
        width = _width(site, path)
        x, a, b = (site.rows(values).reshape(-1, width) for values in (entry.values, site.a, site.b))
        first = _of_weights(site, path, x, a)
        if first is None and not site.is_coarse:  # up to rounding to half precision many functions are norms
            first = fitted_norm(x, a, site.declared("epsilon"))
        if first is None or relative(first.apply(x), a) > site.near:
            second = _of_weights(site, path, x, b)
            return [] if second is None else _in_half(site, entry, second, "a")
        explanations = [
            explanation
            for second in (changed_norm(first, x, b, site.declared("epsilon", of_a=False)),)
            if relative(second.apply(x), b) <= site.near
            and (explanation := self._explanation(site, path, entry, first, second)) is not None
        ]
        explanations += [*self._by_weights(site, path, entry, first), *_of_other_layers(site, path, entry, first)]
        second = None if explanations else fitted_norm(x, b)
        if second is not None and relative(second.apply(x), b) <= ROUGHLY:
            explanation = self._explanation(site, path, entry, first, second)
            explanations += [] if explanation is None else [explanation]
        missing = _missing(site, path, entry, x, b)
        if missing and site.is_coarse:  # a norm with an epsilon of any size is none, up to rounding to half precision
            return missing
        explanations = with_changed_rows(site, entry, first, explanations)
        return [*explanations, *missing, *_in_half(site, entry, first, "b")]

    def _by_weights(self, site: Site, path: str, entry: Before, first: Parameters) -> list[Explanation]:
        """Return the explanation by b's weights, where one differs from its partner."""
        differing, name = _differing(site, path, first), entry.name
        if not differing:
            return []
        changed = _with_weights(first, [(weight, other) for weight, other, _ in differing])
        text = ", and ".join(f"b has {weight.name} {match.as_object}" for weight, _, match in differing)
        values, cause = ("a's own", text), cause_of(differing[-1][2])
        compute = partial(applied, changed, name)
        return [Explanation(cause, path, values, changed.apply(entry.values), compute, (name,), text)]

    def _explanation(
        self, site: Site, path: str, entry: Before, first: Parameters, second: Parameters
    ) -> Explanation | None:
        cause, setting, texts = what_differs(first, second)
        if not cause:
            return None
        sentence = ""
        if cause == "different-weight":
            other = _holder_of(site, path, second)
            is_plain = np.allclose(second.gain, 1, atol=1e-4) and not second.shift.any()
            whose = "without weights" if is_plain else "with other weights"
            factor = float(first.gain @ second.gain / (first.gain @ first.gain or 1.0))
            if relative(factor * np.r_[first.gain, first.shift], np.r_[second.gain, second.shift]) <= site.near:
                whose = f"times {site.text_of(factor)}"
            if other is not None:
                cause, whose = "swapped-weights", f"with the weights of {other}"
            sentence = f"b applies the norm {path} {whose}"

        def compute(at: Values) -> np.ndarray:
            return second.apply(at(entry.name))

        return Explanation(cause, setting, texts, second.apply(entry.values), compute, (entry.name,), sentence)


def _differing(site: Site, path: str, norm: Parameters) -> list[tuple[HeldWeight, HeldWeight, Match]]:
    """Return the weights of a norm's module that differ from their partners, with these."""
    return [entry for entry in site.differing_by(path) if entry[1].get().size == norm.gain.size]


def _with_weights(norm: Parameters, pairs: Iterable[tuple[HeldWeight, HeldWeight]]) -> Parameters:
    """Return a norm with other weights in the place of its own, which come first in each pair."""
    changed = norm
    for weight, other in pairs:
        mine, its = (held.get().astype(np.float64).ravel() for held in (weight, other))
        if np.allclose(norm.shift, mine, atol=1e-6) and not np.allclose(norm.gain, mine):
            changed = replace(changed, shift=norm.shift + its - mine)
        else:
            changed = replace(changed, gain=norm.gain + its - mine)
    return changed


def _of_other_layers(site: Site, path: str, entry: Before, first: Parameters) -> Iterator[Explanation]:
    """Yield the explanation that b applies a norm with the weights of another layer, though it holds a's own."""
    for module, pairs in _others(site, path, first):
        if kind_of(module) != kind_of(path):
            continue
        changed = _with_weights(first, pairs)
        if site.off(changed.apply(entry.values)) <= site.near:
            texts = [f"b has {weight.name} equal to a's {other.name}" for weight, other in pairs]
            text, compute = ", and ".join(texts), partial(applied, changed, entry.name)
            values = ("a's own", text)
            predicted = changed.apply(entry.values)
            yield Explanation("swapped-weights", path, values, predicted, compute, (entry.name,), text)


def _others(site: Site, path: str, norm: Parameters) -> Iterator[tuple[str, list[tuple[HeldWeight, HeldWeight]]]]:
    """Yield the other modules of a that hold weights of a norm's names and shapes, with pairs of its weights and theirs."""
    held: dict[str, dict[str, HeldWeight]] = defaultdict(dict)
    for weight in site.recordings[0].weights:
        if weight.shape == norm.gain.shape:
            held[weight.module][weight.name.removeprefix(weight.module)] = weight
    own = held.pop(path, {})
    for module, weights in held.items():
        if own and own.keys() == weights.keys():
            yield module, [(own[name], weights[name]) for name in own]


def with_weights_of_layer(site: Site, path: str, norm: Parameters) -> Iterator[tuple[str, Parameters]]:
    """Yield the other norms of a norm's layer in a, with the norm as it is with their weights."""
    for module, pairs in _others(site, path, norm):
        if all(weight.layer == other.layer for weight, other in pairs):
            yield module, _with_weights(norm, pairs)


def norm_of(site: Site, path: str, x: np.ndarray, y: np.ndarray) -> Parameters | None:
    """Return the norm that a module of a computes with its weights; None where it computes none.

    Args:
        site: the site.
        path: the module's path.
        x: its inputs, (example, position, feature).
        y: its outputs.
    """
    if x.shape != y.shape:
        return None
    sizes = {int(np.prod(weight.shape)) for weight, _, _ in site.held_by(path).values()}
    size = sizes.pop() if len(sizes) == 1 else 0
    if size < LEAST_WIDE or x.shape[-1] % size:
        return None
    return _of_weights(site, path, site.rows(x).reshape(-1, size), site.rows(y).reshape(-1, size))


def norm_with_weights_of_b(site: Site, path: str, x: np.ndarray, y: np.ndarray) -> Parameters | None:
    """Return the norm that `norm_of` returns with b's weights in the place of those that differ."""
    norm = norm_of(site, path, x, y)
    return None if norm is None else _with_weights(norm, [pair[:2] for pair in _differing(site, path, norm)])


def _holder_of(site: Site, path: str, norm: Parameters) -> str | None:
    """Return another module of a whose weights are a norm's gain and bias; None where there is none."""
    vectors: dict[str, list[np.ndarray]] = defaultdict(list)
    for weight in site.recordings[0].weights:
        if weight.shape == norm.gain.shape and weight.module != path:
            vectors[weight.module].append(weight.get().astype(np.float64))
    wanted = [norm.gain, *([norm.shift] if norm.shift.any() else [])]
    return next(
        (
            module
            for module, held in vectors.items()
            if all(any(relative(vector, it) <= ROUGHLY for vector in held) for it in wanted)
        ),
        None,
    )


class NormOfSum:
    """A norm that b alone computes, of a sum of two tensors, as behind a residual, or of a's own output.

    A norm that a lacks altogether is found by its weights, see `Norm`.
    """

    def explain(self, site: Site) -> list[Explanation]:
        """Return how b's norm differs from what a computes, which is a norm or a sum; an empty list where b computes none."""
        return list(_of_sums(site))


def _norms(site: Site) -> Iterator[tuple[str, Before]]:
    """Yield the paths and the inputs of the modules whose output is a's output, which may be norms."""
    for path, entry in site.modules:
        if entry.values.shape == site.a.shape and site.a.shape[-1] >= LEAST_WIDE:
            yield path, entry


def _width(site: Site, path: str) -> int:
    """Return the number of features that are normalised together: those of a head, where the weights are as long as a head."""
    features = int(site.a.shape[-1])
    sizes = {int(np.prod(weight.shape)) for weight, _, _ in site.held_by(path).values()}
    size = sizes.pop() if len(sizes) == 1 else features
    return size if size >= LEAST_WIDE and features % size == 0 else features


def _missing(site: Site, path: str, entry: Before, x: np.ndarray, b: np.ndarray) -> list[Explanation]:
    """Return the explanation that b has no norm, where its output is the norm's input."""
    if not np.allclose(x, b, atol=1e-6) and relative(x, b) > site.floor:
        return []
    name = entry.name
    if path != site.path and any(pair.name == path for pair in site.pairs):
        values, sentence = (
            (path, name),
            f"b reads the input of the norm {path} at {site.name}, where a reads its output",
        )
        cause = "missing-norm" if _is_read_elsewhere(site) else "norm-order"
        return [Explanation(cause, site.name, values, entry.values, lambda at: at(name), (name,), sentence)]
    values, sentence = ("applied", "missing"), f"b lacks the norm {path}"
    return [Explanation("missing-norm", "the norm", values, entry.values, lambda at: at(name), (name,), sentence)]


def _is_read_elsewhere(site: Site) -> bool:
    """Return whether another module reads a's output in b as well, so that the norm is where a has it."""
    tensors, values = site.recordings[0].tensors, site.recordings[0].tensors[site.pair.a].values
    agreeing = (pair for pair in site.pairs if pair.name not in site.memory.get("differing", {site.name}))
    return any(tensors[it.a].side == INPUT and np.array_equal(tensors[it.a].values, values) for it in agreeing)


def _missing_in_a(site: Site) -> Iterator[Explanation]:
    """Yield the explanations by a norm of b alone, whose input is a's output."""
    alone: dict[str, list[np.ndarray]] = defaultdict(list)
    for weight in site.recordings[1].weights:
        if weight.name in site.matching.alone_b and weight.shape == site.a.shape[-1:]:
            alone[weight.module].append(weight.get().astype(np.float64))
    x, b = site.rows(site.a), site.rows(site.b)
    declared = site.declared("epsilon", of_a=False)
    if not alone or not _is_a_norm(x, b, declared):
        return
    for path, vectors in alone.items():
        found = norm_with_vectors(vectors, x, b, declared, site.near)
        if found is not None:
            name = next((before.name for before in site.before if np.array_equal(before.values, site.a)), None)
            compute = None if name is None else partial(applied, found, name)
            sentence, predicted = f"b applies the norm {path}, and a lacks it", found.apply(site.a)
            names = () if name is None else (name,)
            yield Explanation("missing-norm", "the norm", ("missing", "applied"), predicted, compute, names, sentence)


def _is_a_norm(x: np.ndarray, y: np.ndarray, declared: float | None) -> bool:
    """Return whether outputs are nearly a norm of inputs with some gain and bias, which is soon seen."""
    kinds = itertools.product((True, False), EPSILONS if declared is None else (declared, *EPSILONS))
    return any(relative(norm_with_gain(x, y, centred, epsilon).apply(x), y) <= ROUGHLY for centred, epsilon in kinds)


def _of_later(site: Site) -> Iterator[Explanation]:
    """Yield the explanation that b reads the output of a norm that a applies behind the site."""
    first, second = (recording.tensors for recording in site.recordings)
    ends = first[site.pair.a].time, second[site.pair.b].time
    for pair in site.pairs:
        norm = first[pair.a]
        is_moved = norm.time > ends[0] and second[pair.b].time <= ends[1]
        if not is_moved or norm.side != OUTPUT or norm.values.shape != site.a.shape:
            continue
        held = site.held_by(norm.path).values()
        if held and all(len(weight.shape) == 1 for weight, _, _ in held) and site.off(norm.values) <= site.near:
            path = NUMBER.sub("N", norm.path)  # of the layer behind a site that ends where this begins
            sentence = f"b applies the norm {path} before the part that a applies it behind"
            yield Explanation("norm-order", f"the norm {path}", ("behind", "before"), norm.values, sentence=sentence)


def _sum(terms: Iterable[Term]) -> np.ndarray:
    return np.asarray(sum(term.values for term in terms))


def _terms(site: Site) -> list[Term]:
    """Return the tensors that may be terms of a sum that b gives to a norm."""
    near = [before for before in site.before if before.values.shape == site.a.shape]
    shared, others = ([before for before in near if before.shared == shared][:MOST_TERMS] for shared in (True, False))
    return [Term(before, before.values) for before in (*shared, *others)]


def _fitted_near(x: np.ndarray, y: np.ndarray, declared: float | None = None, near: float = NEAR) -> Parameters | None:
    """Return the norm of inputs that outputs are; None where they are no norm."""
    if min(relative(norm_with_gain(x, y, centred, TRIED).apply(x), y) for centred in (True, False)) > ROUGHLY:
        return None
    norm = fitted_norm(x, y, declared)
    return norm if norm is not None and relative(norm.apply(x), y) <= near else None


def _of_sums(site: Site) -> Iterator[Explanation]:
    """Yield the explanation by the first sum of which b's output is a norm."""
    b = site.rows(site.b)
    own = _terms(site)
    terms = [*filter(None, (carried(site, term) for term in own)), *own]
    if len(b) < LEAST_TOKENS or b.shape[1] < LEAST_WIDE or not (any(norms_of(site)) or _is_sum(site)):
        return
    inputs = [(term,) for term in terms if np.array_equal(term.values, site.a)]
    for chosen in itertools.chain(inputs, itertools.combinations(terms, 2)):
        whole = _sum(chosen)
        x = site.rows(whole)
        norm = _fitted_near(x, b, site.declared("epsilon", of_a=False), site.near)
        if norm is not None:
            own_sum = site.rows(np.asarray(sum(term.before.values for term in chosen)))
            if (
                len(chosen) > 1 and _fitted_near(own_sum, site.rows(site.a), near=site.near) is not None
            ):  # a computes this norm as well
                return
            names = tuple(dict.fromkeys(name for term in chosen for name in term.inputs))
            is_known = all(term.earlier is None or term.earlier.compute is not None for term in chosen)
            compute = partial(_applied_to_sum, norm, chosen) if is_known else None
            summed = " + ".join(term.before.name for term in chosen)
            sentence = f"b computes {site.name} as {norm.kind} of {summed}, and a does not"
            if len(chosen) == 1 and np.array_equal(chosen[0].values, site.a):
                sentence = f"b applies {norm.kind} to what a has at {site.name}, and a does not"
            setting = ("another", "a norm")
            yield Explanation("norm-order", site.name, setting, norm.apply(whole), compute, names, sentence)
            return


def norms_of(site: Site) -> Iterator[tuple[Before, Parameters]]:
    """Yield the norms with the weights of their modules whose output is a's output, with their inputs."""
    a = site.rows(site.a)
    for path, entry in _norms(site):
        norm = _of_weights(site, path, site.rows(entry.values), a)
        if norm is not None:
            yield entry, norm


def _is_sum(site: Site) -> bool:
    """Return whether a's output is one of the tensors before the site, or the sum of two of them."""
    near = [before.values for before in site.before if before.values.shape == site.a.shape][: 2 * MOST_TERMS]
    sums = itertools.chain(near, (x + y for x, y in itertools.combinations(near, 2)))
    return any(site.off(values, from_a=True) <= NEAR for values in sums)


def _applied_to_sum(norm: Parameters, terms: Sequence[Term], at: Values) -> np.ndarray:
    """Return the norm of the sum of the values at points."""
    return norm.apply(np.asarray(sum(term.read(at) for term in terms)))


def applied(norm: Parameters, name: str, at: Values) -> np.ndarray:
    """Return the norm of the values at a point."""
    return norm.apply(at(name))


def _in_half(site: Site, entry: Before, norm: Parameters, side: str) -> list[Explanation]:
    """Return the explanation that one side computes the norm in half precision, where its output has no more digits than that.

    Args:
        site: the site.
        entry: the input.
        norm: the norm that the other side computes.
        side: "a" or "b", which may compute it in half precision.
    """
    outputs = (site.a, site.b) if side == "a" else (site.b, site.a)
    compute = partial(applied, norm, entry.name) if side == "a" else None
    predicted, names = (norm.apply(entry.values), (entry.name,)) if side == "a" else (site.b, ())
    for dtype, roundoff in reversed(HALVES.items()):
        coarse, fine = (_has_digits_of(dtype, site.rows(output), norm) for output in outputs)
        if coarse and not fine and site.difference <= MOST_ROUNDOFFS * roundoff:
            values = (dtype, "float32") if side == "a" else ("float32", dtype)
            exact = rounded(norm.apply(site.rows(entry.values)), dtype) == site.rows(outputs[0]).astype(np.float32)
            verb = "rounds what norms return to" if exact.mean() > EXACTLY else "computes norms in"
            return [Explanation("norm-in-half", "norms", values, predicted, compute, names, f"{side} {verb} {dtype}")]
    return []


def _has_digits_of(dtype: str, values: np.ndarray, norm: Parameters) -> bool:
    """Return whether vectors, before or after the gain, have no more digits than a dtype."""
    gain = np.tile(np.where(norm.gain == 0, 1.0, norm.gain), values.shape[1] // len(norm.gain))
    shifted = bool(norm.shift.any())
    return any(has_digits_of(dtype, array) for array in (values, *([] if shifted else [values / gain])))


def _of_weights(site: Site, path: str, x: np.ndarray, y: np.ndarray) -> Parameters | None:
    """Return the norm with the module's own weights that is nearest to outputs; None where it has no such weights."""
    held = [weight for weight, _, _ in site.held_by(path).values() if int(np.prod(weight.shape)) == x.shape[1]]
    vectors = [weight.get().astype(np.float64).ravel() for weight in held]
    sizes = {weight.shape[-1] for weight in held}  # gains by head, (head, feature), are of norms by head
    size = next(iter(sizes)) if len(sizes) == 1 and sizes != {x.shape[1]} else None
    return norm_with_vectors(vectors, x, y, site.declared("epsilon"), site.near, size)
