"""Hypotheses about computations inside a model: another activation function, or another epsilon in its layer norms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from embgrad.backend.registry import backend_for
from embgrad.comparison.diagnosis.rerun import AS_IT_WAS, Source, Variant
from embgrad.comparison.diagnosis.spans import (
    REPLACEMENTS,
    Function,
    Norm,
    Span,
    activation_spans,
    function_between,
    norm_spans,
    replaced,
    same_values,
)
from embgrad.model_points.points import INPUT, OUTPUT, split_name

__all__ = ["COMPUTED", "EPSILONS", "Inside", "LayerNormEpsilon"]

#: The epsilons that libraries and papers use in layer norms.
EPSILONS: Final = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

#: The epsilon below which its effect hardly differs from that of 0.
TINY: Final = 1e-6

#: The most runs that are spent on guesses about single layers.
MOST_SINGLY: Final = 60


class Inside:
    """The values, activations and norms inside a model, recorded in one forward pass.

    Args:
        source: the model with its batch.

    Attributes:
        other: the same of the target's model; None if that cannot be run.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.other: Inside | None = None

    @cached_property
    def values(self) -> Mapping[str, np.ndarray]:
        """The inputs and outputs of each module, by key."""
        return _recorded(self._source)

    @cached_property
    def readable(self) -> bool:
        """True if values inside the model can be read."""
        supports = backend_for(self._source.case.model).supports
        known = {"modules", "add", "edit"} <= supports
        return known and self._source.attempt("activation", lambda: self.values) is not None

    @cached_property
    def activations(self) -> list[Span]:
        """The spans in which the model computes a known activation function."""
        return activation_spans(self.values)

    @cached_property
    def norms(self) -> list[Norm]:
        """The model's layer norms."""
        return norm_spans(self.values, EPSILONS)

    def receives_same_values(self, path: str) -> bool:
        """Return whether the module with this path receives the same values in the other model, as far as both can be read."""
        keys = [key for key in self.values if split_name(key).path == path and f":{INPUT}" in key]
        others = {} if self.other is None else self.other.values
        return bool(keys) and all(key in others and same_values(self.values[key], others[key]) for key in keys)

    def has(self, spans: Iterable[Span]) -> bool:
        """Return whether all these spans of the other model have points of the same names here."""
        return all(span.before in self.values and span.behind in self.values for span in spans)

    def function_at(self, span: Span, theirs: Inside) -> Function | None:
        """Return the function that is computed at the other model's span: between the same points, otherwise by order."""
        if span.before in self.values and span.behind in self.values:
            return function_between(self.values[span.before], self.values[span.behind])
        number = theirs.activations.index(span)
        return self.activations[number].function if len(self.activations) == len(theirs.activations) else None

    def epsilon_at(self, norm: Norm, theirs: Inside) -> float | None:
        """Return the epsilon at the other model's norm, found in the same way; the norm's own epsilon if that fits as well."""
        same = [candidate for candidate in self.norms if candidate.span.before == norm.span.before]
        if not same and len(self.norms) == len(theirs.norms):
            same = [self.norms[theirs.norms.index(norm)]]
        if not same:
            return None
        values = self.values[same[0].span.before], self.values[same[0].span.behind]
        return norm.epsilon if same[0].fits(*values, norm.epsilon) else same[0].epsilon


def _recorded(source: Source) -> dict[str, np.ndarray]:
    """Return the inputs and outputs of each module, by the points' keys, in the order in which they are reached."""
    case = source.case
    seen = backend_for(case.model).points(case.model, source.batch, case.call)
    keys = [point.key for point in seen if point.side in (INPUT, OUTPUT)]
    values: dict[str, np.ndarray] = {}

    def keeper(key: str) -> Callable[[np.ndarray], np.ndarray]:
        def keep(value: np.ndarray) -> np.ndarray:
            values[key] = np.array(value)
            return np.zeros_like(value)

        return keep

    source.result(Variant((AS_IT_WAS,), "", changes={"add": {key: keeper(key) for key in keys}}))
    return values


class Activation:
    """The hypothesis of another activation function, in every feed-forward block or in one layer.

    If both models can be run, what each computes is known. Otherwise it is guessed, and a guess is a finding only if it gives the
    target up to rounding.
    """

    causes: ClassVar[tuple[str, ...]] = ("gelu", "activation")

    def variants(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Yield the functions of the other model; otherwise each known activation in place of another, wherever that occurs."""
        spans = inside.activations
        if inside.other is not None:
            theirs = {
                span: function for span in spans if (function := inside.other.function_at(span, inside)) is not None
            }
            differing = {span: function for span, function in theirs.items() if function.name != span.function.name}
            if differing:
                yield self._with(source, spans, differing)
            if inside.other.has(spans):
                return
        for computed, function in itertools.product(dict.fromkeys(span.function.name for span in spans), REPLACEMENTS):
            if computed != function.name:
                alike = {span: function for span in spans if span.function.name == computed}
                yield self._with(source, spans, alike, fitted=True)

    def singly(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Yield each known activation in one layer, if there are not too many layers and the other model is not known."""
        spans = inside.activations
        feasible = len(spans) > 1 and len(spans) * len(REPLACEMENTS) <= MOST_SINGLY
        if not feasible or (inside.other is not None and inside.other.has(spans)):
            return
        for span, function in itertools.product(spans, REPLACEMENTS):
            if span.function.name != function.name:
                yield self._with(source, spans, {span: function}, fitted=True)

    def unchanged(self, inside: Inside) -> Variant | None:
        """Return the variant that replaces each activation by itself, which must change nothing."""
        changes = replaced(inside.activations, lambda span: span.function)
        return Variant(self.causes[:1], "", changes=changes) if inside.activations else None

    def _with(
        self, source: Source, spans: Sequence[Span], replacements: Mapping[Span, Function], *, fitted: bool = False
    ) -> Variant:
        """Return the variant with other functions in some spans; its text names the spans, unless it replaces all."""
        pairs = list(dict.fromkeys((span.function.name, function.name) for span, function in replacements.items()))
        described = ", or ".join(
            f"{target_name} in {source.target} and {source_name} in {source.name}" for source_name, target_name in pairs
        )
        alike = [span for span in spans if span.function.name in dict(pairs)]
        where = "" if len(replacements) == len(alike) > 1 else f" of {_listed(span.location for span in replacements)}"
        gelus = all(name.startswith("GELU") for names in pairs for name in names)
        changes = replaced(replacements, lambda span: replacements[span])
        text = f"the activation{where}: {described}"
        return Variant(("gelu" if gelus else "activation",), text, changes=changes, fitted=fitted)


class LayerNormEpsilon:
    """The hypothesis of another epsilon, in every layer norm or in one, known or guessed as for `Activation`."""

    causes: ClassVar[tuple[str, ...]] = ("layer-norm-epsilon",)

    def variants(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Yield the epsilons of the other model; otherwise each usual epsilon in all norms."""
        if inside.other is not None:
            theirs = {
                norm: epsilon for norm in inside.norms if (epsilon := inside.other.epsilon_at(norm, inside)) is not None
            }
            differing = {norm: epsilon for norm, epsilon in theirs.items() if epsilon != norm.epsilon}
            if differing:
                yield self._with(source, inside, differing)
            if inside.other.has(norm.span for norm in inside.norms):
                return
        for epsilon in EPSILONS:
            if any(norm.epsilon != epsilon for norm in inside.norms):
                yield self.with_epsilon(source, inside, epsilon, fitted=True)

    def singly(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Yield each usual epsilon in one norm, if there are not too many norms and the other model is not known."""
        norms = inside.norms
        feasible = len(norms) > 1 and len(norms) * len(EPSILONS) <= MOST_SINGLY
        if not feasible or (inside.other is not None and inside.other.has(norm.span for norm in norms)):
            return
        for norm, epsilon in itertools.product(norms, EPSILONS):
            if norm.epsilon != epsilon:
                yield self._with(source, inside, {norm: epsilon}, fitted=True)

    def with_epsilon(self, source: Source, inside: Inside, epsilon: float, *, fitted: bool = False) -> Variant:
        """Return the variant with one epsilon in all norms."""
        return self._with(source, inside, dict.fromkeys(inside.norms, epsilon), fitted=fitted, number=epsilon)

    def unchanged(self, inside: Inside) -> Variant | None:
        """Return the variant that replaces each norm by itself, which must change nothing."""
        norms = {norm.span: norm for norm in inside.norms}
        changes = replaced(norms, lambda span: norms[span].function(norms[span].epsilon))
        return Variant(self.causes, "", changes=changes) if norms else None

    def _with(
        self,
        source: Source,
        inside: Inside,
        changed: Mapping[Norm, float],
        *,
        fitted: bool = False,
        number: float = -1.0,
    ) -> Variant:
        # The effects of two tiny epsilons hardly differ, so that a difference between them is not reported.
        noticeable = {
            norm: epsilon
            for norm, epsilon in changed.items()
            if epsilon != norm.epsilon and max(epsilon, norm.epsilon) >= TINY
        }
        changed = noticeable or changed
        epsilons = {norm.span: (norm, epsilon) for norm, epsilon in changed.items()}
        whose = "the layer norms' epsilon"
        if len(changed) < len(inside.norms) or len(inside.norms) == 1:
            whose = f"the epsilon of {_listed(norm.span.location for norm in changed)}"
        target_epsilon, source_epsilon = _formatted(changed.values()), _formatted(norm.epsilon for norm in changed)
        text = f"{whose}: {target_epsilon} in {source.target}, and {source_epsilon} in {source.name}"
        changes = replaced(epsilons, lambda span: epsilons[span][0].function(epsilons[span][1]))
        return Variant(self.causes, text, changes=changes, fitted=fitted, number=number)


def _formatted(epsilons: Iterable[float]) -> str:
    """Format epsilons for a text; for tiny ones only an upper bound is known."""
    known = list(epsilons)
    if max(known) < TINY:
        return f"{max(known):.3g} or less" if max(known) else "about 0"
    return " and ".join(dict.fromkeys(f"{epsilon:.3g}" for epsilon in known))


def _listed(layers: Iterable[str]) -> str:
    """Format the names of some layers for a text."""
    names = list(dict.fromkeys(layers))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


COMPUTED: Final = (Activation(), LayerNormEpsilon())
