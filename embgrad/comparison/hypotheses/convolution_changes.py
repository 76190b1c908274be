"""The hypothesis of convolutions, and the ways in which those of the port may differ from the reference's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.changes import Change, explained_by_changes, with_fields
from embgrad.comparison.hypotheses.convolution import PADDINGS, Convolution, Convolutions
from embgrad.comparison.hypotheses.convolution_fit import DILATIONS, Fit, array_of, fits
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, GELUS, IDENTITY
from embgrad.comparison.hypotheses.layer_sources import branches
from embgrad.comparison.hypotheses.pooling import POOLS
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.site import NEAR, Explanation, Site
from embgrad.comparison.hypotheses.sources import most_off
from embgrad.comparison.weight_values import layouts

__all__ = ["Convolving"]

#: The most convolutions whose outputs are tried in every order.
MOST_ORDERED: Final = 4

#: How many activations, the frequent ones, may be in a module of one model and behind it in the other.
MOST_ACTIVATIONS: Final = 6

#: The names of a convolution's settings.
SETTINGS: Final = ("padding", "dilation", "masked", "pool", "pools_first")


class Convolving:
    """Convolutions over the positions of a text, such as those of Kim's classifier."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the convolutions of both models differ; an empty list where a computes none."""
        fit = next(fits(site), None)
        if fit is None:
            return []
        starts = _starts(site, fit)
        changes = list(_changes_of(site, fit, may_lack_activation=len(starts) == 1))
        setting = _joined(_names(fit))
        searches = (explained_by_changes(site, it, changes, fit, setting, further=len(changes)) for it in starts)
        return list(_of_branches(site, fit, setting)) or next(filter(None, searches), [])


def _of_branches(site: Site, fit: Fit, setting: str) -> Iterator[Explanation]:
    """Yield the explanation by the other half of the tensor of which the convolutions of a read one half."""
    for branch in branches(site) if fit.entry.label else ():
        if branch.name != fit.entry.name:
            continue
        predicted = fit.convolutions.run(branch.values, fit.real)
        if site.off(predicted) <= max(NEAR, most_off(site)):
            other = replace(fit, entry=branch)
            compute = functools.partial(other.outputs, fit.convolutions)
            texts = (fit.entry.text, branch.text)
            yield Explanation("gate-swapped", f"{setting} reads", texts, predicted, compute, branch.names)


def _starts(site: Site, fit: Fit) -> list[Convolutions]:
    """Return the convolutions as they are; at their module's output also with and without an activation.

    One model's module may apply the activation that is behind it in the other, as Keras's do, which is no difference.
    """
    whole, own = fit.convolutions, fit.convolutions.layers[0]
    if own.pool or not site.is_output:
        return [whole]
    others = (IDENTITY,) if own.activation is not IDENTITY else ACTIVATIONS[:MOST_ACTIVATIONS]
    return [whole, *(replace(whole, layers=(replace(own, activation=it),)) for it in others)]


def _names(fit: Fit) -> list[str]:
    """Return a name for each convolution: the path of its module, or the name of its kernel where the modules are one."""
    modules = [kernel.module for kernel, _ in fit.held]
    are_apart = len(set(modules)) == len(modules) and all(modules)
    return modules if are_apart else [kernel.name for kernel, _ in fit.held]


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _changes_of(site: Site, fit: Fit, *, may_lack_activation: bool) -> Iterator[Change]:
    """Yield the changes of a's convolutions that b may have, of all at once and of each by itself."""
    names, layers = _names(fit), fit.convolutions.layers
    every = range(len(layers))
    scopes: list[tuple[str, Sequence[int]]] = [(names[number], [number]) for number in every]
    if len(layers) > 1:
        scopes.insert(0, (f"each of {_joined(names)}", every))
    for place, chosen in scopes:
        own = [layers[number] for number in chosen]
        changes = (_of_kernels(place, own), _of_functions(place, own), _of_activations(place, own, may_lack_activation))
        for cause, sentence, function in itertools.chain(*changes):
            yield Change(cause, sentence, functools.partial(_changed, frozenset(chosen), function))
    yield from _of_order(names, [len(layer.bias) for layer in layers])
    yield from _of_others(names, layers)
    yield from _of_values(site, fit)


def _changed(
    chosen: frozenset[int], function: Callable[[Convolution], Convolution], whole: Convolutions
) -> Convolutions:
    """Return convolutions of which some are changed."""
    return replace(
        whole, layers=tuple(function(own) if number in chosen else own for number, own in enumerate(whole.layers))
    )


_Changes = Iterator[tuple[str, str, Callable[[Convolution], Convolution]]]


def _of_kernels(place: str, every: Sequence[Convolution]) -> _Changes:
    """Yield changes of kernels and biases, as they are stored."""
    sentence = f"b reads the taps of the kernel of {place} from the last to the first"
    yield "permuted-weight", sentence, lambda it: replace(it, kernel=it.kernel[::-1])
    if all(it.kernel.shape[1] == it.kernel.shape[2] for it in every):
        sentence = f"the inputs and outputs of the kernel of {place} are exchanged in b"
        yield "transposed-weight", sentence, lambda it: replace(it, kernel=it.kernel.swapaxes(1, 2))
    sentence = f"the kernel of {place} is reshaped where its axes are to be permuted in b"
    yield "permuted-weight", sentence, lambda it: replace(it, kernel=it.kernel.T.reshape(it.kernel.shape))
    yield "permuted-weight", sentence, lambda it: replace(it, kernel=it.kernel.reshape(it.kernel.T.shape).T)
    yield "missing-bias", f"b adds no bias in {place}", lambda it: replace(it, bias=0 * it.bias)


def _of_activations(place: str, every: Sequence[Convolution], may_lack: bool) -> _Changes:
    """Yield changes of the activation, where convolutions have the same."""
    own = every[0].activation
    for other in ACTIVATIONS if len({it.activation for it in every}) == 1 else ():
        if other != own and (may_lack or IDENTITY not in (other, own)):
            cause = "gelu" if {other, own} <= set(GELUS) else "activation"
            sentence = f"the activation of {place} is {own.name} in a and {other.name} in b"
            yield cause, sentence, with_fields(activation=other)


def _of_functions(place: str, every: Sequence[Convolution]) -> _Changes:
    """Yield changes of what convolutions do to their inputs and outputs, in which they are the same."""
    own = every[0]
    same = {name for name in SETTINGS if len({getattr(it, name) for it in every}) == 1}
    for padding in PADDINGS if "padding" in same else ():
        if padding != own.padding:
            yield "convolution", f"{place} {own.padding} in a and {padding} in b", with_fields(padding=padding)
    for dilation in DILATIONS if "dilation" in same else ():
        if dilation != own.dilation:
            sentence = f"the dilation of {place} is {own.dilation} in a and {dilation} in b"
            yield "convolution", sentence, with_fields(dilation=dilation)
    if "masked" in same:
        sides = ("a", "b") if own.masked else ("b", "a")
        sentence = f"{sides[0]} sets the inputs of {place} to zero at padding tokens, and {sides[1]} does not"
        yield "mask-ignored", sentence, with_fields(masked=not own.masked)
    for pool in POOLS if own.pool and "pool" in same else ():
        if pool != own.pool:
            yield "pooling", f"the pooled vector of {place} is {own.pool} in a and {pool} in b", with_fields(pool=pool)
    if own.pool and "pools_first" in same:
        sides = ("behind", "before") if own.pools_first else ("before", "behind")
        sentence = f"the activation of {place} comes {sides[0]} the pooling in a and {sides[1]} it in b"
        yield "pooling", sentence, with_fields(pools_first=not own.pools_first)


def _of_order(names: Sequence[str], sizes: Sequence[int]) -> Iterator[Change]:
    """Yield changes of the order in which the outputs of several convolutions stand side by side."""
    blocks = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    every = tuple(range(len(sizes)))
    start = f"the outputs of {_joined(names)} follow one another in a, and"
    for order in (every[::-1], *(itertools.permutations(every) if len(sizes) <= MOST_ORDERED else ())):
        if order != every:
            sentence = f"{start} in b those of {_joined([names[number] for number in order])}"
            yield _ordered(sentence, np.concatenate([blocks[number] for number in order]))
    if len(sizes) > 1 and len(set(sizes)) == 1:
        yield _ordered(f"{start} stand feature by feature in turn in b", np.stack(blocks, 1).reshape(-1))


def _ordered(sentence: str, order: np.ndarray) -> Change:
    return Change("permuted-weight", sentence, lambda it: replace(it, order=it.order[order]))


def _of_others(names: Sequence[str], layers: Sequence[Convolution]) -> Iterator[Change]:
    """Yield changes by which a convolution has weights of another."""
    every = itertools.permutations(range(len(layers)), 2)
    for (first, second), parts in itertools.product(every, (("kernel", "bias"), ("kernel",), ("bias",))):
        others = {part: getattr(layers[second], part) for part in parts}
        if all(getattr(layers[first], part).shape == values.shape for part, values in others.items()):
            sentence = f"{names[first]} has the {' and the '.join(parts)} of {names[second]} in b"
            yield Change(
                "swapped-weights", sentence, functools.partial(_changed, frozenset([first]), with_fields(**others))
            )


def _of_values(site: Site, fit: Fit) -> Iterator[Change]:
    """Yield the changes by b's weights that differ from their partners."""
    for number, held in enumerate(fit.held):
        for weight in held:
            other, match = (None, None) if weight is None else site.partners.get(weight.name, (None, None))
            if weight is None or other is None or match is None or match.is_equal:
                continue
            mine = weight.get()
            for _, _, its in layouts(mine, other.get()):
                values = its.reshape(mine.shape)
                field = (
                    {"bias": values.astype(np.float64)} if values.ndim == 1 else {"kernel": array_of(values, fit.axes)}
                )
                function = functools.partial(_changed, frozenset([number]), with_fields(**field))
                yield Change(cause_of(match), f"b has {weight.name} {match.as_object}", function)
