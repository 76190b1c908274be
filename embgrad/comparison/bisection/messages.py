"""Sentences that describe the point at which two models diverge, and the weights there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import Figures
from embgrad.comparison.bisection.narrow import PIECES, Part, Step
from embgrad.comparison.bisection.pair import LAYER
from embgrad.comparison.bisection.suspects import Suspect

__all__ = ["Found", "by_weights", "module_of", "told"]

#: The most weights that a sentence names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Found:
    """The result of a search; the fields are described in `Bisection`.

    Attributes:
        part: the smallest region that contains the difference; None if the search did not narrow it down.
        figures: the figures of the first point that differs; None if there are none.
        notes: further remarks for the text.
    """

    tolerance: float
    steps: tuple[Step, ...] = ()
    first: str | None = None
    direction: str | None = None
    after: str | None = None
    part: Part | None = None
    parameters: tuple[Suspect, ...] = ()
    random: Mapping[str, str] = field(default_factory=dict)
    figures: Figures | None = None
    notes: tuple[str, ...] = ()


def by_weights(found: Found) -> Found:
    """Return the result with the module of the differing weights, if these locate the difference better than the points."""
    modules = [one for one in dict.fromkeys(map(module_of, (w for w in found.parameters if w.differs))) if one]
    part = found.part
    if not modules or found.first is None:
        return found
    if part is None:
        module = modules[0] if len(modules) == 1 else None
        piece = _piece(modules)
        return replace(found, part=Part(module, piece, found.after, found.first, ([], []), ()))
    inside = [_lies_in(one, part.module) for one in found.parameters if one.differs]
    if not any(inside):  # the region that the points alone suggest is not the cause
        return replace(found, part=replace(part, module=_around(modules), piece=_piece(modules)))
    if not all(inside):
        return found
    module = modules[0] if len(modules) == 1 else part.module
    return replace(found, part=replace(part, module=module, piece=_piece(modules) or part.piece))


def _lies_in(weight: Suspect, module: str | None) -> bool:
    return not module or any(f"{one}.".startswith(f"{module}.") for one in (weight.module, module_of(weight)))


def module_of(weight: Suspect | Weight) -> str | None:
    """Return the module that a weight belongs to, by checkpoint name or by its own path; None for the model itself."""
    return weight.module or None if weight.canonical is None else weight.canonical.rpartition(".")[0]


def _around(modules: Sequence[str]) -> str | None:
    """Return the innermost module that contains all of these modules."""
    paths = [one.split(".") for one in modules]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared]) or None


def _piece(modules: Sequence[str]) -> str | None:
    """Return a readable name for these modules of a BERT; None if there is none."""
    layers = [LAYER.fullmatch(one) for one in modules]
    pieces = [PIECES.get(one if layer is None else layer[1], "") for one, layer in zip(modules, layers, strict=True)]
    if len({one.removesuffix(layer[1]) for one, layer in zip(modules, layers, strict=True) if layer is not None}) > 1:
        return None  # the modules belong to several layers
    if len(pieces) > MOST_NAMED:
        return None  # a whole layer has no shorter name
    return ", ".join(pieces) if all(pieces) else None


def told(found: Found) -> str:
    """Return the sentences that describe the result."""
    if found.first is None:
        points = sum(1 for one in found.steps if one.name != "objective")
        end = " and in the objective" if points < len(found.steps) else ""
        at = f"all {points} points" if points > 1 else "the only point that both have"
        ways = "forward and backward" if any(one.backward for one in found.steps) else "forward"
        said = [f"They agree at {at}{end}, {ways}, within {found.tolerance:.1e}."]
    elif found.random:
        said = [*_random(found), *_inside(found), _computation(found)]
    else:
        said = [_parting(found), *_inside(found), *_weights(found)]
    return " ".join([*said, *(f"{note[:1].upper()}{note[1:]}." for note in found.notes)])


def _random(found: Found) -> list[str]:
    sides = " and ".join(found.random)
    several = len(found.random) > 1
    differ, draw = ("differ from themselves", "they draw") if several else ("differs from itself", "it draws")
    first = ", ".join(f"{role!r} in {side}" for side, role in found.random.items())
    return [
        f"{sides} {differ}, first at {first}: {draw} random numbers in evaluation mode, as dropout that is left on does."
    ]


def _parting(found: Found) -> str:
    figure = (
        ""
        if found.figures is None
        else f" (relative L2 {found.figures.relative_l2:.1e}, tolerance {found.tolerance:.1e})"
    )
    if found.direction == "forward":
        behind = f", behind {found.after!r}, where they agree" if found.after else ""
        return f"The values part at {found.first!r}{figure}{behind}."
    return (
        f"All values agree; coming down from the objective, the gradients part at {found.first!r}{figure}, and agree at "
        f"{found.after!r}: the backward pass between the two differs."
    )


def _inside(found: Found) -> list[str]:
    part = found.part
    if part is None:
        return []
    name = part.piece or "the module"
    where = f" ({part.module})" if part.module else ""
    if part.at is None:
        part_of = f", of {name}{where}" if part.module else ""
        return [f"All points inside that both have agree, up to {part.after!r}: it comes behind that{part_of}."]
    if part.module is None and part.piece is None:
        return [f"They part at {part.at!r}, in the model's own code."] if part.at != found.first else []
    behind = f" and agree at {part.after!r}" if part.after and part.after != part.at else ""
    points = f": they part at {part.at!r}{behind}" if part.at != found.first else ""
    return [f"That is {name}{where}{points}."]


def _weights(found: Found) -> list[str]:
    differing = [one for one in found.parameters if one.differs]
    if differing:
        named = ", ".join(_weight(one) for one in differing[:MOST_NAMED])
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        return [f"Of its weights these differ: {named}{more}."]
    if found.first is not None and found.part is not None and (found.part.piece or "").startswith("the lookup"):
        return ["The tables agree." if found.parameters else ""]
    return [_computation(found)]


def _weight(suspect: Suspect) -> str:
    figure = f" (relative L2 {suspect.relative_l2:.1e})" if 0 < suspect.relative_l2 < float("inf") else ""
    return f"{suspect.name!r} {suspect.relation}{figure}"


def _computation(found: Found) -> str:
    if found.parameters:
        count = len(found.parameters)
        weights = "its only weight agrees" if count == 1 else f"its {count} weights agree"
    else:
        weights = "no weight lies there"
    if found.random:
        return f"As {weights}, look for dropout or noise there."
    if found.direction == "backward":
        return f"As {weights}, it is how its gradient is computed: a custom backward pass, a detached tensor."
    return (
        f"As {weights}, it is what is computed there: an epsilon, an activation, a scale, a mask, dropout, a residual."
    )
