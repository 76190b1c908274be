"""The hypothesis of a layer norm or a root-mean-square norm with another epsilon, kind, gain or bias."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.common.tolerance import HALVES
from embgrad.comparison.hypotheses.lookup import is_looked_up
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import NEAR, Term, carried, relative
from embgrad.comparison.weight_values import rounded
from embgrad.model_points.points import OUTPUT

__all__ = ["EPSILONS", "NUMBER", "Norm", "NormOfSum", "Parameters", "norms_of"]

#: The number of a layer in a path.
NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")

#: The least number of features of a norm.
LEAST_WIDE: Final = 4

#: The number of unit roundoffs of half precision by which a norm that is computed in it differs.
MOST_ROUNDOFFS: Final = 8.0

#: The relative rounding error of a number that was computed from one with few digits.
DIGITS: Final = 1e-6

#: The epsilons that models have.
EPSILONS: Final = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 0.0)

#: An epsilon with which norms are tried, and the relative L2 up to which one is looked at more closely.
TRIED: Final = 1e-6
ROUGHLY: Final = 1e-2

#: The relative L2 from which no epsilon between the usual ones and no divisor makes a norm of other numbers.
DISTANT: Final = 0.7

#: The most tensors among which those are looked for whose sum is given to a norm, and the number of tokens that shows it.
MOST_TERMS: Final = 8
LEAST_TOKENS: Final = 8

#: The ratio of remaining differences up to which a declared epsilon fits as well as the best.
ALIKE: Final = 3.0

#: The ratio of remaining differences up to which two usual epsilons fit equally well, so that the first of them is taken.
EQUALLY: Final = 1.2

#: The number of times that the interval of an epsilon is cut to two thirds.
REFINEMENTS: Final = 60

#: The ratio of remaining differences from which an epsilon that is not usual, or another divisor, is preferred.
BETTER: Final = 0.3

#: What norms divide by: the root of the variance over n, and what functions for the deviation of a sample lead to.
ROOT: Final = "the root of variance + ε"
DIVISORS: Final = (ROOT, "the root of (n / (n − 1)) variance + ε", "deviation + ε", "deviation over n − 1, + ε")


@dataclass(frozen=True, eq=False)
class Parameters:
    """The settings of a norm.

    Attributes:
        centred: whether the mean is subtracted.
        epsilon: the number that is added to the variance.
        gain: γ, (feature,).
        shift: β, (feature,).
        divisor: what vectors are divided by, one of `DIVISORS`.
    """

    centred: bool
    epsilon: float
    gain: np.ndarray
    shift: np.ndarray
    divisor: str = ROOT

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the norm of vectors along the last axis, or of each of their equal parts as long as the gain."""
        parts = x.reshape(-1, len(self.gain))
        return np.asarray(_unit(parts, self.centred, self.epsilon, self.divisor) * self.gain + self.shift).reshape(
            x.shape
        )

    @property
    def kind(self) -> str:
        """A readable name of the kind."""
        return "a layer norm" if self.centred else "a root-mean-square norm"


class Norm:
    """A norm over the features, with a gain and a bias."""

    causes = (
        "layer-norm-epsilon",
        "norm-kind",
        "norm-offset",
        "missing-bias",
        "missing-norm",
        "norm-order",
        "norm-in-half",
        "different-weight",
        "half-weights",
        "swapped-weights",
        "scaled-lookup",
    )

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the norms of both models differ; an empty list where a computes none."""
        found = [explanation for path, entry in _norms(site) for explanation in self._of_module(site, path, entry)]
        return [*found, *_missing_in_a(site), *_of_later(site)]

    def _of_module(self, site: Site, path: str, entry: Before) -> list[Explanation]:
        width = _width(site, path)
        x, a, b = (site.rows(values).reshape(-1, width) for values in (entry.values, site.a, site.b))
        first = _of_weights(site, path, x, a) or _fitted(x, a, site.declared("epsilon"))
        if first is None or relative(first.apply(x), a) > NEAR:
            second = _of_weights(site, path, x, b)
            return [] if second is None else _in_half(site, entry, second, "a")
        explanations = [
            explanation
            for second in (_version(first, x, b, site.declared("epsilon", of_a=False)),)
            if relative(second.apply(x), b) <= NEAR
            and (explanation := self._explanation(site, path, entry, first, second)) is not None
        ]
        explanations += self._by_weights(site, path, entry, first)
        second = None if explanations else _fitted(x, b)
        if second is not None and relative(second.apply(x), b) <= ROUGHLY:
            explanation = self._explanation(site, path, entry, first, second)
            explanations += [] if explanation is None else [explanation]
        explanations = [*_unscaled(site, entry, first), *explanations]
        return [*explanations, *_missing(site, path, entry, x, b), *_in_half(site, entry, first, "b")]

    def _by_weights(self, site: Site, path: str, entry: Before, first: Parameters) -> list[Explanation]:
        """Return the explanation by b's weights, where one differs from its partner."""
        changed, sentences, cause = first, [], ""
        for weight, other, match in site.held_by(path).values():
            if match is None or other is None or match.is_equal or other.get().size != first.gain.size:
                continue
            mine, its = (held.get().astype(np.float64).ravel() for held in (weight, other))
            step = its - mine
            if np.allclose(first.shift, mine, atol=1e-6) and not np.allclose(first.gain, mine):
                changed = replace(changed, shift=first.shift + step)
            else:
                changed = replace(changed, gain=first.gain + step)
            cause = cause_of(match)
            sentences.append(f"b has {weight.name} {match.as_object}")
        if not sentences:
            return []
        name = entry.name

        def compute(at: Values) -> np.ndarray:
            return changed.apply(at(name))

        text = ", and ".join(sentences)
        values = ("a's own", text)
        return [Explanation(cause, path, values, changed.apply(entry.values), compute, (name,), text)]

    def _explanation(
        self, site: Site, path: str, entry: Before, first: Parameters, second: Parameters
    ) -> Explanation | None:
        cause, setting, texts = _what_differs(first, second)
        if not cause:
            return None
        other, sentence = _holder_of(site, path, second) if cause == "different-weight" else None, ""
        if other is not None:
            cause, sentence = "swapped-weights", f"b applies the norm {path} with the weights of {other}"

        def compute(at: Values) -> np.ndarray:
            return second.apply(at(entry.name))

        return Explanation(cause, setting, texts, second.apply(entry.values), compute, (entry.name,), sentence)


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

    causes = ("norm-order",)

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
    if not np.allclose(x, b, atol=1e-6):
        return []
    name = entry.name
    if path != site.path and any(pair.name == path for pair in site.pairs):
        values, sentence = (
            (path, name),
            f"b reads the input of the norm {path} at {site.name}, where a reads its output",
        )
        return [Explanation("norm-order", site.name, values, entry.values, lambda at: at(name), (name,), sentence)]
    values, sentence = ("applied", "missing"), f"b lacks the norm {path}"
    return [Explanation("missing-norm", "the norm", values, entry.values, lambda at: at(name), (name,), sentence)]


def _unscaled(site: Site, entry: Before, norm: Parameters) -> Iterator[Explanation]:
    """Yield the explanation that b's norm is given looked-up rows that a scales first, which another epsilon looks like."""
    x = site.rows(entry.values)
    for before in site.before:
        if before.values.shape != entry.values.shape or not is_looked_up(site, before):
            continue
        rows = site.rows(before.values)
        scale = float((x * rows).sum() / ((rows**2).sum() or 1.0))
        if abs(scale - 1) > NEAR and relative(scale * rows, x) <= NEAR:
            predicted, compute = norm.apply(before.values), partial(_applied, norm, before.name)
            setting, values = f"{before.name} is multiplied by", (f"{scale:.6g}", "1")
            yield Explanation("scaled-lookup", setting, values, predicted, compute, (before.name,))


def _missing_in_a(site: Site) -> Iterator[Explanation]:
    """Yield the explanations by a norm of b alone, whose input is a's output."""
    alone: dict[str, list[np.ndarray]] = defaultdict(list)
    for weight in site.recordings[1].weights:
        if weight.name in site.matching.alone_b and weight.shape == site.a.shape[-1:]:
            alone[weight.module].append(weight.get().astype(np.float64))
    x, b = site.rows(site.a), site.rows(site.b)
    for path, vectors in alone.items():
        found = _with_vectors(vectors, x, b, site.declared("epsilon", of_a=False))
        if found is not None:
            name = next((before.name for before in site.before if np.array_equal(before.values, site.a)), None)
            compute = None if name is None else partial(_applied, found, name)
            sentence, predicted = f"b applies the norm {path}, and a lacks it", found.apply(site.a)
            names = () if name is None else (name,)
            yield Explanation("missing-norm", "the norm", ("missing", "applied"), predicted, compute, names, sentence)


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
        if held and all(len(weight.shape) == 1 for weight, _, _ in held) and site.off(norm.values) <= NEAR:
            path = NUMBER.sub("N", norm.path)  # of the layer behind a site that ends where this begins
            sentence = f"b applies the norm {path} before the part that a applies it behind"
            yield Explanation("norm-order", f"the norm {path}", ("behind", "before"), norm.values, sentence=sentence)


def _sum(terms: Iterable[Term]) -> np.ndarray:
    return np.asarray(sum(term.values for term in terms))


def _terms(site: Site) -> list[Term]:
    """Return the tensors that may be terms of a sum that b gives to a norm."""
    near = [before for before in site.before if before.shared and before.values.shape == site.a.shape][:MOST_TERMS]
    return [Term(before, before.values) for before in near]


def _fitted_near(x: np.ndarray, y: np.ndarray, declared: float | None = None) -> Parameters | None:
    """Return the norm of inputs that outputs are; None where they are no norm."""
    if min(relative(_with_gain(x, y, centred, TRIED).apply(x), y) for centred in (True, False)) > ROUGHLY:
        return None
    norm = _fitted(x, y, declared)
    return norm if norm is not None and relative(norm.apply(x), y) <= NEAR else None


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
        norm = _fitted_near(x, b, site.declared("epsilon", of_a=False))
        if norm is not None:
            own_sum = site.rows(np.asarray(sum(term.before.values for term in chosen)))
            if len(chosen) > 1 and _fitted_near(own_sum, site.rows(site.a)) is not None:  # a computes this norm as well
                return
            names = tuple(dict.fromkeys(name for term in chosen for name in term.inputs))
            is_known = all(term.earlier is None or term.earlier.compute is not None for term in chosen)
            compute = partial(_applied_to_sum, norm, chosen) if is_known else None
            summed = " + ".join(term.before.name for term in chosen)
            sentence = f"b computes {site.name} as {norm.kind} of {summed}, and a does not"
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


def _applied(norm: Parameters, name: str, at: Values) -> np.ndarray:
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
    compute = partial(_applied, norm, entry.name) if side == "a" else None
    predicted, names = (norm.apply(entry.values), (entry.name,)) if side == "a" else (site.b, ())
    for dtype, roundoff in sorted(HALVES.items(), key=lambda entry: -entry[1]):
        coarse, fine = (_has_digits_of(dtype, site.rows(output), norm) for output in outputs)
        if coarse and not fine and site.difference <= MOST_ROUNDOFFS * roundoff:
            values = (dtype, "float32") if side == "a" else ("float32", dtype)
            sentence = f"{side} computes norms in {dtype}"
            return [Explanation("norm-in-half", "norms", values, predicted, compute, names, sentence)]
    return []


def _has_digits_of(dtype: str, values: np.ndarray, norm: Parameters) -> bool:
    """Return whether vectors, before or after the gain, have no more digits than a dtype."""
    gain = np.tile(np.where(norm.gain == 0, 1.0, norm.gain), values.shape[1] // len(norm.gain))
    shifted = bool(norm.shift.any())
    return any(
        bool((np.abs(rounded(array, dtype) - array) <= DIGITS * np.abs(array)).all())
        for array in (values, *([] if shifted else [values / gain]))
    )


def _unit(x: np.ndarray, centred: bool, epsilon: float, divisor: str = ROOT) -> np.ndarray:
    centre = x - x.mean(-1, keepdims=True) if centred else x
    kind, features = DIVISORS.index(divisor), x.shape[-1]
    variance = (centre**2).sum(-1, keepdims=True) / (features - kind % 2)
    spread = np.sqrt(variance + epsilon) if kind < 2 else np.sqrt(variance) + epsilon
    return np.asarray(centre / np.where(spread > 0, spread, 1.0))


def _of_weights(site: Site, path: str, x: np.ndarray, y: np.ndarray) -> Parameters | None:
    """Return the norm with the module's own weights that is nearest to outputs; None where it has no such weights."""
    vectors = [
        weight.get().astype(np.float64).ravel()
        for weight, _, _ in site.held_by(path).values()
        if int(np.prod(weight.shape)) == x.shape[1]
    ]
    return _with_vectors(vectors, x, y, site.declared("epsilon"))


def _with_vectors(
    vectors: Sequence[np.ndarray], x: np.ndarray, y: np.ndarray, declared: float | None
) -> Parameters | None:
    """Return the norm with a gain, and a bias if there are two vectors, that is nearest to outputs; None where none is near."""
    if not vectors or len(vectors) > 2:
        return None
    zero = np.zeros(x.shape[1])
    weights = list(itertools.permutations(vectors)) if len(vectors) == 2 else [(vectors[0], zero)]
    kinds = [
        Parameters(centred, EPSILONS[0], gain + offset, shift)
        for gain, shift in weights
        for centred, offset in itertools.product((True, False), (0.0, 1.0))
    ]
    known = EPSILONS if declared is None else (declared, *EPSILONS)
    fits = [replace(kind, epsilon=epsilon) for kind in kinds for epsilon in known]
    best = min(fits, key=lambda fit: relative(fit.apply(x), y))
    best = _as_declared(fits, declared, best, x, y) or best
    if NEAR < relative(best.apply(x), y) <= DISTANT:
        others = itertools.chain(
            (_best_epsilon(kind, x, y) for kind in kinds), *(_other_divisors(kind, known) for kind in kinds)
        )
        best = min(others, key=lambda fit: relative(fit.apply(x), y))
    return best if relative(best.apply(x), y) <= NEAR else None


def _fitted(x: np.ndarray, y: np.ndarray, declared: float | None = None) -> Parameters | None:
    """Return the norm that is nearest to the outputs; None where there are too few tokens to tell.

    Args:
        x: the inputs, (token, feature).
        y: the outputs.
        declared: the epsilon that the model declares, which is taken where it fits as well; None where it declares none.
    """
    known = () if declared is None else (declared,)
    fits = [_with_gain(x, y, centred, epsilon) for centred in (True, False) for epsilon in (*known, *EPSILONS)]
    best = min(fits, key=lambda fit: relative(fit.apply(x), y))
    alike = _as_declared(fits, declared, best, x, y)
    if alike is not None:
        return alike
    return _refined(best, x, y) if len(x) > 2 else None


def _as_declared(
    fits: Sequence[Parameters], declared: float | None, best: Parameters, x: np.ndarray, y: np.ndarray
) -> Parameters | None:
    """Return the nearest norm with a declared epsilon; None where none fits nearly as well as the best."""
    alike = [
        fit
        for fit in fits
        if fit.epsilon == declared and relative(fit.apply(x), y) <= ALIKE * relative(best.apply(x), y)
    ]
    return min(alike, key=lambda fit: relative(fit.apply(x), y), default=None)


def _with_gain(x: np.ndarray, y: np.ndarray, centred: bool, epsilon: float) -> Parameters:
    """Return the norm with the gain and the bias that fit best, by least squares for each feature."""
    unit = _unit(x, centred, epsilon)
    plain = (unit * y).sum(0) / np.maximum((unit**2).sum(0), 1e-300)
    without = Parameters(centred, epsilon, plain, np.zeros_like(plain))
    mean, level = unit.mean(0), y.mean(0)
    power = ((unit - mean) ** 2).sum(0)
    gain = ((unit - mean) * (y - level)).sum(0) / np.maximum(power, 1e-300)
    full = Parameters(centred, epsilon, gain, level - gain * mean)
    return without if relative(without.apply(x), y) <= 2 * relative(full.apply(x), y) + 1e-9 else full


def _refined(fit: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    """Return the norm with the epsilon between the usual ones that fits far better, or the norm itself."""

    def at(exponent: float) -> Parameters:
        return _with_gain(x, y, fit.centred, 10.0**exponent)

    found = _nearest_exponent(at, x, y)
    return found if relative(found.apply(x), y) < BETTER * relative(fit.apply(x), y) else fit


def _version(first: Parameters, x: np.ndarray, y: np.ndarray, declared: float | None) -> Parameters:
    """Return the nearest to b's outputs of the norms that differ from a's in one setting."""
    zero, one = np.zeros_like(first.shift), np.ones_like(first.gain)
    known = EPSILONS if declared is None else (declared, *EPSILONS)
    epsilons = [replace(first, epsilon=epsilon) for epsilon in known if epsilon != first.epsilon]
    offs = [relative(fit.apply(x), y) for fit in epsilons]
    best = epsilons[next(number for number, off in enumerate(offs) if off <= EQUALLY * min(offs))]
    if declared not in (None, first.epsilon) and relative(epsilons[0].apply(x), y) <= ALIKE * relative(
        best.apply(x), y
    ):
        best = epsilons[0]
    free = _best_epsilon(first, x, y)
    settings = [
        free if relative(free.apply(x), y) < BETTER * relative(best.apply(x), y) else best,
        replace(first, gain=first.gain + 1),
        replace(first, gain=first.gain - 1),
        replace(first, centred=not first.centred),
        replace(first, centred=not first.centred, shift=zero),
        replace(first, shift=zero),
        replace(first, gain=one),
        replace(first, gain=one, shift=zero),
    ]
    best = min(settings, key=lambda fit: relative(fit.apply(x), y))
    if relative(best.apply(x), y) <= DIGITS:
        return best
    divided = _other_divisors(first, (first.epsilon, *known))
    other = min(divided, key=lambda fit: relative(fit.apply(x), y), default=best)
    return other if relative(other.apply(x), y) < BETTER * relative(best.apply(x), y) else best


def _other_divisors(norm: Parameters, epsilons: Iterable[float]) -> Iterator[Parameters]:
    """Yield a layer norm with the divisors that it has not, and with epsilons."""
    for divisor, epsilon in itertools.product(DIVISORS if norm.centred else (), epsilons):
        if divisor != norm.divisor:
            yield replace(norm, divisor=divisor, epsilon=epsilon)


def _best_epsilon(first: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    return _nearest_exponent(lambda exponent: replace(first, epsilon=10.0**exponent), x, y)


def _nearest_exponent(at: Callable[[float], Parameters], x: np.ndarray, y: np.ndarray) -> Parameters:
    """Return the nearest to the outputs of the norms with epsilons from 1e-12 to 1, given by their exponents."""
    low, high = -12.0, 0.0
    for _ in range(REFINEMENTS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if relative(at(first).apply(x), y) <= relative(at(second).apply(x), y):
            high = second
        else:
            low = first
    return at((low + high) / 2)


def _what_differs(first: Parameters, second: Parameters) -> tuple[str, str, tuple[str, str]]:
    """Return the cause, the setting's name, and its values in both; an empty cause where nothing differs."""
    if first.centred != second.centred:
        return "norm-kind", "the norm is", (first.kind, second.kind)
    if first.divisor != second.divisor:
        return "norm-kind", "the norm divides by", (first.divisor, second.divisor)
    if np.allclose(second.gain, first.gain + 1, atol=1e-3):
        return "norm-offset", "the gain is", ("w", "1 + w")
    if np.allclose(second.gain, first.gain - 1, atol=1e-3):
        return "norm-offset", "the gain is", ("1 + w", "w")
    same_gain = np.allclose(second.gain, first.gain, rtol=1e-3, atol=1e-4)
    same_shift = np.allclose(second.shift, first.shift, rtol=1e-3, atol=1e-4)
    if same_gain and same_shift and first.epsilon != second.epsilon:
        return "layer-norm-epsilon", "epsilon", (f"{first.epsilon:.3g}", f"{second.epsilon:.3g}")
    if same_gain and not second.shift.any():
        return "missing-bias", "the norm's bias is", ("added", "missing")
    if same_gain and not first.shift.any():
        return "missing-bias", "the norm's bias is", ("missing", "added")
    if not same_gain or not same_shift:
        return "different-weight", "the norm's weights are", ("those of a", "others")
    return "", "", ("", "")
