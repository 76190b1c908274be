"""Stretches of a forward pass between two points that compute a known function, and replacements of these functions.

The function between two points is recognised by the values there, so that it does not matter how the model is written. It is
replaced by changes at the two points alone: the difference of the values is added at the end of the stretch, and the new
function's pullback is applied to the gradient at its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.model_points.points import INPUT, OUTPUT

__all__ = [
    "REPLACEMENTS",
    "Function",
    "Norm",
    "Span",
    "activation_spans",
    "function_between",
    "norm_spans",
    "replaced",
    "same_values",
]

#: The largest relative L2 between the values at the end of a stretch and the known function's.
NEAR: Final = 1e-4

#: The number of a tensor's entries that are compared before all are.
SAMPLED: Final = 256

#: The largest relative L2 before the epsilon is known.
ROUGHLY: Final = 0.2

#: The smallest epsilon that can be determined from its effect in single precision.
SMALLEST: Final = 1e-7

#: The ratio of remaining differences below which an unusual epsilon is preferred to the best usual one.
BETTER: Final = 0.5

#: The ratio of remaining differences, and the remainder due to rounding in single precision, up to which an epsilon also fits.
FITS_AS_WELL: Final = 1.5
ROUNDING: Final = 1e-6

#: The number of times that the interval of the epsilon is cut to two thirds.
REFINEMENTS: Final = 40

#: The least width of a layer norm that can be distinguished from other functions.
LEAST_WIDE: Final = 4

Pullback = Callable[[np.ndarray], np.ndarray]


class Function(NamedTuple):
    """A function of arrays that returns its value and its pullback."""

    name: str
    apply: Callable[[np.ndarray], tuple[np.ndarray, Pullback]]


@dataclass(frozen=True)
class Span:
    """A stretch of the forward pass in which a known function is computed.

    Attributes:
        before: the key of the point that holds its argument.
        behind: the key of the point that holds its value.
        function: the function that is computed.
    """

    before: str
    behind: str
    function: Function

    @property
    def location(self) -> str:
        """A readable location: the path of the innermost module that computes the function."""
        keys = (self.behind, self.before)
        at_module = [key for key in keys if key.partition(":")[2].startswith(OUTPUT if key is self.behind else INPUT)]
        return max(at_module or keys, key=lambda key: key.count(".")).partition(":")[0]


@dataclass
class Replacement:
    """The replacement of a span's function in one forward pass and its backward pass."""

    function: Function
    argument: np.ndarray | None = None
    pullback: Pullback | None = None
    gradient: np.ndarray | None = None

    def keep_argument(self, value: np.ndarray) -> np.ndarray:
        """Record the argument at the beginning of the span; return zeros, which change nothing."""
        self.argument = np.asarray(value, np.float64)
        return np.zeros_like(value)

    def difference(self, value: np.ndarray) -> np.ndarray:
        """Return what must be added at the end of the span to give the new function's value."""
        assert self.argument is not None, "the point before comes first"
        wanted, self.pullback = self.function.apply(self.argument)
        return np.asarray(wanted - value, value.dtype)

    def keep_gradient(self, gradient: np.ndarray) -> np.ndarray:
        """Record the gradient at the end of the span, and return it unchanged."""
        self.gradient = np.asarray(gradient, np.float64)
        return gradient

    def pulled(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient at the beginning of the span, pulled back through the new function."""
        assert self.gradient is not None, "the point behind comes first"
        assert self.pullback is not None, "the forward pass comes first"
        return np.asarray(self.pullback(self.gradient), gradient.dtype)


def replaced(spans: Iterable[Span], function_of: Callable[[Span], Function]) -> dict[str, dict[str, Any]]:
    """Return the changes that replace the functions of these spans."""
    changes: dict[str, dict[str, Any]] = {"add": {}, "edit": {}}
    for span in spans:
        replacement = Replacement(function_of(span))
        changes["add"] |= {span.before: replacement.keep_argument, span.behind: replacement.difference}
        changes["edit"] |= {span.before: replacement.pulled, span.behind: replacement.keep_gradient}
    return changes


def gelu_erf(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute x Φ(x), as defined by Hendrycks and Gimpel, "Gaussian error linear units", 2016."""
    below = 0.5 * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64))
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return x * below, lambda gradient: gradient * (below + x * density)


def gelu_tanh(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute Hendrycks and Gimpel's approximation of GELU by the hyperbolic tangent."""
    scale = math.sqrt(2 / math.pi)
    tanh = np.tanh(scale * (x + 0.044715 * x**3))
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * scale * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + tanh), lambda gradient: gradient * slope


def gelu_sigmoid(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute Hendrycks and Gimpel's approximation of GELU by the logistic function."""
    gate = 0.5 * (1 + np.tanh(0.851 * x))
    return x * gate, lambda gradient: gradient * (gate + 1.702 * x * gate * (1 - gate))


def relu(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute the larger of x and 0."""
    return np.maximum(x, 0), lambda gradient: gradient * (x > 0)


def silu(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute x times its logistic function."""
    gate = 0.5 * (1 + np.tanh(0.5 * x))
    return x * gate, lambda gradient: gradient * (gate + x * gate * (1 - gate))


def tanh(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute the hyperbolic tangent."""
    value = np.tanh(x)
    return value, lambda gradient: gradient * (1 - value**2)


def logistic(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Compute 1 / (1 + exp(-x))."""
    value = 0.5 * (1 + np.tanh(0.5 * x))
    return value, lambda gradient: gradient * value * (1 - value)


def identity(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Return x itself."""
    return x, lambda gradient: gradient


_erf = np.frompyfunc(math.erf, 1, 1)

#: The activation functions that models apply after a layer.
ACTIVATIONS: Final = (
    Function("GELU by the error function", gelu_erf),
    Function("GELU by the tanh approximation", gelu_tanh),
    Function("GELU by the logistic approximation", gelu_sigmoid),
    Function("ReLU", relu),
    Function("SiLU", silu),
    Function("tanh", tanh),
    Function("the logistic function", logistic),
)

#: The functions that may replace them.
REPLACEMENTS: Final = (*ACTIVATIONS, Function("no activation", identity))


def same_values(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two points hold the same values up to rounding."""
    return first.shape == second.shape and _near(first.astype(np.float64), second.astype(np.float64))


def function_between(before: np.ndarray, behind: np.ndarray) -> Function | None:
    """Return the known function that maps one array to another; None if there is none."""
    argument = before.astype(np.float64)
    same_shape = before.shape == behind.shape
    return next(
        (function for function in REPLACEMENTS if same_shape and _near(behind, function.apply(argument)[0])), None
    )


def activation_spans(values: Mapping[str, np.ndarray]) -> list[Span]:
    """Return the spans in which a known activation function is computed.

    Args:
        values: the values at the points, by key, in the order in which they are reached.
    """
    order = {key: number for number, key in enumerate(values)}
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for key, value in values.items():
        by_shape.setdefault(value.shape, []).append(key)
    spans: dict[bytes, Span] = {}
    for keys in by_shape.values():
        for before in sorted(keys, key=_innermost):
            later = [key for key in keys if order[key] > order[before]]
            argument = values[before].astype(np.float64)
            span = None if argument.tobytes() in spans else _activation(before, argument, later, values)
            if span is not None:
                spans[argument.tobytes()] = span
    return list(spans.values())


def _activation(
    before: str, argument: np.ndarray, later: Sequence[str], values: Mapping[str, np.ndarray]
) -> Span | None:
    sample = _sampled(argument)
    for function in ACTIVATIONS:
        wanted = function.apply(sample)[0]
        if _near(sample, wanted):  # for example ReLU of positive numbers, which changes nothing
            continue
        behind = [key for key in later if _near(_sampled(values[key]), wanted)]
        last = min(behind, key=_innermost) if behind else None
        if last is not None and _near(values[last], function.apply(argument)[0]):
            return Span(before, last, function)
    return None


@dataclass(frozen=True, eq=False)
class Norm:
    """A layer norm with its parameters.

    Attributes:
        span: where it is computed.
        gain: γ, float64, (dim,).
        shift: β, float64, (dim,).
        centred: whether the mean is subtracted; False for a root-mean-square norm.
        epsilon: the number that is added to the variance.
    """

    span: Span
    gain: np.ndarray = field(repr=False)
    shift: np.ndarray = field(repr=False)
    centred: bool
    epsilon: float

    def function(self, epsilon: float) -> Function:
        """Return the norm's function with another epsilon."""

        def apply(x: np.ndarray) -> tuple[np.ndarray, Pullback]:
            centre = x - x.mean(-1, keepdims=True) if self.centred else x
            spread = np.sqrt((centre**2).mean(-1, keepdims=True) + epsilon)
            unit = centre / spread

            def pullback(gradient: np.ndarray) -> np.ndarray:
                scaled = gradient * self.gain
                off = scaled - unit * (scaled * unit).mean(-1, keepdims=True)
                return np.asarray((off - scaled.mean(-1, keepdims=True) if self.centred else off) / spread)

            return unit * self.gain + self.shift, pullback

        return Function(f"epsilon {epsilon:g}", apply)

    def fits(self, argument: np.ndarray, value: np.ndarray, epsilon: float) -> bool:
        """Return whether another epsilon explains these values as well, up to rounding."""
        residual, other_residual = (
            _fitted(argument, value, candidate, self.centred)[0] for candidate in (self.epsilon, epsilon)
        )
        return other_residual <= max(FITS_AS_WELL * residual, ROUNDING)


def norm_spans(values: Mapping[str, np.ndarray], epsilons: Sequence[float]) -> list[Norm]:
    """Return the modules that are layer norms or root-mean-square norms, recognised by fitting γ, β and ε to input and output."""
    norms = []
    for before, argument in values.items():
        if f":{INPUT}" not in before:
            continue
        behind = before.replace(f":{INPUT}", f":{OUTPUT}")
        value = values.get(behind)
        if (
            value is not None
            and value.shape == argument.shape
            and argument.ndim > 1
            and argument.shape[-1] >= LEAST_WIDE
        ):
            norm = _norm(before, behind, argument, value, epsilons)
            norms.extend([] if norm is None else [norm])
    return norms


def _norm(before: str, behind: str, argument: np.ndarray, value: np.ndarray, epsilons: Sequence[float]) -> Norm | None:
    fits = [
        (_fitted(argument, value, epsilon, centred)[0], centred, epsilon)
        for centred in (True, False)
        for epsilon in epsilons
    ]
    residual, centred, epsilon = min(fits)
    if residual < ROUGHLY and epsilon > SMALLEST:  # the epsilon may lie between the usual ones
        low, high = np.log10(epsilon) - 1, np.log10(epsilon) + 1
        for _ in range(REFINEMENTS):
            first, second = low + (high - low) / 3, high - (high - low) / 3
            left = [_fitted(argument, value, 10**at, centred)[0] for at in (first, second)]
            low, high = (low, second) if left[0] <= left[1] else (first, high)
        refined = float(10 ** ((low + high) / 2))
        if _fitted(argument, value, refined, centred)[0] < BETTER * residual:
            epsilon = refined
    residual, gain, shift = _fitted(argument, value, epsilon, centred)
    if residual >= NEAR or not np.abs(gain).max():
        return None
    norm = Norm(Span(before, behind, ACTIVATIONS[0]), gain, shift, centred, epsilon)
    return replace(norm, span=Span(before, behind, norm.function(epsilon)))


def _fitted(
    argument: np.ndarray, value: np.ndarray, epsilon: float, centred: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the relative L2 between a norm with this epsilon and the output, and its fitted γ and β."""
    x, y = (array.astype(np.float64).reshape(-1, array.shape[-1]) for array in (argument, value))
    centre = x - x.mean(-1, keepdims=True) if centred else x
    spread = np.sqrt((centre**2).mean(-1, keepdims=True) + epsilon)
    if len(x) < 4 or not spread.all():
        return np.inf, np.zeros(0), np.zeros(0)
    unit = centre / spread
    mean, level = (unit.mean(0), y.mean(0)) if centred else (np.zeros(x.shape[-1]), np.zeros(x.shape[-1]))
    power = ((unit - mean) ** 2).sum(0)
    gain = np.divide(((unit - mean) * (y - level)).sum(0), power, out=np.zeros_like(power), where=power > 0)
    shift = level - gain * mean
    length = float(np.linalg.norm(y)) or 1.0
    return float(np.linalg.norm(unit * gain + shift - y)) / length, gain, shift


def _sampled(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1)
    return flat[:: max(1, flat.size // SAMPLED)].astype(np.float64)


def _near(value: np.ndarray, wanted: np.ndarray) -> bool:
    return float(np.linalg.norm(value - wanted)) <= NEAR * float(np.linalg.norm(wanted)) and bool(wanted.any())


def _innermost(key: str) -> tuple[int, str]:
    return -key.count("."), key
