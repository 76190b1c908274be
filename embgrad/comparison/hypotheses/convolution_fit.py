"""The convolutions that reproduce the reference's output."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.comparison.hypotheses.convolution import PADDINGS, Convolution, Convolutions
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY
from embgrad.comparison.hypotheses.layer_sources import branches
from embgrad.comparison.hypotheses.site import NEAR, Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, relative, sources
from embgrad.comparison.recording import HeldWeight, contains
from embgrad.model_points.points import INPUT

__all__ = ["DILATIONS", "Fit", "array_of", "fits"]

#: The axes of a kernel, (tap, input, output), where it is stored as PyTorch, Keras and Flax, a convolution of images in PyTorch
#: whose kernels are as wide as the vectors, and a depthwise convolution of Keras do.
AXES: Final = ((2, 1, 0), (0, 1, 2), (1, 2, 0), (0, 2, 1))

#: The keys of `POOLS` that follow convolutions, and the distances between taps that are tried.
POOLINGS: Final = (
    "the largest over all positions",
    "the largest over tokens",
    "the mean over all positions",
    "the mean over tokens",
)
DILATIONS: Final = (1, 2, 3, 4, 8)

#: The most taps of a kernel, by which kernels are distinguished from the matrices of heads and of experts.
MOST_TAPS: Final = 32

#: The most outputs of a convolution, and the most texts, by which functions are told apart.
FEATURES: Final = 8
MOST_TEXTS: Final = 2

#: The kernel of a convolution and its bias.
Held = tuple[HeldWeight, HeldWeight | None]


@dataclass(frozen=True, eq=False)
class Fit:
    """The convolutions that reproduce the reference's output.

    Attributes:
        held: the weights of each.
        axes: the axes of their kernels, (tap, input, output).
        entry: what they read.
        real: the positions that are not padding, bool, (example, position).
        convolutions: the functions.
        few: the indices of the texts in which the models differ most.
    """

    held: tuple[Held, ...]
    axes: tuple[int, ...]
    entry: Source
    real: np.ndarray
    convolutions: Convolutions
    few: np.ndarray

    def off(self, function: Convolutions, wanted: np.ndarray) -> float:
        """Return the relative L2 of a function's outputs against those of a site, in the texts that differ most."""
        few = self.few
        return _apart(function.run(self.entry.values[few], self.real[few]), wanted[few], self.real[few])

    def outputs(self, function: Convolutions, at: Values) -> np.ndarray:
        """Return a function's outputs in a pass whose values at points a function returns."""
        return function.run(self.entry.read(at), self.real)

    def inputs(self, function: Convolutions) -> tuple[str, ...]:
        """Return the names of the points that a function reads."""
        return self.entry.names


def _few(real: np.ndarray) -> np.ndarray:
    """Return the indices of the shortest and the longest text."""
    return np.argsort(real.sum(1), kind="stable")[[0, -1]]


def _apart(found: np.ndarray, wanted: np.ndarray, real: np.ndarray) -> float:
    """Return the relative L2 of outputs, (example, position, output), of those at tokens where each token has one."""
    if found.shape != wanted.shape:
        return np.inf
    at = real if real.shape == found.shape[:2] else np.ones(found.shape[:2], bool)
    with np.errstate(invalid="ignore"):
        return relative(found[at], wanted[at])


def fits(site: Site) -> Iterator[Fit]:
    """Yield the convolutions that reproduce the reference's output."""
    batch = site.recordings[0].batch
    is_pooled = site.a.shape[1] == 1 < batch.shape[1]
    for held, axes in itertools.product(_candidates(site, is_pooled=is_pooled), AXES):
        shapes = [tuple(_squeezed(kernel.shape)[axis] for axis in axes) for kernel, _ in held]
        sizes = [shape[2] for shape in shapes]
        turns = [turned for turned in (False, True) if site.a.shape[1 if turned else 2] == sum(sizes)]
        if not 1 < max(shape[0] for shape in shapes) <= MOST_TAPS or not turns:
            continue
        for entry in _entries(site, held):
            if not all(_reads(shape, entry.values.shape[-1]) for shape in shapes):
                continue
            arrays = [_arrays(own, axes) for own in held]
            for turned in turns:
                a = site.a.swapaxes(1, 2) if turned else site.a
                blocks = np.split(a, np.cumsum(sizes)[:-1], -1)
                found = (_fitted(site, *own, entry, block) for own, block in zip(arrays, blocks, strict=True))
                layers = tuple(layer for layer in itertools.takewhile(lambda it: it is not None, found) if layer)
                if len(layers) == len(held):
                    whole = Convolutions(layers, np.arange(sum(sizes)), turned)
                    few = np.argsort(((site.a - site.b) ** 2).sum((1, 2)))[-MOST_TEXTS:]
                    yield Fit(held, axes, entry, batch.real, whole, few)


def _entries(site: Site, held: Sequence[Held]) -> list[Source]:
    """Return the inputs of the convolutions' modules; all tensors before the site where none of these has a vector a token."""
    shape = site.recordings[0].batch.shape
    inputs = {f"{kernel.module}:{INPUT}" for kernel, _ in held}
    own = [Source(it.name, it.values) for it in site.before if it.name in inputs and it.values.shape[:2] == shape]
    return [_as_shared(site, entry) for entry in own[:1]] or [
        source for source in sources(site) if source.values.shape[:2] == shape
    ]


def _as_shared(site: Site, entry: Source) -> Source:
    """Return a tensor that both models have, or a half of one, in place of one with the same values at tokens.

    What the port does at padding is known of the former alone.
    """
    if entry.values.shape != site.a.shape:
        return entry
    same = (it for it in branches(site) if relative(site.rows(it.values), site.rows(entry.values)) <= NEAR)
    return next(same, entry)


def _candidates(site: Site, *, is_pooled: bool) -> Iterator[tuple[Held, ...]]:
    """Yield the weights of convolutions that may lead to the site: all of a model, or those of one for each token."""
    weights = site.recordings[0].weights
    kernels = [weight for weight in weights if len(weight.shape) in (3, 4) and _squeezed(weight.shape)]
    if is_pooled and kernels:
        yield tuple((kernel, _bias_of(kernel, weights)) for kernel in kernels)
    for kernel in () if is_pooled else kernels:
        if kernel.layer == site.layer and (not site.is_output or contains(site.path, kernel.module)):
            yield ((kernel, _bias_of(kernel, weights)),)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with three axes, without an axis of a single channel; an empty one where it has more."""
    if len(shape) == 4 and 1 in shape[1:3]:  # (output, channel, tap, input), or (tap, input, channel, output)
        return tuple(size for axis, size in enumerate(shape) if axis != (1 if shape[1] == 1 else 2))
    return shape if len(shape) == 3 else ()


def _bias_of(kernel: HeldWeight, weights: Sequence[HeldWeight]) -> HeldWeight | None:
    """Return the vector whose name begins like a kernel's; None where there is none."""
    start = re.sub(r"[^./_]*$", "", kernel.name)
    sizes = _squeezed(kernel.shape)
    vectors = (it for it in weights if len(it.shape) == 1 and it.shape[0] in sizes)
    return next((it for it in vectors if it.name.startswith(start)), None)


def array_of(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return a kernel, (tap, input, output), as float64."""
    return np.asarray(values.reshape(_squeezed(values.shape)).transpose(axes), np.float64)


def _arrays(held: Held, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return a kernel and the bias, which is zero where there is none."""
    kernel = array_of(held[0].get(), axes)
    bias = held[1]
    has_bias = bias is not None and bias.shape == kernel.shape[2:]
    return kernel, np.asarray(bias.get() if bias is not None and has_bias else np.zeros(kernel.shape[2]), np.float64)


def _reads(shape: tuple[int, ...], width: int) -> bool:
    """Return whether a kernel, (tap, input, output), is one of inputs of a width, of all of them or depthwise."""
    return shape[1] == width or (shape[1] == 1 and shape[2] % width == 0)


def _fitted(site: Site, kernel: np.ndarray, bias: np.ndarray, entry: Source, wanted: np.ndarray) -> Convolution | None:
    """Return the convolution by a kernel and a bias that leads to some features of the site; None where there is none."""
    x, real, most = entry.values, site.recordings[0].batch.real, most_off(site)
    few = _few(real)
    ends = list(_ends(is_pooled=wanted.shape[1] == 1))
    for dilation, masked, padding in itertools.product(DILATIONS, (False, True), PADDINGS):
        first = Convolution(kernel, bias, padding, dilation, masked)
        products = first.products(x[few], real[few], FEATURES)
        tried = []
        for settings in ends:
            function = replace(first, **settings)
            off = _apart(function.finish(products, real[few]), wanted[few, ..., :FEATURES], real[few])
            tried.append((off, function))
        tried.sort(key=lambda entry: entry[0])
        for _, function in itertools.takewhile(lambda entry: entry[0] <= most, tried):
            if _apart(function.run(x, real), wanted, real) <= most:
                return function
    return None


def _ends(*, is_pooled: bool) -> Iterator[dict[str, Any]]:
    """Yield what follows the products, the frequent first.

    The largest outputs are often the same with ReLU and without, of which models have the former.
    """
    activations = sorted(ACTIVATIONS, key=lambda it: (it.name != "ReLU", it is not IDENTITY))
    for pools_first, pool in itertools.product((False, True), POOLINGS) if is_pooled else [(False, "")]:
        for activation in activations:
            yield {"activation": activation, "pool": pool, "pools_first": pools_first}
