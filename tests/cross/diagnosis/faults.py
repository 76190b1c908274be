"""The faults: what goes wrong in practice, made with each framework's own means, and the cause that must be named."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import embgrad
from tests.cross.diagnosis.recipes import Recipe
from tests.cross.diagnosis.worlds import World, quietly

FRAMEWORKS: Final = ("torch", "tensorflow", "gluon")

#: The objective that goes with a kind of model; of the others the cross-entropy.
BASES: Final = {"encoder": "first", "tied": "tokens", "causal": "tokens"}

#: Nothing is done otherwise.
HEALTHY: Final = Recipe()

#: What a comparison may say: one cause, or several that belong together.
Causes = tuple[str, ...]
Results = tuple[embgrad.results.EmbeddingGradients, embgrad.results.EmbeddingGradients]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: what it is, for a person.
        expected: the answers that are right; the first is the row of the table.
        kinds: the models on which it shows, see `worlds.KINDS`.
        base: the healthy objective's name; "" for the one that goes with the kind of model.
        alone: whether the numbers alone can tell it; else the right answer without models is none, or the same.
        recipe: what is done otherwise.
        frameworks: in which it can be.
        batch: makes the faulty side's batch, where that differs.
        special: computes the faulty side's result where no recipe does.
        silent: whether it is also right to name nothing, with models too: too small to see, or not to be told.
    """

    name: str
    expected: tuple[Causes, ...]
    recipe: Recipe = HEALTHY
    kinds: tuple[str, ...] = ("classifier",)
    base: str = ""
    alone: bool = False
    frameworks: tuple[str, ...] = FRAMEWORKS
    special: Callable[[World, str], tuple[embgrad.results.EmbeddingGradients, Any]] | None = None
    silent: bool = False

    def inject(self, world: World, healthy: World | None = None) -> tuple[Results, tuple[Any, Any]]:
        """The healthy result and the faulty one, and the models that made them.

        Args:
            world: where the fault is.
            healthy: where the healthy result is from; the same world where None.
        """
        base = self.base or BASES.get(world.kind, "cross-entropy")
        healthy = healthy or world
        world.healthy(base)
        made, model = _made(self, world, base)
        return (healthy.healthy(base), made), (healthy.model, model)


@functools.lru_cache(maxsize=32)  # those that follow one another ask for the same
def _made(fault: Fault, world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    world.native.seed(world.seed)  # dropout draws the same, whatever ran before
    return fault.special(world, base) if fault.special else world.faulty(fault.recipe, base)


def _one(*causes: str) -> tuple[Causes, ...]:
    return (causes,)


def _any(*answers: str | Causes) -> tuple[Causes, ...]:
    return tuple((answer,) if isinstance(answer, str) else answer for answer in answers)


def _padded_left(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    """The batch as a tokenizer that pads on the left makes it, and nobody tells the model."""
    batch = world.batch
    moves = (~batch.real).sum(1)

    def moved(array: np.ndarray) -> np.ndarray:
        return np.stack([np.roll(row, move) for row, move in zip(array, moves, strict=True)])

    types = None if batch.types is None else moved(batch.types)
    left = batch.replace(ids=moved(batch.ids), mask=moved(batch.mask), types=types)
    objective = world.objective(base)
    if base == "tokens":
        objective = embgrad.CrossEntropy(moved(world.loss(base).numbers))
    return quietly(world.model, left, objective), world.model


def _shifted_vocabulary(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    return quietly(world.model, world.batch.replace(ids=world.batch.ids + 1), world.objective(base)), world.model


def _at_the_embeddings(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    """The gradient at another point, which the result remembers."""
    return quietly(world.model, world.batch, world.objective(base), at="embeddings"), world.model


def _asked(objective: Callable[[World], Any], **options: Any) -> Callable[..., tuple[Any, Any]]:
    """The same model with another question, which the result remembers."""

    def special(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
        return quietly(world.model, world.batch, objective(world), **options), world.model

    return special


def _next(world: World) -> Any:
    return embgrad.CrossEntropy((world.loss("cross-entropy").numbers + 1) % world.size.classes)


def _without(name: str) -> Callable[..., tuple[Any, Any]]:
    """A batch without the mask or the types, which the result remembers."""

    def special(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
        return quietly(world.model, world.batch.replace(**{name: None}), world.objective(base)), world.model

    return special


def _with_another_padding(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    """A mean over the batch from a run padded two further: the alignment and the cause together."""
    batch = world.batch
    wider = [np.pad(one, ((0, 0), (0, 2))) for one in (batch.ids, batch.mask, batch.types)]
    found = quietly(world.model, embgrad.TokenBatch(*wider, convention=batch.convention), world.objective(base))
    return replace(found, values=found.values / len(batch)), world.model


def _in_another_order(world: World, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
    batch, order = world.batch, np.arange(len(world.batch))[::-1]
    turned = batch.replace(ids=batch.ids[order], mask=batch.mask[order], types=batch.types[order])
    found = quietly(world.model, turned, embgrad.CrossEntropy(world.loss(base).numbers[order]))
    return replace(found, values=-found.values), world.model


_BERTS = ("classifier", "encoder")
_WITH_OWN = ("classifier", "own")
_DYNAMIC = ("torch", "tensorflow")
_BOTH: Final[dict[str, Any]] = {"kinds": _WITH_OWN}
_PURE: Final[dict[str, Any]] = {"kinds": _WITH_OWN, "alone": True}
_ROWS: Final[dict[str, Any]] = {"kinds": ("encoder",), "base": "projection", "alone": True}


#: Faults that the finished numbers tell.
_OF_NUMBERS: Final = (
    Fault("mean over the batch", _one("mean-over-batch"), Recipe(reduction="mean"), **_PURE),
    Fault("mean over the batch, of a logit", _one("mean-over-batch"), Recipe(reduction="mean"), base="logit", **_PURE),
    Fault("mean over all tokens", _one("mean-over-tokens"), Recipe(reduction="mean-tokens"), **_ROWS),
    Fault("mean over each example's tokens", _one("mean-over-tokens"), Recipe(reduction="mean-lengths"), **_ROWS),
    Fault("mean over positions, padding included", _one("mean-over-tokens"), Recipe(reduction="mean-positions"), **_ROWS),
    Fault(
        "mean over the labelled tokens", _one("mean-over-tokens"), Recipe(reduction="mean-labels"),
        kinds=("tied",), alone=True,
    ),
    Fault(
        "mean over examples and classes", _one("mean-over-batch-and-classes"), Recipe(reduction="mean-all"),
        kinds=_WITH_OWN, base="sum", alone=True,
    ),
    Fault("ten times", _one("constant-factor"), Recipe(post=("tenfold",)), **_PURE),
    Fault("a gradient scaler's factor left in", _one("constant-factor"), Recipe(post=("loss-scale",)), **_PURE),
    Fault("an odd factor", _one("constant-factor"), Recipe(post=("odd-factor",)), **_PURE),
    Fault("the sign turned", _one("sign"), Recipe(post=("sign",)), **_PURE),
    Fault("log-likelihood for its loss", _one("sign"), Recipe(loss="log-probability"), **_PURE),
    Fault("one position later", _one("position-shift"), Recipe(post=("one-later",)), **_PURE),
    Fault("the first special token dropped", _one("position-shift"), Recipe(post=("one-earlier",)), **_PURE),
    Fault("two positions earlier", _one("position-shift"), Recipe(post=("two-earlier",)), **_PURE),
    Fault(
        "laid out as if padded on the left", _one("padding-side"), Recipe(post=("left-padded",)),
        kinds=("classifier", "encoder"), alone=True,
    ),
    Fault("padding set to zero", _one("pads-zeroed"), Recipe(post=("pads-zeroed",)), kinds=("own",), alone=True),
    Fault("gradient × input", _one("gradient-times-input"), Recipe(post=("times-input",)), **_PURE),
    Fault("magnitudes", _one("absolute-value"), Recipe(post=("absolute",)), **_PURE),
    Fault("unit length at each position", _one("normalised"), Recipe(post=("unit-position",)), **_PURE),
    Fault("unit length in each example", _one("normalised"), Recipe(post=("unit-example",)), **_PURE),
    Fault("unit length in all", _one("normalised"), Recipe(post=("unit-all",)), **_PURE),
    Fault("rows of the table's gradient", _one("summed-repeats"), Recipe(tap="table"), **_PURE),
    Fault("summed over a token's repeats", _one("summed-repeats"), Recipe(post=("repeats",)), **_PURE),
    Fault("saved in float16", _one("half-precision"), Recipe(post=("float16",)), **_PURE),
    Fault("saved in bfloat16", _one("half-precision"), Recipe(post=("bfloat16",)), **_PURE),
    Fault(
        "computed in float16", _one("half-precision"), Recipe(modify=("float16",)),
        kinds=_WITH_OWN, alone=True, frameworks=_DYNAMIC,
    ),
    Fault(
        "computed in bfloat16", _one("half-precision"), Recipe(modify=("bfloat16",)),
        kinds=_WITH_OWN, alone=True, frameworks=_DYNAMIC,
    ),
    Fault(
        "taken behind the scaling", _one("scaled-lookup"), Recipe(tap="scaled"),
        kinds=("own",), alone=True, frameworks=("torch",),
    ),
    Fault("over √dim", _one("scaled-lookup"), Recipe(post=("over-root-dim",)), **_PURE),
    Fault(
        "probability for its cross-entropy", _one("probability-objective"), Recipe(loss="probability"), alone=True,
    ),
    Fault(
        "training mode, remembered", _one("dropout"), Recipe(training=True), kinds=_WITH_OWN,
    ),
)  # fmt: skip


#: Faults in what is asked, which take a model to tell.
_OF_QUESTIONS: Final = (
    Fault("probability for a logit", _one("probability-objective"), Recipe(loss="probability"), base="logit"),
    Fault("labels one up", _one("label-shift"), Recipe(loss="next-label"), kinds=_WITH_OWN),
    Fault("labels one down", _one("label-shift"), Recipe(loss="previous-label"), kinds=_WITH_OWN),
    Fault("the next class's logit", _one("label-shift"), Recipe(loss="next-label"), base="logit"),
    Fault("labels one up, remembered", _any("label-shift", "other-objective"), special=_asked(_next)),
    Fault("all logits for one", _one("sum-objective"), Recipe(loss="sum"), base="logit"),
    Fault(
        "all logits for one, remembered", _any("sum-objective", "other-objective"), base="logit",
        special=_asked(lambda _: embgrad.Sum()),
    ),
    Fault("one logit for a margin", _any("other-objective"), Recipe(loss="logit"), base="margin", silent=True),
    Fault(
        "one logit for a margin, remembered", _any("other-objective"), base="margin",
        special=_asked(lambda world: world.objective("logit")),
    ),
    Fault("a logit for its cross-entropy", _any("other-objective"), Recipe(loss="logit"), silent=True),
    Fault(
        "padding counted by the objective", _one("pads-counted"), Recipe(loss="projection-all"),
        kinds=("encoder",), base="projection", frameworks=_DYNAMIC,
    ),
    Fault("no mask passed", _one("mask-ignored"), Recipe(drop=("mask",)), kinds=_BERTS),
    Fault("a port that ignores the mask", _one("mask-ignored"), Recipe(modify=("ignores-mask",))),
    Fault("no mask passed, remembered", _one("mask-ignored"), special=_without("mask"), frameworks=_DYNAMIC),
    Fault("no types passed", _one("types-ignored"), Recipe(drop=("types",)), kinds=_BERTS),
    Fault("a port that ignores the types", _one("types-ignored"), Recipe(modify=("ignores-types",))),
    Fault("no types passed, remembered", _one("types-ignored"), special=_without("types")),
    Fault("positions from 2", _one("position-ids-offset"), Recipe(offset=2), frameworks=_DYNAMIC),
    Fault("positions from 1", _one("position-ids-offset"), Recipe(offset=1), frameworks=_DYNAMIC),
    Fault("a port whose positions count from 2", _one("position-ids-offset"), Recipe(modify=("offsets-positions",))),
    Fault(
        "positions from 1 in a causal model", _one("position-ids-offset"), Recipe(offset=1),
        kinds=("causal",), frameworks=("torch",),
    ),
    Fault("ids one up", _one("other-ids"), Recipe(shift=1), kinds=_WITH_OWN),
    Fault("ids one up, remembered", _one("other-ids"), special=_shifted_vocabulary),
    Fault("padded on the left, remembered", _one("padding-side"), special=_padded_left, frameworks=_DYNAMIC),
    Fault(
        "padded on the left in a causal model", _one("padding-side"), special=_padded_left,
        kinds=("causal",), frameworks=("torch",),
    ),
    Fault("behind the embeddings' norm", _one("after-norm"), Recipe(tap="norm"), kinds=_BERTS),
    Fault("behind the norm, remembered", _any("after-norm", "other-point"), special=_at_the_embeddings),
    Fault(
        "the tied table's whole gradient",
        _any("head-share", ("head-share", "summed-repeats"), ("summed-repeats", "head-share")),
        Recipe(tap="table"), kinds=("tied",),
    ),
)  # fmt: skip


#: A fault in the model by itself; `tests/cross/ports` has the others.
_OF_MODELS: Final = (Fault("dropout left on in a port", _one("dropout"), Recipe(modify=("always-dropping",)), **_BOTH),)


FAULTS: Final = (*_OF_NUMBERS, *_OF_QUESTIONS, *_OF_MODELS)


def _pair(name: str, one: tuple[str, Recipe], other: tuple[str, Recipe], **options: Any) -> Fault:
    return Fault(name, _one(one[0], other[0]), one[1] + other[1], **options)


_MEAN = ("mean-over-batch", Recipe(reduction="mean"))
_SIGN = ("sign", Recipe(post=("sign",)))
_TEN = ("constant-factor", Recipe(post=("tenfold",)))
_GELU = ("gelu", Recipe(modify=("gelu",)))
_EPSILON = ("layer-norm-epsilon", Recipe(modify=("epsilon-1e-3",)))
_TOKENS = ("mean-over-tokens", Recipe(reduction="mean-tokens"))
_BIAS = ("missing-bias", Recipe(modify=("bias-not-loaded",)))
_TYPES = ("types-ignored", Recipe(drop=("types",)))
_SHIFT = ("position-shift", Recipe(post=("one-earlier",)))

PAIRS: Final = (
    _pair("mean + GELU", _MEAN, _GELU, kinds=_WITH_OWN),
    _pair("epsilon + tokens", _EPSILON, _TOKENS, kinds=("encoder",), base="projection"),
    _pair("mean + epsilon", _EPSILON, _MEAN),
    _pair("GELU + labels", _GELU, ("label-shift", Recipe(loss="next-label"))),
    _pair("GELU + later", _GELU, ("position-shift", Recipe(post=("one-later",))), kinds=_WITH_OWN),
    _pair("epsilon + types", _EPSILON, _TYPES),
    _pair("bias + input", _BIAS, ("gradient-times-input", Recipe(post=("times-input",)))),
    _pair("types + ten times", _TYPES, _TEN),
    _pair("types + mean", _TYPES, _MEAN),
    _pair("types + mask", _TYPES, ("mask-ignored", Recipe(drop=("mask",)))),
    _pair("GELU + epsilon", _GELU, _EPSILON),
    _pair("mask + sign", ("mask-ignored", Recipe(drop=("mask",))), _SIGN),
    _pair("labels + mean", ("label-shift", Recipe(loss="next-label")), _MEAN),
    _pair("transposed + sign", ("transposed-weight", Recipe(modify=("transposed-query",))), _SIGN),
    _pair("swapped + mean", ("swapped-weights", Recipe(modify=("swapped-first",))), _MEAN),
    _pair(
        "swapped + float16", ("swapped-weights", Recipe(modify=("swapped-first",))),
        ("half-precision", Recipe(post=("float16",))),
    ),
    _pair("bias + GELU", _BIAS, _GELU),
    _pair("table + mean", ("different-table", Recipe(modify=("other-table",))), _MEAN),
    _pair("norm + mean", ("after-norm", Recipe(tap="norm")), _MEAN),
    _pair("probability + mean", ("probability-objective", Recipe(loss="probability")), _MEAN, alone=True),
    _pair("offset + mean", ("position-ids-offset", Recipe(modify=("offsets-positions",))), _MEAN),
    _pair("sign + shift", _SIGN, _SHIFT, alone=True, kinds=_WITH_OWN),
    _pair("mean + shift", _MEAN, _SHIFT, alone=True, kinds=_WITH_OWN),
    _pair("mean + sign", _MEAN, _SIGN, alone=True, kinds=_WITH_OWN),
    _pair("mean + repeats", _MEAN, ("summed-repeats", Recipe(tap="table")), alone=True, kinds=_WITH_OWN),
    _pair("mean + magnitudes", _MEAN, ("absolute-value", Recipe(post=("absolute",))), alone=True, kinds=_WITH_OWN),
    _pair("mean + input", _MEAN, ("gradient-times-input", Recipe(post=("times-input",))), alone=True, kinds=_WITH_OWN),
    _pair("mean + float16", _MEAN, ("half-precision", Recipe(post=("float16",))), alone=True, kinds=_WITH_OWN),
    _pair("mean + padding zeroed", _MEAN, ("pads-zeroed", Recipe(post=("pads-zeroed",))), alone=True, kinds=("own",)),
    _pair(
        "tokens + padding counted", _TOKENS,
        ("pads-counted", Recipe(loss="projection-all")), kinds=("encoder",), base="projection", frameworks=_DYNAMIC,
    ),
    Fault("mean, padded further", _one("mean-over-batch"), special=_with_another_padding, alone=True, frameworks=FRAMEWORKS),
    Fault("sign, in another order", _one("sign"), special=_in_another_order, alone=True),
)  # fmt: skip

#: Other faults in a model: nothing may be named but what is true.
UNKNOWN: Final = tuple(
    Fault(name, expected, Recipe(modify=(modification,)), frameworks=(framework,), silent=True)
    for name, expected, modification, framework in (
        ("a residual dropped", _any("missing-residual"), "without-residual", "torch"),
        ("a head silenced", (), "head-zeroed", "tensorflow"),
        # The query's output is multiplied, which is called a scale of logits.
        ("attention 1.7 times as sharp", _any("attention-scale", "logit-scale"), "hot-attention", "torch"),
        ("half of a branch detached", (), "detached", "torch"),
    )
)


def shown_in(fault: Fault, framework: str, kinds: tuple[str, ...]) -> Iterator[str]:
    """The kinds of models of a framework on which a fault shows."""
    return iter(kind for kind in fault.kinds if kind in kinds) if framework in fault.frameworks else iter(())
