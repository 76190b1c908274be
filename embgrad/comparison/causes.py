"""The causes of the differences between two models, one for all sites with the same explanation, and what they explain."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.layer_order import text_of_layers
from embgrad.comparison.hypotheses.site import Explanation, Site, arrived
from embgrad.comparison.led_pass import can_be_led
from embgrad.comparison.recording import FINAL, Recording
from embgrad.comparison.sites import Pair, name_of
from embgrad.comparison.weight_matches import kind_of
from embgrad.results.port_records import Cause

__all__ = ["causes_of", "share_explained"]

#: The most weights with other values that are causes by themselves, the words for them, and the setting of all together.
MOST_OTHERS: Final = 4
OTHERS: Final = "with other values"
MERGED: Final = "the weights of several modules"

#: The number of weights from which a layer of b has the weights of another layer, the text of each, and the setting of all.
LEAST_WEIGHTS: Final = 3
MOVED: Final = re.compile(r"b has (\S+) equal to a's ([^\s,]+)")
LAYERS: Final = "the weights of a layer"

#: The path of a term of a sum, or of its norm, which may be in the layer before that of the sum.
TERM: Final = re.compile(r"(?:the norm )?[^\s\d]*[./](\d+)[./:][^\s\d]*(?: is(?: multiplied by)?)?$")

#: Sites with the same explanation, by its cause, setting and values.
Key = tuple[str, ...]
Explained = list[tuple[Site, Explanation]]


def share_explained(
    pairs: Sequence[Pair], a: Recording, b: Recording, explained: Sequence[tuple[Site, Explanation]]
) -> float | None:
    """Return the share of the squared difference of the models' outputs that explanations remove from a.

    The reference runs once more with the port's function at each explained site. None where that cannot be done.
    """
    last = pairs[-1]
    if not explained or not can_be_led(a) or any(explanation.compute is None for _, explanation in explained):
        return None
    assert a.live is not None, "it can be led"
    keys = {
        name_of(tensor): Pair(name_of(tensor), tensor.key, "") for tensor in a.tensors.values() if tensor.key != FINAL
    }
    keys |= {pair.name: pair for pair in pairs if pair.a != FINAL}
    computed = {site.name: explanation for site, explanation in explained}
    read = {name for explanation in computed.values() for name in explanation.inputs}
    at: dict[str, np.ndarray] = {}

    def change(names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
        def function(values: np.ndarray) -> np.ndarray:
            new = np.array(values, np.float64)
            for name in names:
                pair, explanation = keys[name], computed.get(name)
                at[arrived(name)] = pair.in_a(new)
                if explanation is not None and explanation.compute is not None:
                    new = pair.reversed.put_in_b(new, explanation.compute(at.__getitem__))
                at[name] = pair.in_a(new)
            return new

        return function

    by_key: dict[str, list[str]] = defaultdict(list)
    known = {*read, *computed, last.name}
    for name, pair in keys.items():  # of several pairs at one point the first is read by the others
        if name in known:
            by_key[pair.a].append(name)
    final = a.live.led({key: change(names) for key, names in by_key.items()}, {})
    if FINAL in final:
        at[FINAL] = at[arrived(FINAL)] = final[FINAL]
        if FINAL in computed and (compute := computed[FINAL].compute) is not None:
            at[FINAL] = compute(at.__getitem__)
    real = a.batch.real
    wanted, before, after = (
        (values[real] if values.shape[:2] == real.shape else values).astype(np.float64)
        for values in (last.in_b(b.tensors[last.b].values), last.in_a(a.tensors[last.a].values), at[last.name])
    )
    whole = float(((wanted - before) ** 2).sum())
    return 1 - float(((wanted - after) ** 2).sum()) / whole if whole else None


def causes_of(explained: Sequence[tuple[Site, Explanation | None]]) -> tuple[Cause, ...]:
    """Return the causes, one for all sites with the same values, those with the largest effect first."""
    entries = [(site, it) for site, best in _decided(explained) for it in (best, *best.also)]
    moved = _moved_layers(entries)
    grouped: dict[Key, Explained] = defaultdict(list)
    for site, explanation in entries:
        grouped[_key(site, explanation, moved)].append((site, explanation))
    causes = [_cause(key, same) for key, same in _with_others_merged(grouped).items()]
    return tuple(sorted(causes, key=lambda cause: -cause.difference))


def _decided(explained: Sequence[tuple[Site, Explanation | None]]) -> Explained:
    """Return the sites that are explained; of explanations that one site cannot tell apart those that most sites have.

    A number by which rows are multiplied is known from the sums that hold them, and only roughly from a norm of them.
    """
    entries = [(site, it) for site, it in explained if it is not None and not it.goes_on]
    said = Counter(key for _, it in entries for key in {_whatever_the_layer(each) for each in (it, *it.rivals)})
    scaled = {it.setting: it for _, it in entries if it.cause == "scaled-lookup"}

    def most_frequent(explanation: Explanation) -> Explanation:
        known = (scaled.get(rival.setting) for rival in explanation.rivals if rival.cause == "scaled-lookup")
        rivals = (
            replace(rival, predicted=explanation.predicted) for rival in (*filter(None, known), *explanation.rivals)
        )
        return max((explanation, *rivals), key=lambda it: said[_whatever_the_layer(it)])

    return [(site, most_frequent(explanation)) for site, explanation in entries]


def _whatever_the_layer(explanation: Explanation) -> Key:
    return (kind_of(explanation.setting), *explanation.values)


def _key(site: Site, explanation: Explanation, moved: Container[tuple[int, int] | None]) -> Key:
    """Return what sites with the same cause have in common: the cause, the setting, and its two values."""
    if _move_of(site, explanation) in moved:
        return explanation.cause, LAYERS, "", ""
    if explanation.cause == "half-weights":
        return explanation.cause, _rounding(explanation), "", ""
    layer = _layer_of(site, explanation)
    return (explanation.cause, *(_general(text, layer) for text in (explanation.setting, *explanation.values)))


def _layer_of(site: Site, explanation: Explanation) -> int | None:
    """Return the index of the layer that a cause is in: its own, that of a term or its norm if it is another, else the site's."""
    if explanation.layer is not None:
        return explanation.layer
    is_of_sum = explanation.cause in ("residual-scale", "missing-residual", "norm-order")
    own = TERM.match(explanation.setting) if is_of_sum else None
    return site.layer if own is None else int(own[1])


def _cause(key: Key, same: Explained) -> Cause:
    """Return the cause of sites that have a key in common."""
    cause, setting, *values = key
    site, explanation = same[0]
    layers = (
        ()
        if _is_outside(site, explanation)
        else tuple(sorted({layer for it in same if (layer := _layer_of(*it)) is not None}))
    )
    sentence = _general(explanation.sentence, _layer_of(site, explanation))
    if setting == LAYERS:
        sentence = _text_of_moves({move for entry in same if (move := _move_of(*entry)) is not None})
    elif setting == MERGED:
        sentence = f"b has the weights of {len(same)} modules {OTHERS}, as another checkpoint has"
    elif cause == "half-weights" and len(same) > 1:
        sentence = f"b has the weights of {len(same)} modules {setting}"
    # A sentence about layers or a part names both of its ends.
    is_named = (
        setting == LAYERS
        or cause == "layer-order"
        or (cause == "missing-part" and sentence == explanation.sentence != "")
    )
    where = f", {_span(layers)}" if layers and not is_named else "" if sentence else f", at {site.name}"
    return Cause(
        cause=cause,
        text=f"{sentence or f'{setting} {values[0]} in a and {values[1]} in b'}{where}",
        values=(values[0], values[1]),
        sites=tuple(at.name for at, _ in same),
        layers=layers,
        difference=max(at.difference for at, _ in same),
        remaining=max(at.off(it.predicted) for at, it in same),
    )


def _moved_layers(entries: Explained) -> set[tuple[int, int]]:
    """Return the layers of b that hold many weights of another layer of a, with that layer."""
    weights: dict[tuple[int, int], set[str]] = defaultdict(set)
    for site, explanation in entries:
        if (move := _move_of(site, explanation)) is not None:
            # Several modules may read what a single norm of other weights returns.
            weights[move].add(explanation.sentence)
    return {move for move, sentences in weights.items() if len(sentences) >= LEAST_WEIGHTS}


def _move_of(site: Site, explanation: Explanation) -> tuple[int, int] | None:
    """Return a site's layer and the layer of a that b's weights are of; None where they are of no other layer."""
    found = MOVED.match(explanation.sentence)
    if found is None:
        return None
    numbers = [int((re.findall(r"(?<=[./])\d+(?=[./])", name) or ["-1"])[0]) for name in found.groups()]
    if -1 in numbers or numbers[0] != site.layer or numbers[0] == numbers[1]:
        return None
    return numbers[0], numbers[1]


def _text_of_moves(moves: Iterable[tuple[int, int]]) -> str:
    ordered = sorted(moves)
    layers, others = (", ".join(map(str, numbers)) for numbers in zip(*ordered, strict=True))
    plural = "s" if len(ordered) > 1 else ""
    return f"b has the weights of a's layer{plural} {others} in layer{plural} {layers}"


def _is_outside(site: Site, explanation: Explanation) -> bool:
    """Return whether an explanation names a module with weights outside of the layers, whose outputs they hand on."""
    outside = {weight.module for weight in site.recordings[0].weights if weight.layer is None and weight.module}
    # A module "norm" is not "the norm of keys".
    words = re.findall(r"(?<!\S)[^\s,;:]+(?![^\s,;:])(?! of )", explanation.text)
    return not outside.isdisjoint(words)


def _with_others_merged(grouped: Mapping[Key, Explained]) -> dict[Key, Explained]:
    """Return the groups; weights with other values in many modules, which have nothing else in common, are one group."""
    others = [key for key, same in grouped.items() if OTHERS in same[0][1].sentence]
    if len(others) <= MOST_OTHERS:
        return dict(grouped)
    sites = [entry for key in others for entry in grouped[key]]
    merged = list({site.name: (site, explanation) for site, explanation in sites}.values())
    left = {key: same for key, same in grouped.items() if key not in others}
    return {("different-weight", MERGED, "", ""): merged, **left}


def _rounding(explanation: Explanation) -> str:
    """Return the end of a sentence about rounded weights, such as "rounded to float16"."""
    return explanation.text[explanation.text.index("rounded") :]


def _general(text: str, layer: int | None) -> str:
    """Return a text without the number of a layer, and of its partner, so that it is the same for all layers."""
    text = re.sub(r" \(\d+\)", "", text)
    if layer is None:
        return text
    # Numbers such as 0.1 remain: a path has letters.
    number = rf"(?<=[./]){layer}(?=[._/:,]|$)"
    return re.sub(r"\S*[^\W\d_]\S*", lambda word: re.sub(number, "N", word[0]), text)


def _span(layers: Sequence[int]) -> str:
    """Return a text for the numbers of layers, such as "layers 0–9, 12"."""
    text = text_of_layers(layers)
    return f"layer {text}" if len(layers) == 1 else f"layers {text}"
