"""Sentences that describe the point at which two models diverge, and the weights there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embgrad.backend.protocol import Weight
from embgrad.comparison.bisection.records import LAYER, PIECES, Region, SearchResult, Suspect

__all__ = ["by_weights", "describe", "module_of"]

#: The most weights that a sentence names.
MOST_NAMED = 4


def by_weights(result: SearchResult) -> SearchResult:
    """Return the result with the module of the differing weights, if these locate the difference better than the points."""
    modules = [name for name in dict.fromkeys(map(module_of, (w for w in result.parameters if w.differs))) if name]
    region = result.region
    if not modules or result.first is None:
        return result
    if region is None:
        module = modules[0] if len(modules) == 1 else None
        piece = _piece(modules)
        return replace(result, region=Region(module, piece, result.after, result.first, ([], []), ()))
    inside = [_lies_in(weight, region.module) for weight in result.parameters if weight.differs]
    if not any(inside):  # the region that the points alone suggest is not the cause
        return replace(result, region=replace(region, module=_enclosing_module(modules), piece=_piece(modules)))
    if not all(inside):
        return result
    module = modules[0] if len(modules) == 1 else region.module
    return replace(result, region=replace(region, module=module, piece=_piece(modules) or region.piece))


def _lies_in(weight: Suspect, module: str | None) -> bool:
    return not module or any(f"{path}.".startswith(f"{module}.") for path in (weight.module, module_of(weight)))


def module_of(weight: Suspect | Weight) -> str | None:
    """Return the module that a weight belongs to, by checkpoint name or by its own path; None for the model itself."""
    return weight.module or None if weight.canonical is None else weight.canonical.rpartition(".")[0]


def _enclosing_module(modules: Sequence[str]) -> str | None:
    """Return the innermost module that contains all of these modules."""
    paths = [module.split(".") for module in modules]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared]) or None


def _piece(modules: Sequence[str]) -> str | None:
    """Return a readable name for these modules of a BERT; None if there is none."""
    layers = [LAYER.fullmatch(module) for module in modules]
    pieces = [PIECES.get(layer[1] if layer else module, "") for module, layer in zip(modules, layers, strict=True)]
    if (
        len({module.removesuffix(layer[1]) for module, layer in zip(modules, layers, strict=True) if layer is not None})
        > 1
    ):
        return None  # the modules belong to several layers
    if len(pieces) > MOST_NAMED:
        return None  # a whole layer has no shorter name
    return ", ".join(pieces) if all(pieces) else None


def describe(result: SearchResult) -> str:
    """Return the sentences that describe the result."""
    if result.first is None:
        points = sum(1 for step in result.steps if step.name != "objective")
        end = " and in the objective" if points < len(result.steps) else ""
        at = f"all {points} points" if points > 1 else "the only point that both have"
        ways = "forward and backward" if any(step.backward for step in result.steps) else "forward"
        sentences = [f"The models agree at {at}{end}, {ways}, within {result.tolerance:.1e}."]
    elif result.random:
        sentences = [*_random(result), *_location(result), _computation(result)]
    else:
        sentences = [_divergence(result), *_location(result), *_weights(result)]
    return " ".join([*sentences, *(f"{note[:1].upper()}{note[1:]}." for note in result.notes)])


def _random(result: SearchResult) -> list[str]:
    sides = " and ".join(result.random)
    several = len(result.random) > 1
    again = "different results when run again"
    differ, draw = (f"give {again}", "they draw") if several else (f"gives {again}", "it draws")
    first = ", ".join(f"{role!r} in {side}" for side, role in result.random.items())
    return [
        f"{sides} {differ}, first at {first}: {draw} random numbers in evaluation mode, for example by dropout that was left on."
    ]


def _divergence(result: SearchResult) -> str:
    figure = (
        ""
        if result.figures is None
        else f" (relative L2 {result.figures.relative_l2:.1e}, tolerance {result.tolerance:.1e})"
    )
    if result.direction == "forward":
        before = f" and agree before it, at {result.after!r}" if result.after else ""
        return f"The values diverge at {result.first!r}{figure}{before}."
    return (
        f"All values agree. In the backward pass the gradients agree at {result.after!r} and diverge at "
        f"{result.first!r}{figure}: the backward pass between the two differs."
    )


def _location(result: SearchResult) -> list[str]:
    region = result.region
    if region is None:
        return []
    name = region.piece or "the module"
    where = f" ({region.module})" if region.module else ""
    if region.at is None:
        inside = f", in {name}{where}" if region.module else ""
        return [
            f"All inner points that both have agree, up to {region.after!r}: the difference arises after it{inside}."
        ]
    if region.module is None and region.piece is None:
        return [f"They diverge at {region.at!r}, in the model's own code."] if region.at != result.first else []
    before = f" and agree at {region.after!r}" if region.after and region.after != region.at else ""
    points = f": they diverge at {region.at!r}{before}" if region.at != result.first else ""
    return [f"The difference lies in {name}{where}{points}."]


def _weights(result: SearchResult) -> list[str]:
    differing = [weight for weight in result.parameters if weight.differs]
    if differing:
        named = ", ".join(_weight(weight) for weight in differing[:MOST_NAMED])
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        return [f"These of its weights differ: {named}{more}."]
    if result.first is not None and result.region is not None and (result.region.piece or "").startswith("the lookup"):
        return ["The tables agree." if result.parameters else ""]
    return [_computation(result)]


def _weight(suspect: Suspect) -> str:
    figure = f" (relative L2 {suspect.relative_l2:.1e})" if 0 < suspect.relative_l2 < float("inf") else ""
    return f"{suspect.name!r} {suspect.relation}{figure}"


def _computation(result: SearchResult) -> str:
    if result.parameters:
        count = len(result.parameters)
        weights = "Its only weight agrees" if count == 1 else f"Its {count} weights agree"
    else:
        weights = "No weight lies there"
    if result.random:
        return f"{weights}, so check for dropout or noise there."
    if result.direction == "backward":
        return f"{weights}, so the computation of the gradient differs: check for a custom backward pass or a detached tensor."
    return f"{weights}, so the computation there differs: check an epsilon, an activation, a scale, a mask, dropout, a residual."
