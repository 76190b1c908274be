"""Hypotheses that a weight is wrong: known from both models, or guessed from one model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.comparison.diagnosis.rerun import Source, Variant
from embgrad.comparison.diagnosis.weight_differences import (
    Difference,
    differing_weights,
    is_bias,
    module_of,
    name_of,
    with_table,
)
from embgrad.comparison.weight_pairs import leaf_of
from embgrad.engine.weights import weights_of
from embgrad.model_points.points import WORD

__all__ = ["WeightComparison", "attention_scales", "different_weights", "misplaced_weights"]

#: The most differing weights that are tested one by one.
MOST_SINGLY: Final = 12

#: The most guesses if the other model is not available.
MOST_GUESSES: Final = 200

#: The most scales of single layers' attention that are tested if only one model is available.
MOST_SCALES: Final = 100

#: Common names of the module that projects to queries, and of the module or weight that projects to queries, keys and values.
QUERY: Final = re.compile(r"(^|[._/])(query|q_proj|q_lin|to_q|wq|w_q|q|proj_query|query_proj)([._/]|$|_weight|_bias)")
PACKED: Final = re.compile(r"(^|[._/])(c_attn|qkv|in_proj|wqkv|Wqkv|qkv_proj)([._/]|$|_weight|_bias)")


class WeightComparison:
    """The weights of the source's model, compared with those of the target's model if that is available."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def differing(self) -> Mapping[str, Difference] | None:
        """The weights that differ in the target's model; None if it is not available, or has too few weights in common."""
        case = self._source.case
        if case.other is None:
            return None
        differences = differing_weights(case.model, case.other)
        return (
            None
            if differences is None
            else with_table(differences, [name for name in differences if self._is_table(name)])
        )

    def _is_table(self, name: str) -> bool:
        """Return whether the source's embeddings are this weight's rows."""
        source = self._source.case.source
        value = next(weight.get() for weight in weights_of(self._source.case.model) if weight.name == name)
        if value.shape != (source.vocab, source.values.shape[-1]):
            return False
        if self._source.at != WORD or source.activations.shape != (*source.ids.shape, value.shape[1]):
            return True  # the ids that were looked up are not known
        return np.allclose(value[source.ids], source.activations, rtol=1e-2, atol=1e-6)


def different_weights(source: Source, compared: WeightComparison) -> Iterator[Variant]:
    """Yield the target's weights in the source's model: each group by itself if there are few, and all that differ."""
    differing = compared.differing
    if not differing:
        return
    groups: dict[str, dict[str, Difference]] = {}
    for name, difference in differing.items():
        groups.setdefault(difference.text, {})[name] = difference
    if 1 < len(groups) <= MOST_SINGLY:
        for group in groups.values():
            yield _with_target_weights(group, source)
    yield _with_target_weights(differing, source)


def misplaced_weights(source: Source, compared: WeightComparison) -> Iterator[Variant]:
    """Yield all biases as zeros, and each bias; each square weight transposed; each two modules of one parent swapped."""
    if compared.differing is not None:
        return  # the two models' weights were compared directly, which is more informative
    weights = weights_of(source.case.model)
    guesses = itertools.chain(_without_bias(weights, source), _transposed(weights, source), _swapped(weights, source))
    yield from itertools.islice(guesses, MOST_GUESSES)


def _without_bias(weights: Sequence[Weight], source: Source) -> Iterator[Variant]:
    biases = {weight.name: np.zeros_like(weight.get()) for weight in weights if is_bias(weight) and weight.get().any()}
    named = {weight.name: name_of(weight) for weight in weights}
    if len(biases) > 1:
        yield Variant(("missing-bias",), f"that {source.target} has zeros in every bias", weights=biases, fitted=True)
    for name, zeros in biases.items():
        text = f"that {source.target} has zeros in {named[name]}, or lacks it"
        yield Variant(("missing-bias",), text, weights={name: zeros}, fitted=True)


def _transposed(weights: Sequence[Weight], source: Source) -> Iterator[Variant]:
    for weight in weights:
        if len(weight.shape) == 2 and weight.shape[0] == weight.shape[1] and weight.shape[0] > 1:
            text = f"that {source.target} has {name_of(weight)} transposed"
            turned = np.ascontiguousarray(weight.get().T)
            yield Variant(("transposed-weight",), text, weights={weight.name: turned}, fitted=True)


def _swapped(weights: Sequence[Weight], source: Source) -> Iterator[Variant]:
    owned: dict[str, list[Weight]] = {}
    for weight in weights:
        owned.setdefault(module_of(weight), []).append(weight)
    for module, partner in itertools.combinations(owned, 2):
        shapes = [[weight.shape for weight in owned[name]] for name in (module, partner)]
        if module.rpartition(".")[0] != partner.rpartition(".")[0] or shapes[0] != shapes[1]:
            continue
        pairs = list(zip(owned[module], owned[partner], strict=True))
        values = {first.name: second.get() for first, second in pairs}
        values |= {second.name: first.get() for first, second in pairs}
        text = f"that {source.target} has {module} and {partner} swapped"
        yield Variant(("swapped-weights",), text, weights=values, fitted=True)


def attention_scales(
    source: Source, compared: WeightComparison, receives_same_values: Callable[[str], bool]
) -> Iterator[Variant]:
    """Yield each number in all layers, and in one layer, which is known from both models or guessed from one."""
    layers = _queries(weights_of(source.case.model))
    known = compared.differing or {}
    if not layers or any(weight.name in known for queries in layers.values() for weight, _ in queries):
        return  # there are no queries, or their weights differ
    sizes = _widths(layers)
    numbers = [n for n in range(2, max(sizes) + 1) if any(size % n == 0 for size in sizes)]
    factors = [(f"√{n}", n**0.5) for n in numbers] + [(f"1/√{n}", n**-0.5) for n in numbers]
    alike = [name for name, queries in layers.items() if receives_same_values(queries[0][0].module)]
    alone = alike[-1:] or (list(layers) if len(layers) * len(factors) <= MOST_SCALES else [])
    selections = [("", list(layers)), *((f" in {layer}", [layer]) for layer in alone if len(layers) > 1)]
    for selection, factor in itertools.product(selections, factors):
        yield _times(source, layers, selection, factor)


def _times(
    source: Source,
    layers: Mapping[str, Sequence[tuple[Weight, int]]],
    selection: tuple[str, Sequence[str]],
    factor: tuple[str, float],
) -> Variant:
    values = {}
    for weight, share in (query for name in selection[1] for query in layers[name]):
        value = weight.get()
        axis = int(np.argmax(value.shape))
        rows = value.shape[axis] // share
        np.moveaxis(value, axis, 0)[:rows] *= factor[1]
        values[weight.name] = value
    text = f"that attention's scores{selection[0]} are {factor[0]} times as large in {source.target}"
    return Variant(("attention-scale",), text, weights=values, fitted=True)


def _queries(weights: Sequence[Weight]) -> dict[str, list[tuple[Weight, int]]]:
    """Return by module the weights that project to queries, and the number of equal parts of which the queries are the first."""
    queries: dict[str, list[tuple[Weight, int]]] = {}
    for weight in weights:
        last = f"{module_of(weight).rpartition('.')[2]}.{leaf_of(weight)}"
        share = 3 if PACKED.search(last) else 1 if QUERY.search(last) else 0
        if share == 1 or (share and max(weight.shape) % 3 == 0):
            queries.setdefault(module_of(weight), []).append((weight, share))
    return {name: held for name, held in queries.items() if any(weight.is_matrix for weight, _ in held)}


def _widths(layers: Mapping[str, Sequence[tuple[Weight, int]]]) -> set[int]:
    """Return the sizes of these weights' axes, without keys and values."""
    matrices = (query for held in layers.values() for query in held if query[0].is_matrix)
    return {size for weight, share in matrices for size in (weight.shape if share == 1 else (min(weight.shape),))}


def _with_target_weights(differing: Mapping[str, Difference], source: Source) -> Variant:
    causes = list(dict.fromkeys(difference.cause for difference in differing.values()))
    return Variant(
        (causes[0] if len(causes) == 1 else "different-weight",),
        "that " + " and ".join(_descriptions(differing, source)),
        weights={name: difference.value for name, difference in differing.items()},
    )


def _descriptions(differing: Mapping[str, Difference], source: Source) -> Iterator[str]:
    """Yield what the target's model has, and what the source's model has."""
    for is_in_model, name in ((False, source.target), (True, source.name)):
        texts = list(
            dict.fromkeys(difference.text for difference in differing.values() if difference.is_in_model is is_in_model)
        )
        more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
        if texts:
            yield f"{name}'s model has {', '.join(texts[:4])}{more}"
