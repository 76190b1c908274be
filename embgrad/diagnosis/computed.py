"""Hypotheses that a model computes something otherwise inside: another GELU, another epsilon in its norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from embgrad.diagnosis.rerun import Source, Variant
from embgrad.diagnosis.spans import ACTIVATIONS, Norm, Span, activation_spans, norm_spans, recorded, replaced

__all__ = ["COMPUTED", "EPSILONS", "Inside", "LayerNormEpsilon"]

#: The epsilons that libraries and papers have in their norms.
EPSILONS: Final = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


class Inside:
    """What the source's model computes inside, found by one forward pass."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def values(self) -> Mapping[str, np.ndarray]:
        """What each module is given and gives, by key."""
        return recorded(self._source)

    @cached_property
    def activations(self) -> list[Span]:
        """Where it computes a known activation."""
        return activation_spans(self.values)

    @cached_property
    def norms(self) -> list[Norm]:
        """Its layer norms."""
        return norm_spans(self.values, EPSILONS)


class Gelu:
    """Another activation in every feed-forward block."""

    cause: ClassVar[str] = "gelu"

    def variants(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Each of the known activations, where a GELU is computed, or is not."""
        spans = inside.activations
        found = {span.function.name for span in spans}
        gelus = any(name.startswith("GELU") for name in found)
        for function in ACTIVATIONS if len(found) == 1 else ():
            if function.name not in found and (gelus or function.name.startswith("GELU")):
                text = (
                    f"the activation: {source.target} computes {function.name} and {source.named} {next(iter(found))}"
                )
                changes = replaced(spans, lambda span, function=function: function)  # type: ignore[misc]
                yield Variant((self.cause,), text, changes=changes)

    def itself(self, inside: Inside) -> Variant | None:
        """The same function put in its own place, which must change nothing."""
        return (
            Variant((self.cause,), "", changes=replaced(inside.activations, lambda span: span.function))
            if inside.activations
            else None
        )


class LayerNormEpsilon:
    """Another epsilon in every norm."""

    cause: ClassVar[str] = "layer-norm-epsilon"

    def variants(self, source: Source, inside: Inside) -> Iterator[Variant]:
        """Each of the usual epsilons."""
        for epsilon in EPSILONS:
            if any(norm.epsilon != epsilon for norm in inside.norms):
                yield self.with_epsilon(source, inside, epsilon)

    def with_epsilon(self, source: Source, inside: Inside, epsilon: float, *, fitted: bool = False) -> Variant:
        """One epsilon in all norms."""
        norms = {norm.span: norm for norm in inside.norms}
        most = max(norm.epsilon for norm in inside.norms)
        kept = f"{most:g} or less" if most < 1e-6 else f"about {most:g}"
        text = f"the layer norms' epsilon: {epsilon:.3g} in {source.target}, and {kept} in {source.named}"
        changes = replaced(norms, lambda span: norms[span].function(epsilon))
        return Variant((self.cause,), text, changes=changes, fitted=fitted, number=epsilon)

    def itself(self, inside: Inside) -> Variant | None:
        """The same norms put in their own places, which must change nothing."""
        norms = {norm.span: norm for norm in inside.norms}
        return (
            Variant((self.cause,), "", changes=replaced(norms, lambda span: norms[span].function(norms[span].epsilon)))
            if norms
            else None
        )


COMPUTED: Final = (Gelu(), LayerNormEpsilon())
