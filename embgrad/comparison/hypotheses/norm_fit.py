"""Norms with their settings, fitted to inputs and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import NEAR
from embgrad.comparison.hypotheses.sources import relative

__all__ = [
    "ALIKE",
    "DIVISORS",
    "EPSILONS",
    "LEAST_WIDE",
    "ROUGHLY",
    "ROUNDING",
    "TRIED",
    "Parameters",
    "changed_norm",
    "fitted_norm",
    "norm_with_gain",
    "norm_with_vectors",
    "what_differs",
    "with_best_epsilon",
]

#: The relative L2 up to which no other divisor is tried.
EXACT: Final = 1e-6

#: The least number of features of a norm.
LEAST_WIDE: Final = 4

#: The number of tokens from which a gain and a bias of each feature do not fit any function.
LEAST_TOKENS: Final = 3

#: The epsilons that models have.
EPSILONS: Final = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 0.0)

#: An epsilon with which norms are tried, and the relative L2 up to which one is looked at more closely.
TRIED: Final = 1e-6

ROUGHLY: Final = 1e-2

#: The relative L2 from which no epsilon between the usual ones and no divisor makes a norm of other numbers.
DISTANT: Final = 0.7

#: The ratio of remaining differences up to which a declared epsilon fits as well as the best.
ALIKE: Final = 3.0

#: The relative L2 that rounding to single precision may leave of a norm.
ROUNDING: Final = 2e-7

#: The ratio of remaining differences up to which two usual epsilons fit equally well, so that the first of them is taken.
EQUALLY: Final = 1.2

#: The number of times that the interval of an epsilon is cut to two thirds.
REFINEMENTS: Final = 60

#: The ratio of remaining differences from which an epsilon that is not usual, or another divisor, is preferred.
BETTER: Final = 0.3

#: What norms divide by: the root of the variance over n, and what functions for the deviation of a sample lead to.
ROOT: Final = "the root of variance + ε"

DIVISORS: Final = (ROOT, "the root of (n / (n − 1)) variance + ε", "deviation + ε", "deviation over n − 1, + ε")

#: The same for a root-mean-square norm.
DIVISORS_OF_SQUARES: Final = {ROOT: "the root of the mean square + ε", DIVISORS[2]: "the root mean square + ε"}


@dataclass(frozen=True, eq=False)
class Parameters:
    """The settings of a norm.

    Attributes:
        centred: whether the mean is subtracted.
        epsilon: the number that is added to the variance.
        gain: γ, (feature,).
        shift: β, (feature,).
        divisor: what vectors are divided by, one of `DIVISORS`.
        size: the number of features that are normalised together, such as those of a head; None for all that have a gain.
    """

    centred: bool
    epsilon: float
    gain: np.ndarray
    shift: np.ndarray
    divisor: str = ROOT
    size: int | None = None

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the norm of vectors along the last axis, or of each of their equal parts as long as the gain."""
        parts = x.reshape(-1, self.size or len(self.gain))
        unit = _unit(parts, self.centred, self.epsilon, self.divisor).reshape(-1, len(self.gain))
        return np.asarray(unit * self.gain + self.shift).reshape(x.shape)

    @property
    def kind(self) -> str:
        """A readable name of the kind."""
        return "a layer norm" if self.centred else "a root-mean-square norm"


def _unit(x: np.ndarray, centred: bool, epsilon: float, divisor: str = ROOT) -> np.ndarray:
    centre = x - x.mean(-1, keepdims=True) if centred else x
    kind, features = DIVISORS.index(divisor), x.shape[-1]
    variance = (centre**2).sum(-1, keepdims=True) / (features - kind % 2)
    spread = np.sqrt(variance + epsilon) if kind < 2 else np.sqrt(variance) + epsilon
    return np.asarray(centre / np.where(spread > 0, spread, 1.0))


def norm_with_vectors(
    vectors: Sequence[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    declared: float | None,
    near: float = NEAR,
    size: int | None = None,
) -> Parameters | None:
    """Return the norm with a gain, and a bias if there are two vectors, that is nearest to outputs; None where none is near.

    Args:
        vectors: the gain, or the gain and the bias in either order, (feature,).
        x: the inputs, (token, feature).
        y: the outputs.
        declared: the epsilon that the model declares; None where it declares none.
        near: the relative L2 up to which outputs are near.
        size: the number of features that are normalised together; None for all.
    """
    if not vectors or len(vectors) > 2:
        return None
    zero = np.zeros(x.shape[1])
    weights = list(itertools.permutations(vectors)) if len(vectors) == 2 else [(vectors[0], zero)]
    kinds = [
        Parameters(centred, EPSILONS[0], gain + offset, shift, size=size)
        for gain, shift in weights
        for centred, offset in itertools.product((True, False), (0.0, 1.0))
    ]
    known = EPSILONS if declared is None else (declared, *EPSILONS)
    fits = [replace(kind, epsilon=epsilon) for kind in kinds for epsilon in known]
    best = _nearest(fits, x, y)
    best = _as_declared(fits, declared, best, x, y) or best
    if near < relative(best.apply(x), y) <= DISTANT:
        others = itertools.chain(
            (with_best_epsilon(kind, x, y) for kind in kinds),
            *(_other_divisors(kind, known) for kind in kinds),
            *(_other_sizes(replace(kind, epsilon=epsilon)) for kind in kinds for epsilon in known),
        )
        best = min(others, key=lambda fit: relative(fit.apply(x), y))
    return best if relative(best.apply(x), y) <= near else None


def _nearest(fits: Sequence[Parameters], x: np.ndarray, y: np.ndarray) -> Parameters:
    """Return the norm that is nearest to outputs, with the first of the epsilons that rounding hides from each other."""
    offs = [relative(fit.apply(x), y) for fit in fits]
    best = fits[int(np.argmin(offs))]
    alike = (fit for fit, off in zip(fits, offs, strict=True) if off <= max(EQUALLY * min(offs), ROUNDING))
    return next(fit for fit in alike if fit.centred == best.centred and np.array_equal(fit.gain, best.gain))


def fitted_norm(x: np.ndarray, y: np.ndarray, declared: float | None = None) -> Parameters | None:
    """Return the norm that is nearest to the outputs; None where there are too few tokens to tell.

    Args:
        x: the inputs, (token, feature).
        y: the outputs.
        declared: the epsilon that the model declares, which is taken where it fits as well; None where it declares none.
    """
    if len(x) < LEAST_TOKENS:
        return None
    known = () if declared is None else (declared,)
    fits = [norm_with_gain(x, y, centred, epsilon) for centred in (True, False) for epsilon in (*known, *EPSILONS)]
    best = _nearest(fits, x, y)
    alike = _as_declared(fits, declared, best, x, y)
    if alike is not None:
        return alike
    return _refined(best, x, y)


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


def norm_with_gain(x: np.ndarray, y: np.ndarray, centred: bool, epsilon: float) -> Parameters:
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
        return norm_with_gain(x, y, fit.centred, 10.0**exponent)

    found = _nearest_exponent(at, x, y)
    return found if relative(found.apply(x), y) < BETTER * relative(fit.apply(x), y) else fit


def changed_norm(first: Parameters, x: np.ndarray, y: np.ndarray, declared: float | None) -> Parameters:
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
    free = with_best_epsilon(first, x, y)
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
    is_usual = best.epsilon in (first.epsilon, *known)
    if is_usual and relative(best.apply(x), y) <= EXACT:
        return best
    divided = [*_other_divisors(first, (first.epsilon, *known)), *_other_sizes(first)]
    offs = [relative(fit.apply(x), y) for fit in divided]
    other = divided[next(number for number, off in enumerate(offs) if off <= EQUALLY * min(offs))]
    enough = BETTER if is_usual else ALIKE  # another divisor is likelier than an epsilon that no model has
    return other if relative(other.apply(x), y) < enough * relative(best.apply(x), y) else best


def _other_divisors(norm: Parameters, epsilons: Iterable[float]) -> Iterator[Parameters]:
    """Yield a norm with the divisors that it has not, and with epsilons; the deviation of a sample is that of a layer norm."""
    for divisor, epsilon in itertools.product(DIVISORS if norm.centred else DIVISORS[::2], epsilons):
        if divisor != norm.divisor:
            yield replace(norm, divisor=divisor, epsilon=epsilon)


def _other_sizes(norm: Parameters) -> Iterator[Parameters]:
    """Yield a norm of which another number of features are normalised together."""
    features = len(norm.gain)
    sizes = (size for size in range(LEAST_WIDE, features + 1) if features % size == 0)
    yield from (replace(norm, size=size) for size in sizes if size != (norm.size or features))


def with_best_epsilon(first: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    """Return a norm with the epsilon that fits outputs best, of as few digits as rounding allows."""
    best = _nearest_exponent(lambda exponent: replace(first, epsilon=10.0**exponent), x, y)
    enough = max(EQUALLY * relative(best.apply(x), y), ROUNDING)
    shorter = (replace(first, epsilon=float(f"{best.epsilon:.{digits}e}")) for digits in range(3))
    return next((norm for norm in shorter if relative(norm.apply(x), y) <= enough), best)


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


def what_differs(first: Parameters, second: Parameters) -> tuple[str, str, tuple[str, str]]:
    """Return the cause, the setting's name, and its values in both; an empty cause where nothing differs."""
    if first.centred != second.centred:
        return "norm-kind", "the norm is", (first.kind, second.kind)
    if first.size != second.size:
        sizes = [it.size or len(it.gain) for it in (first, second)]
        return "norm-kind", "features that are normalised together", (str(sizes[0]), str(sizes[1]))
    if first.divisor != second.divisor:
        names = [it.divisor if first.centred else DIVISORS_OF_SQUARES[it.divisor] for it in (first, second)]
        return "norm-kind", "the norm divides by", (names[0], names[1])
    if np.allclose(second.gain, first.gain + 1, atol=1e-3):
        return "norm-offset", "the gain is", ("w", "1 + w")
    if np.allclose(second.gain, first.gain - 1, atol=1e-3):
        return "norm-offset", "the gain is", ("1 + w", "w")
    same_gain = np.allclose(second.gain, first.gain, rtol=1e-3, atol=1e-4)
    same_shift = np.allclose(second.shift, first.shift, rtol=1e-3, atol=1e-4)
    if same_gain and same_shift and first.epsilon != second.epsilon:
        return "layer-norm-epsilon", "epsilon", (f"{first.epsilon:.3g}", f"{second.epsilon:.3g}")
    if same_gain and not same_shift and not second.shift.any():
        return "missing-bias", "the norm's bias is", ("added", "missing")
    if same_gain and not same_shift and not first.shift.any():
        return "missing-bias", "the norm's bias is", ("missing", "added")
    if not same_gain or not same_shift:
        return "different-weight", "the norm's weights are", ("those of a", "others")
    return "", "", ("", "")
