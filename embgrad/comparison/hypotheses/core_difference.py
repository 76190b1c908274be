"""The settings in which two attention cores differ, with their causes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_distances import DistanceTerms
from embgrad.comparison.hypotheses.core_parts import INTERLEAVED, HeadNorm, Mask, Rotary, Soft
from embgrad.comparison.hypotheses.other_weights import OtherWeights
from embgrad.comparison.hypotheses.sources import Fused, last_part
from embgrad.model_points.points import INPUT

__all__ = ["Difference", "differences", "listed"]


#: The relative difference up to which a scale is what another cause leaves, and the number up to which a mask's is 0.
SLIGHT: Final = 1e-4


class Difference(NamedTuple):
    """A setting in which two cores differ.

    Attributes:
        cause: its name.
        setting: the setting, as the subject of the text.
        values: its value in a and in b.
        sentence: the text, where it is not that the setting has these values.
    """

    cause: str
    setting: str
    values: tuple[str, str]
    sentence: str = ""


def differences(a: Core, b: Core) -> list[Difference]:
    """Return the settings in which two cores differ."""
    return [
        *_of_sources(a, b),
        *_of_heads(a, b),
        *_of_norms(a.norm, b.norm),
        *_of_scores(a, b),
        *(_of_masks(a.mask, b.mask) if a.over == b.over else ()),  # masked keys stand in other queries' shares
        *_of_distances(a.distances, b.distances),
        *_of_positions(a, b),
    ]


def _of_sources(a: Core, b: Core) -> Iterator[Difference]:
    if isinstance(b.query, Fused) and not a.is_latent:
        yield Difference(
            "permuted-weight", "the fused projection is split into", ("the order of its weights", "another")
        )
        return
    for role in ("query", "key", "value"):
        mine, its = getattr(a, role), getattr(b, role)
        if isinstance(its, OtherWeights):
            yield Difference(its.cause, its.name, ("a's own", "others"), its.sentence)
        elif mine.name == its.name and mine.label == its.label:
            if role == "query" and not _is_split_alike(a, b):
                texts = _split(a), _split(b)
                texts = texts if texts[0] != texts[1] else ("one order", "another")
                yield Difference("permuted-weight", "the fused projection is split into", texts)
            if mine.matrix is not None and not np.array_equal(mine.matrix, its.matrix):
                yield Difference("transposed-weight", f"{mine.label} is", ("applied as it is", "transposed"))
        elif its.name == f"{mine.name}:{INPUT}":
            yield Difference("missing-norm", f"{last_part(mine.name)} is", ("applied", "missing"))
        else:
            yield Difference("swapped-weights", f"the {role} is", (f"{mine.text}", f"{its.text}"))


def _is_split_alike(a: Core, b: Core) -> bool:
    """Return whether queries, keys and values are the same features of the tensors that they are made of, or exchanged parts."""
    if any(getattr(a, role).label != getattr(b, role).label for role in ("key", "value")):
        return True
    places = [
        (core.query.features, core.key.order if isinstance(core.key, Fused) else core.key.features, core.value.features)
        for core in (a, b)
    ]
    return all(np.array_equal(mine, its) for mine, its in zip(*places, strict=True) if mine is not None)


def _split(core: Core) -> str:
    """Return the order of queries, keys and values in the tensor that holds all, "queries, keys, values"; "" where none does."""
    held = {"queries": core.query, "keys": core.key, "values": core.value}
    parts = {name: source.features for name, source in held.items() if source.features is not None}
    if len({source.name for source in held.values()}) > 1 or len(parts) < len(held):
        return ""
    text = ", ".join(sorted(parts, key=lambda name: int(parts[name][0])))
    is_whole = all((np.diff(features) == 1).all() for features in parts.values())
    return text if is_whole else f"{text} of each group of heads"


def _of_heads(a: Core, b: Core) -> Iterator[Difference]:
    if a.heads != b.heads:
        yield Difference("attention-heads", "heads", (str(a.heads), str(b.heads)))
    if a.tiled != b.tiled:
        names = ("neighbouring heads", "heads at equal distances")
        yield Difference("attention-groups", "keys and values are shared by", (names[a.tiled], names[b.tiled]))
    if a.split != b.split:
        yield Difference("attention-heads", "queries, keys and values are split into heads", (a.split, b.split))
    if b.order is not None and b.order != a.order:
        own, other = zip(*(a.order or a.usual_order), strict=True), zip(*b.order, strict=True)
        (heads_a, pairs_a), (heads_b, pairs_b) = own, other
        if heads_a != heads_b:
            yield Difference("attention-heads", "the order of heads is", (listed(heads_a), listed(heads_b)))
        else:
            texts = (listed(pairs_a), listed(pairs_b))
            yield Difference("attention-groups", "the heads of keys and values that heads take are", texts)
    if a.over != b.over:
        yield Difference("attention-softmax", "the softmax is over", (a.over, b.over))
    if a.joined != b.joined:
        yield Difference("attention-heads", "the heads' outputs are joined", (a.joined, b.joined))


def _of_scores(a: Core, b: Core) -> Iterator[Difference]:
    tied = a.heads != b.heads and math.isclose(a.scale, a.usual_scale) and math.isclose(b.scale, b.usual_scale)
    if not tied and not math.isclose(a.scale, b.scale, rel_tol=SLIGHT):
        yield Difference("attention-scale", "attention scale", (f"{a.scale:.6g}", f"{b.scale:.6g}"))
    if a.cap != b.cap:
        yield Difference("attention-cap", "soft cap of the attention's scores", (_or_none(a.cap), _or_none(b.cap)))


def _of_norms(a: HeadNorm | None, b: HeadNorm | None) -> Iterator[Difference]:
    roles = [() if norm is None else norm.roles for norm in (a, b)]
    if roles[0] != roles[1]:
        others = sorted({*roles[0]} ^ {*roles[1]}, reverse=True)
        texts = ["applied" if others[0] in applied else "missing" for applied in roles]
        verb = "the norms of queries and keys are" if len(others) > 1 else f"the norm of {others[0]} is"
        yield Difference("missing-norm", verb, (texts[0], texts[1]))
        return
    if a is None or b is None:
        return
    if a.epsilon != b.epsilon:
        yield Difference("layer-norm-epsilon", "epsilon", (f"{a.epsilon:g}", f"{b.epsilon:g}"))
    exchanged = [
        role for role, mine, its in (("queries", "query", "key"), ("keys", "key", "query")) if _has(a, b, mine, its)
    ]
    same = _has(a, b, "query", "query") and _has(a, b, "key", "key")
    if a.query is not None and b.query is not None and a.query.ndim > b.query.ndim:
        yield Difference(
            "different-weight", "the gains of the norms of queries and keys are", ("by head", "those of head 0")
        )
    elif not same and exchanged:
        own, other = exchanged[0], "keys" if exchanged[0] == "queries" else "queries"
        yield Difference("swapped-weights", f"the gain of the norm of {own} is", (f"that of {own}", f"that of {other}"))
    elif not same:
        yield Difference("different-weight", "the gains of the norms of queries and keys are", ("applied", "missing"))
    elif a.offset != b.offset:
        names = ["1 + w" if norm.offset else "w" for norm in (a, b)]
        yield Difference("norm-offset", "the gain is", (names[0], names[1]))
    if a.centred != b.centred:
        names = ["layer norms" if norm.centred else "root-mean-square norms" for norm in (a, b)]
        yield Difference("norm-kind", "the norms of queries and keys are", (names[0], names[1]))
    if a.across != b.across:
        names = ["over all heads" if norm.across else "by head" for norm in (a, b)]
        yield Difference("norm-kind", "the norms of queries and keys are", (names[0], names[1]))
    if a.late != b.late:
        names = [f"{'after' if norm.late else 'before'} rotary positions" for norm in (a, b)]
        yield Difference("norm-order", "the norms of queries and keys come", (names[0], names[1]))


def _has(a: HeadNorm, b: HeadNorm, role: str, other: str) -> bool:
    """Return whether the gain that b has in a role is a's gain in another role, or a's own."""
    return np.array_equal(getattr(b, role), getattr(a, other))


def _of_masks(a: Mask, b: Mask) -> Iterator[Difference]:
    if a.causal != b.causal:
        texts = ("causal" if mask.causal else "missing" if mask.window is None else "of both sides" for mask in (a, b))
        yield Difference("attention-causal", "the mask is", (next(texts), next(texts)))
    # A causal window counts the query itself, and one of both sides does not.
    before = [None if mask.window is None else mask.window - mask.causal for mask in (a, b)]
    if before[0] != before[1]:
        yield Difference("attention-window", "attention window", (_or_none(a.window), _or_none(b.window)))
    if a.shift != b.shift:
        yield Difference("attention-shift", "later keys that the causal mask shows", (str(a.shift), str(b.shift)))
    if a.padding != b.padding:
        names = ("attended to", "hidden")
        yield Difference("mask-ignored", "padding is", (names[a.padding], names[b.padding]))
    if a.soft != b.soft:
        yield _of_soft_masks(a, b)


def _of_soft_masks(a: Mask, b: Mask) -> Difference:
    soft = b.soft or a.soft
    assert soft is not None, "the caller has checked"
    if soft.keys == "text":
        names = ("hidden", "seen in place of the text")
        return Difference("mask-ignored", "padding is", names if a.soft is None else names[::-1])
    cause = "attention-causal" if b.causal else "attention-window"
    if soft.keys == "padding":
        cause, name = "mask-ignored", "padding is"
    elif soft.keys == "all":
        name = "masked positions are"
    else:
        name = "later positions are" if b.window is None else "positions outside of the window are"
    texts = [_soft_text(mask.soft) for mask in (a, b)]
    return Difference(cause, name, (texts[0], texts[1]))


def _soft_text(soft: Soft | None) -> str:
    if soft is None:
        return "hidden"
    number = 0.0 if soft.number < SLIGHT else -float(f"{soft.number:.3g}")  # of 0 the fit comes near
    return f"{'scored' if soft.instead else 'given'} {_exact(number)}"


def _of_distances(a: DistanceTerms | None, b: DistanceTerms | None) -> Iterator[Difference]:
    if a is None or b is None:
        if a is not b:
            texts = ["missing" if terms is None else "added" for terms in (a, b)]
            yield Difference("attention-bias", "the products with vectors by distance are", (texts[0], texts[1]))
        return
    for setting, mine, its in (
        ("vectors by distance are multiplied with", a.multiplied, b.multiplied),
        ("vectors by distance have", a.buckets, b.buckets),
        ("vectors are those of the opposite distances for", a.turned, b.turned),
    ):
        if mine != its:
            yield Difference("attention-bias", setting, (mine, its))
    if a.table.norm != b.table.norm:
        texts = [terms.table.norm or "no norm" for terms in (a, b)]
        yield Difference("missing-norm", "the table of distances goes through", (texts[0], texts[1]))
    if a.exchanged != b.exchanged:
        texts = ["queries" if terms.exchanged else "keys" for terms in (a, b)]
        yield Difference("swapped-weights", "vectors by distance of queries are projected as", (texts[0], texts[1]))


def _of_positions(a: Core, b: Core) -> Iterator[Difference]:
    if (a.bias is None) != (b.bias is None) or (
        a.bias is not None and b.bias is not None and a.bias.text != b.bias.text
    ):
        texts = ["missing" if core.bias is None else core.bias.text for core in (a, b)]
        yield Difference("attention-bias", "the bias by distance is", (texts[0], texts[1]))
    if a.sink is not b.sink and (a.sink is None or b.sink is None or not np.array_equal(a.sink, b.sink)):
        texts = ["missing" if core.sink is None else "0" if not core.sink.any() else "added" for core in (a, b)]
        if a.sink is not None and b.sink is not None and texts[0] == texts[1]:
            texts[1] = f"added times {_exact(float(a.sink @ b.sink / (a.sink @ a.sink)))}"
        yield Difference("attention-bias", "the score for no value is", (texts[0], texts[1]))
    if a.rotary is None or b.rotary is None:
        if a.rotary is not b.rotary:
            texts = [
                "missing" if rotary is None else f"of base {_exact(rotary.base)}" for rotary in (a.rotary, b.rotary)
            ]
            yield Difference("missing-rotary", "rotary positions are", (texts[0], texts[1]))
        return
    if a.places is not b.places:
        texts = ["places in the batch" if core.places is None else "position ids" for core in (a, b)]
        yield Difference("rotary-offset", "rotary positions are those of the tokens'", (texts[0], texts[1]))
    yield from _of_rotaries(a.rotary, b.rotary, a.size, b.size)


def _of_rotaries(a: Rotary, b: Rotary, head_a: int, head_b: int) -> Iterator[Difference]:
    if a.base != b.base:
        yield Difference("rotary-base", "rotary base", (_exact(a.base), _exact(b.base)))
    if a.layout != b.layout:
        names = [_layout(rotary) for rotary in (a, b)]
        yield Difference("rotary-layout", "rotary pairs are", (names[0], names[1]))
    if not math.isclose(a.turned / head_a, b.turned / head_b) and not (a.turned == head_a and b.turned == head_b):
        yield Difference(
            "rotary-partial", "rotary share of a head", (f"{a.turned / head_a:.3g}", f"{b.turned / head_b:.3g}")
        )
    elif a.turned < head_a and not math.isclose(a.size / head_a, b.size / head_b):
        wholes = (a.size == head_a, b.size == head_b)
        texts = [f"the {'whole head' if is_whole else 'features that are turned'}" for is_whole in wholes]
        yield Difference("rotary-partial", "frequencies of rotary positions are spread over", (texts[0], texts[1]))
    if a.scaling != b.scaling:
        texts = ["none" if rotary.scaling is None else rotary.scaling.text for rotary in (a, b)]
        yield Difference("rotary-scaling", "rotary scaling", (texts[0], texts[1]))
    if (a.queries, a.keys, a.values) != (b.queries, b.keys, b.values):
        turned = [[name for name in ("queries", "keys", "values") if getattr(rotary, name)] for rotary in (a, b)]
        texts = [" and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) for names in turned]
        yield Difference("missing-rotary", "rotary positions are applied to", (texts[0], texts[1]))
    if a.ahead != b.ahead:
        yield Difference("rotary-offset", "positions by which queries are ahead of keys", (str(a.ahead), str(b.ahead)))
    if a.sense != b.sense:
        names = ["forwards" if rotary.sense == 1 else "backwards" for rotary in (a, b)]
        yield Difference("rotary-layout", "rotary angles turn", (names[0], names[1]))
    if a.rounded != b.rounded:
        part = next(rotary.rounded[0] for rotary in (b, a) if rotary.rounded is not None)
        texts = ["float32" if rotary.rounded is None else rotary.rounded[1] for rotary in (a, b)]
        yield Difference("rotary-in-half", f"rotary {part} are in", (texts[0], texts[1]))


def _layout(rotary: Rotary) -> str:
    return "neighbouring features" if rotary.layout == INTERLEAVED else "halves of the head"


def _or_none(number: float | None) -> str:
    return "none" if number is None else _exact(number)


def listed(numbers: Iterable[int | None]) -> str:
    """Return a text for numbers, such as "0, 2"."""
    return ", ".join(map(str, numbers))


def _exact(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:.6g}"
