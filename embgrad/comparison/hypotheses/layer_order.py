"""The hypothesis of layers that the port runs in another order, several times, or not at all, and whose residual is no point."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site, Values, arrived
from embgrad.comparison.hypotheses.sources import relative
from embgrad.comparison.hypotheses.terms import changed_sum, sums
from embgrad.comparison.recording import Recording
from embgrad.comparison.weights import kind_of
from embgrad.model_points.points import INPUT, OUTPUT
from embgrad.model_points.roles import LAYER

__all__ = ["LayerOrder", "text_of_layers"]

#: The key in a site's memory of the order in which both models run the layers.
ORDER: Final = "order of layers"

#: The relative L2 up to which outputs sum to what a layer adds.
EXACTLY: Final = 1e-4


@dataclass(frozen=True, eq=False)
class _Runs:
    """The order in which two models run the layers of a, and what each run adds to the residual.

    Attributes:
        a: the indices of the layers, in a's order.
        b: the same in b's, of which some may be missing, and others repeated.
        added: by layer what it adds in a.
        again: what each further run in b adds there, by its place in `b`.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    added: dict[int, np.ndarray]
    again: dict[int, np.ndarray]

    def changes(self, layer: int | None) -> Iterator[np.ndarray]:
        """Yield what b's residual has more than a's before a layer, and before the next; or behind all layers."""
        if layer is None:
            nearest: tuple[int | None, ...] = (None,)
        elif layer in self.a:
            nearest = (layer, [*self.a, None][self.a.index(layer) + 1])
        else:  # of another stack
            nearest = ()
        for it in nearest:
            if it is None or it in self.b:
                before_a = self.a if it is None else self.a[: self.a.index(it)]
                before_b = self.b if it is None else self.b[: self.b.index(it)]
                own = [-self.added[each] for each in before_a]
                others = [
                    self.added[each] if each not in before_b[:place] else self.again[place]
                    for place, each in enumerate(before_b)
                ]
                if own or others:
                    yield np.asarray(sum([*own, *others]))


class LayerOrder:
    """A sum of a residual to which b has added the outputs of other layers than a."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return in which order b runs the layers; an empty list where it runs them as a does."""
        if ORDER not in site.memory:
            site.memory[ORDER] = _runs(site)
        runs: _Runs | None = site.memory[ORDER]
        found: list[Explanation] = []
        for computed, change in itertools.product(sums(site), [] if runs is None else runs.changes(site.layer)):
            if runs is None or change.shape != site.a.shape:
                continue
            predicted = computed.apply(computed.whole + change)
            compute = partial(changed_sum, computed, change, computed.name or arrived(site.name))
            found.append(_explanation(runs, predicted, compute, (computed.name,) if computed.name else ()))
        return found


def _explanation(
    runs: _Runs, predicted: np.ndarray, compute: Callable[[Values], np.ndarray], inputs: tuple[str, ...]
) -> Explanation:
    """Return the explanation; that of layers in another order cannot be put into a, where they add what follows from a's."""
    is_in_turn = list(runs.b) == sorted(runs.b)
    setting, values = "the layers run in the order", (text_of_layers(runs.a), text_of_layers(runs.b))
    cause, sentence = "layer-order", f"{setting} {values[0]} in a and {values[1]} in b"
    left_out = [layer for layer in runs.a if layer not in runs.b]
    if [layer for layer in runs.a if layer in runs.b] == list(runs.b):
        cause, sentence = (
            "missing-part",
            f"b does not run the layer{'s' if len(left_out) > 1 else ''} {text_of_layers(left_out)}",
        )
    return Explanation(cause, setting, values, predicted, compute if is_in_turn else None, inputs, sentence)


def text_of_layers(layers: Sequence[int]) -> str:
    """Return a text for layers in an order, such as "0–3, 5, 4"."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and spans[-1][1] == layer - 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)


def _runs(site: Site) -> _Runs | None:
    """Return the order of both models' layers; None where it is the same, or what a layer adds is not known."""
    partners = _partners(site)
    orders = [_order(recording, calls) for recording, calls in zip(site.recordings, partners, strict=True)]
    if None in orders or orders[0] == orders[1]:
        return None
    a, b = (tuple(order or ()) for order in orders)
    added = {layer: values for layer in {*a, *b} if (values := _added_by(site.recordings[0], layer)) is not None}
    if len({*a}) < len(a) or len(added) < len({*a, *b}):
        return None
    again = {}
    for place in (place for place, layer in enumerate(b) if layer in b[:place]):
        values = _added_again(site, b[place], b[:place].count(b[place]), added[b[place]])
        if values is None:
            return None
        again[place] = values
    return _Runs(a, b, added, again)


#: By the path of a module that is called in layers, the index of the layer.
Calls = dict[str, int]


def _partners(site: Site) -> tuple[Calls, Calls]:
    """Return the modules of both models with the matrices of the layers of a."""
    held_a, held_b = ({weight.name: weight for weight in recording.weights} for recording in site.recordings)
    a, b = Calls(), Calls()
    for match in site.matching.matches:
        weight = held_a[match.a]
        if weight.layer is not None and len(weight.shape) > 1:
            a[weight.module] = b[held_b[match.b].module] = weight.layer
    a.pop("", None)
    b.pop("", None)  # of weights that b does not use
    return a, b


def _order(recording: Recording, calls: Calls) -> tuple[int, ...] | None:
    """Return the layers in the order in which a model calls their modules; None where modules of several kinds show several."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for tensor in sorted(recording.tensors.values(), key=lambda tensor: tensor.time):
        if tensor.side == OUTPUT and tensor.path in calls:
            by_kind[kind_of(tensor.path)].append(calls[tensor.path])
    longest = max(by_kind.values(), key=len, default=[])
    kinds = {kind: {layer for path, layer in calls.items() if kind_of(path) == kind} for kind in by_kind}
    is_one = all([it for it in longest if it in kinds[kind]] == order for kind, order in by_kind.items())
    return tuple(longest) if is_one else None


def _added_by(recording: Recording, layer: int) -> np.ndarray | None:
    """Return what a layer adds to its input; None where one of its ends is no point."""
    output = recording.by_role(f"{LAYER}.{layer}")
    entry = None if output is None else recording.of_module(output.path, INPUT, output.number)
    if output is None or entry is None or entry.values.shape != output.values.shape:
        return None
    return np.asarray(output.values.astype(np.float64) - entry.values)


def _added_again(site: Site, layer: int, number: int, added: np.ndarray) -> np.ndarray | None:
    """Return what a further run of a layer adds in b, from the outputs of the modules that sum to what it adds in a."""
    a, b = site.recordings
    pairs = {pair.a: pair for pair in site.pairs}
    outputs = [
        (tensor, pair, other)
        for tensor in a.tensors.values()
        if tensor.side == OUTPUT and (pair := pairs.get(tensor.key)) is not None and tensor.values.shape == added.shape
        for first in (b.tensors[pair.b],)
        if (other := b.of_module(first.path, OUTPUT, number)) is not None and other.values.shape == first.values.shape
    ]
    of_layer = [entry for entry in outputs if _layer_of(a, entry[0].path) == layer]
    for count in (1, 2):
        for chosen in itertools.combinations(of_layer, count):
            whole = sum(pair.in_a(tensor.values).astype(np.float64) for tensor, pair, _ in chosen)
            if relative(np.asarray(whole), added) <= EXACTLY:
                return np.asarray(sum(pair.in_b(other.values).astype(np.float64) for _, pair, other in chosen))
    return None


def _layer_of(recording: Recording, path: str) -> int | None:
    return next((weight.layer for weight in recording.weights if weight.module == path), None)
