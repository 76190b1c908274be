"""The hypothesis of a mixture of experts: how many experts a token takes, with which weights, and what each of them computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.activation import cause_of
from embgrad.comparison.hypotheses.expert_weights import (
    FUNCTIONS,
    Bank,
    Router,
    Scores,
    banks_of,
    differing_weights,
    routers_of,
    stacks_of,
)
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation, logistic
from embgrad.comparison.hypotheses.site import (
    Changed,
    Explanation,
    Site,
    Values,
    kept,
    known_changes,
    remember,
    together,
    unset,
)
from embgrad.comparison.hypotheses.sources import Source, last_part, most_off, sources
from embgrad.comparison.hypotheses.terms import Sum, changed_sum, sums
from embgrad.comparison.sites import count_layers
from embgrad.model_points.roles import LAYER

__all__ = ["Experts"]

#: The most tensors before a site that may be the experts' input, that may be added to their sum, and the most that are added.
MOST_INPUTS: Final = 4
MOST_TERMS: Final = 6
MOST_ADDED: Final = 2

#: The most experts that a token takes, beside all of them.
MOST_TAKEN: Final = 8

#: The numbers of groups that experts may be in.
GROUPS: Final = (2, 4, 8, 16)

#: The number of tokens by which mixtures are told apart first.
TOKENS: Final = 12

#: The relative difference up to which two factors are equal.
SAME: Final = 1e-4


class Groups(NamedTuple):
    """Neighbouring experts that are chosen together, as in DeepSeek-V2 and V3.

    Attributes:
        number: the number of groups.
        taken: how many of them a token's experts are in.
        counted: how many of the largest scores in a group make up the group's own: 1, or 2.
    """

    number: int
    taken: int
    counted: int

    def allow(self, scores: np.ndarray) -> np.ndarray:
        """Return which experts a token may take, bool, by the scores that choose, (token, expert)."""
        grouped = np.sort(scores.reshape(len(scores), self.number, -1))
        whole = grouped[..., -self.counted :].sum(-1)
        chosen = whole >= np.sort(whole)[:, -self.taken, None]
        return np.repeat(chosen, scores.shape[1] // self.number, axis=1)

    @property
    def text(self) -> str:
        """A readable description."""
        return f"{self.taken} of {self.number} groups by their {'best' if self.counted == 1 else 'two best'}"


class Routing(NamedTuple):
    """The weights that a token gives to experts.

    Attributes:
        score: "softmax" or "sigmoid".
        number: the number of experts that a token takes, those of the largest scores.
        normalised: whether their scores are divided by their sum.
        groups: the groups that a token's experts are in; None where they may be any.
    """

    score: str
    number: int
    normalised: bool
    groups: Groups | None = None

    def weights(self, logits: np.ndarray, preferred: np.ndarray) -> np.ndarray:
        """Return the weights of all experts, (token, expert), 0 for those that are not taken.

        Args:
            logits: the scores before the softmax, (token, expert).
            preferred: what is added to scores by which experts are chosen, and not to their weights, (expert,).
        """
        if self.score == "softmax":
            scores = np.exp(logits - logits.max(-1, keepdims=True))
            scores = scores / scores.sum(-1, keepdims=True)
        else:
            scores = logistic(logits)
        choosing = scores + preferred
        if self.groups is not None:
            choosing = np.where(self.groups.allow(choosing), choosing, -np.inf)
        least = np.sort(choosing)[:, -self.number, None]
        taken = np.where(choosing >= least, scores, 0.0)
        return np.asarray(taken / taken.sum(-1, keepdims=True) if self.normalised else taken)


class Term(NamedTuple):
    """A tensor that is added to the experts' sum.

    Attributes:
        name: the name of its point, such as that of shared experts' output.
        gate: the name of a point with a number for each token, by whose logistic function it is multiplied; "" for none.
    """

    name: str
    gate: str = ""

    def read(self, at: Values) -> np.ndarray:
        """Return what is added, in a pass whose values at points a function returns."""
        return at(self.name) * logistic(at(self.gate)) if self.gate else at(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return (self.name, self.gate) if self.gate else (self.name,)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A sum of experts' outputs and of further tensors.

    Attributes:
        source: the experts' input.
        router: how experts are scored.
        bank: the experts' weights.
        function: the activation function.
        routing: how experts are taken.
        factor: what their sum is multiplied by.
        added: the tensors that are added.
        given: the experts' input in b where it is not the router's, which is set alone; None where it is.
    """

    source: Source
    router: Router
    bank: Bank
    function: Activation
    routing: Routing
    factor: float = 1.0
    added: tuple[Term, ...] = ()
    given: np.ndarray | None = None

    def compute(self, at: Values, added: Values | None = None) -> np.ndarray:
        """Return the sum in a pass whose values at points a function returns, (example, position, feature).

        Args:
            at: the function.
            added: that of what is added, where it is another.
        """
        return self._of(self.source.read(at), self.source.read(at), added or at)

    def _of(self, values: np.ndarray, given: np.ndarray, at: Values) -> np.ndarray:
        """Return the sum of the experts that the router takes by some values, and of what else is added."""
        weights = self.routing.weights(self.router.logits(values.reshape(-1, values.shape[-1])), self.router.preferred)
        rows = given.reshape(-1, given.shape[-1])
        total = np.zeros((len(rows), self.bank.down.shape[-1]))
        for expert in range(weights.shape[1]):
            tokens = np.flatnonzero(weights[:, expert])
            output = self.bank.outputs(rows[tokens], self.function, slice(expert, expert + 1))[0]
            total[tokens] += weights[tokens, expert, None] * output
        result = self.factor * total.reshape(*values.shape[:-1], -1)
        for term in self.added:
            result = result + term.read(at)
        return np.asarray(result)

    def predicted(self, site: Site) -> np.ndarray:
        """Return the sum at a site."""
        at = {before.name: before.values for before in site.before}.__getitem__
        return self._of(self.source.read(at), self.source.read(at) if self.given is None else self.given, at)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return tuple(dict.fromkeys([self.source.name, *(name for term in self.added for name in term.names)]))


class Experts:
    """A mixture of experts, with a residual or shared experts beside them."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the mixtures of both models differ, or norms of them; an empty list where a computes none."""
        with np.errstate(all="ignore"):
            computed = next(sums(site))
            inner = _at_sum(site, computed)
            for first in itertools.islice(_fits(inner), 1):
                for before, given in _changes_before(site, computed, first):
                    change = np.zeros(computed.whole.shape) if before is None else before.values
                    changed = replace(computed, apply=partial(_of_changed, computed.apply, change))
                    second = _ported(inner, replace(first, given=given), changed, change, most_off(site))
                    if second is not None:
                        return _explanations(inner, first, second, computed, before)
        return []


def _changes_before(site: Site, computed: Sum, a: Mixture) -> Iterator[tuple[Changed | None, np.ndarray | None]]:
    """Yield what b's sum may have beside a mixture, and the experts' own input: nothing, or what earlier sums of b differ by."""
    yield None, None
    for before in reversed(known_changes(site)) if computed.name else ():
        if before.values.shape == computed.whole.shape:
            yield before, None
            yield from ((before, it.b) for it, _ in site.memory["explained"] if np.array_equal(it.a, a.source.values))


def _of_changed(function: Callable[[np.ndarray], np.ndarray], change: np.ndarray, values: np.ndarray) -> np.ndarray:
    return function(values + change)


def _at_sum(site: Site, computed: Sum) -> Site:
    """Return a site at whose end a has the sum that a norm at the end of another site is given."""
    if not computed.name:
        return site
    whole = computed.whole
    last = count_layers(site.recordings[0]) - 1 if site.layer is None else site.layer - 1
    layer = site.recordings[0].by_role(f"{LAYER}.{last}")
    own = last if layer is not None and np.array_equal(layer.values, whole) else site.layer
    return replace(site, a=whole, layer=own, before=[it for it in site.before if not np.array_equal(it.values, whole)])


def _fits(site: Site) -> Iterator[Mixture]:
    """Yield the mixtures that reproduce the reference's output."""
    most = most_off(site)
    stacks = stacks_of(site.recordings[0], site.layer)
    if not stacks:
        return
    every = _sums(site)
    near = [source for source in sources(site, 4 * MOST_INPUTS) if source.values.shape[:2] == site.a.shape[:2]]
    near = [_of_both(site, source) for source in near]
    same = [source for source in near if source.values.shape == site.a.shape][:MOST_INPUTS]
    for source in [*same, *(source for source in near[:MOST_INPUTS] if source not in same)]:
        width = source.values.shape[-1]
        for router in routers_of(site.recordings[0], site.layer, stacks, width):
            count = len(router.bias)
            banks: Iterable[Bank] = ()
            functions, added = list(FUNCTIONS), every
            if width == site.a.shape[-1]:
                banks = banks_of(stacks, width, count)
            elif count == site.a.shape[-1]:  # the router's own output
                banks, functions, added = [Scores(count)], [ACTIVATIONS[0]], [()]
            for bank in banks:
                start = Mixture(source, router, bank, functions[0], Routing("softmax", 1, normalised=True))
                for mixture in _nearest(site, start, [bank], functions, site.a, added, most):
                    if site.off(mixture.predicted(site), from_a=True) <= most:
                        yield mixture


def _of_both(site: Site, source: Source) -> Source:
    """Return a tensor as both models hold it, whose difference a pass is given there, where one of equal values is a's alone."""
    shared = (it for it in site.before if it.shared and np.array_equal(it.values, source.values))
    return next((Source(it.name, it.values) for it in shared), source)


def _ported(site: Site, a: Mixture, computed: Sum, change: np.ndarray, most: float) -> Mixture | None:
    """Return the mixture that reproduces the port's output, with as few other settings as do; None where none does.

    Args:
        site: the site, at whose end a has the mixture.
        a: a's mixture.
        computed: what a makes of it.
        change: what b adds to its mixture.
        most: the relative L2 up to which an output is reproduced.
    """
    is_mixed, wanted = not isinstance(a.bank, Scores), site.b if computed.free is None else -change
    layers = (site.layer, _layer_of(site)) if is_mixed else ()
    stacks = [stacks_of(side, layer) for side, layer in zip(site.recordings, layers, strict=False)]
    readings, own = [list(banks_of(each, *a.router.matrix.shape)) for each in stacks] or ([], [])
    tried: list[tuple[Sequence[Bank], Sequence[Activation]]] = [
        ([a.bank], [a.function]),
        (readings, [a.function]),
        ([*a.bank.without_biases()], [a.function]),
        ([a.bank], FUNCTIONS if is_mixed else ()),
        ([bank for bank in own if bank.label == a.bank.label], [a.function]),
        (own, [a.function]),
    ]
    starts = [a, *(replace(a, router=router) for router in _without_vectors(a.router))]
    for number, (banks, functions) in enumerate(tried):
        added = [a.added] if number else [a.added, *_fewer(a.added)]
        for start in starts[:1] if number else starts:
            for mixture in _nearest(site, start, banks, functions, wanted, added, most, computed):
                if site.off(computed.apply(mixture.predicted(site))) <= most:
                    return mixture
    return None


def _without_vectors(router: Router) -> Iterator[Router]:
    """Yield a router without what it adds to scores, before or behind the softmax."""
    none = np.zeros(len(router.bias))
    if router.preferred.any():
        yield router._replace(preferred=none)
        yield router._replace(preferred=none, bias=router.bias + router.preferred)
    if router.bias.any():
        yield router._replace(bias=none)


def _fewer(added: tuple[Term, ...]) -> Iterator[tuple[Term, ...]]:
    """Yield what is added without one of the terms, or without its gate."""
    for number, term in enumerate(added):
        yield added[:number] + added[number + 1 :]
        if term.gate:
            yield (*added[:number], Term(term.name), *added[number + 1 :])


def _changes(a: Mixture, b: Mixture) -> int:
    """Return how many settings of the routing differ."""
    same_factor = abs(b.factor - a.factor) <= SAME * abs(a.factor)
    differing = sum(mine != its for mine, its in zip(a.routing, b.routing, strict=True))
    return differing + (not same_factor) + (a.added != b.added)


def _nearest(
    site: Site,
    start: Mixture,
    banks: Sequence[Bank],
    functions: Sequence[Activation],
    wanted: np.ndarray,
    terms: Sequence[tuple[Term, ...]],
    most: float,
    computed: Sum | None = None,
) -> list[Mixture]:
    """Return the mixtures that reproduce an output at a few tokens: those with fewest changes first, of them the nearest.

    Args:
        site: the site.
        start: the mixture whose input and router these have, and against which changes are counted.
        banks: the weights that are tried.
        functions: the activation functions that are tried.
        wanted: the output, (example, position, feature).
        terms: the tensors that may be added.
        most: the relative L2 up to which an output is reproduced.
        computed: what a makes of its mixture. Of what b gives to a norm the direction is known, and taken from all else.
    """
    tokens = _few(site)
    rows = site.rows(start.source.values)[tokens]
    given = rows if start.given is None else site.rows(start.given)[tokens]
    logits, preferred = start.router.logits(rows), start.router.preferred
    routings = list(dict.fromkeys([*_routings(len(preferred)), *_grouped(site, len(preferred), start.routing)]))
    weights = {routing: routing.weights(logits, preferred) for routing in routings}
    at = {before.name: before.values for before in site.before}.__getitem__
    whole = site.rows(wanted)[tokens]
    seen: Callable[[np.ndarray], np.ndarray] = np.asarray
    length = float(np.linalg.norm(whole))
    if computed is not None and computed.free is not None:
        seen = replace(computed, free=computed.free[tokens]).seen
        length = float(np.linalg.norm(site.rows(site.a)[tokens]))
    rests = [whole - sum((site.rows(term.read(at))[tokens] for term in added), np.zeros(1)) for added in terms]
    wide = np.stack([seen(np.broadcast_to(rest, whole.shape)).ravel() for rest in rests])
    limit = 3 * most * length
    shares = np.stack([*weights.values()], 1)  # (token, routing, expert)
    found: list[tuple[int, float, Mixture]] = []
    for bank, function in itertools.product(banks, functions):
        outputs = bank.outputs(given, function)
        mixed = np.stack([seen(it).ravel() for it in (shares @ outputs.swapaxes(0, 1)).swapaxes(0, 1)])
        power = (mixed**2).sum(1) + 1e-300
        products = mixed @ wide.T
        # What is left of a rest without its part along a mixture, up to the rounding of the subtraction.
        left = (wide**2).sum(1) - products**2 / power[:, None]
        for number, place in np.argwhere(left <= (limit + SAME * length) ** 2):
            factor = float(products[number, place] / power[number])
            off = float(np.linalg.norm(wide[place] - factor * mixed[number]))
            if off <= limit and abs(factor) > SAME:
                exact = 1.0 if abs(factor - 1) <= SAME else factor
                routing, added = routings[number], terms[place]
                mixture = replace(start, bank=bank, function=function, routing=routing, factor=exact, added=added)
                found.append((_changes(start, mixture), off, mixture))
    return [mixture for *_, mixture in sorted(found, key=lambda entry: entry[:2])]


def _few(site: Site) -> np.ndarray:
    """Return the indices of a few tokens among those at real positions."""
    count = int(site.real.sum())
    return np.unique(np.linspace(0, count - 1, min(count, TOKENS)).astype(int))


def _routings(count: int) -> Iterator[Routing]:
    """Yield the ways in which tokens take experts, the frequent ones first."""
    numbers = [number for number in (2, 1, *range(3, MOST_TAKEN + 1)) if number < count] + [count]
    for number, score, normalised in itertools.product(numbers, ("softmax", "sigmoid"), (True, False)):
        yield Routing(score, number, normalised)


def _grouped(site: Site, count: int, start: Routing) -> Iterator[Routing]:
    """Yield the ways in which tokens take experts of some groups: those declared, and all beside a routing that is known."""
    names = ("expert_groups", "groups_per_token")
    declared = [tuple(site.declared(name, of_a=of_a) for name in names) for of_a in (True, False)]
    own = {(round(number), round(taken)) for number, taken in declared if number and taken and number > 1}
    for (number, taken), counted in itertools.product(sorted(own), (2, 1)):
        if count % number == 0 and count >= counted * number:
            groups = Groups(number, taken, counted)
            yield from (it._replace(groups=groups) for it in _routings(count) if it.number <= taken * count // number)
    for number in (number for number in GROUPS if count % number == 0):
        for taken, counted in itertools.product(range(1, number), (2, 1)):
            if count >= max(counted * number, start.number * number / taken):
                yield start._replace(groups=Groups(number, taken, counted))


def _sums(site: Site) -> list[tuple[Term, ...]]:
    """Return what may be added to the experts' sum: nothing, a residual, shared experts, or both."""
    near = list(sources(site, 3 * MOST_TERMS))
    gates = [source.name for source in near if source.values.shape == (*site.a.shape[:2], 1)]
    names = [source.name for source in near if source.values.shape == site.a.shape][:MOST_TERMS]
    terms = [Term(name, gate) for name in names for gate in ("", *gates[:1])]
    return [added for count in range(MOST_ADDED + 1) for added in itertools.combinations(terms, count)]


def _layer_of(site: Site) -> int | None:
    """Return the index of the site's layer in b."""
    names = {match.a: match.b for match in site.matching.matches}
    own = [names.get(weight.name) for weight in site.weights]
    layers = [weight.layer for weight in site.recordings[1].weights if weight.name in own]
    return max(set(layers), key=layers.count) if layers else site.layer


def _explanations(site: Site, a: Mixture, b: Mixture, computed: Sum, before: Changed | None) -> list[Explanation]:
    """Return the first setting in which two mixtures differ, with the others; what a norm is given is remembered."""
    whole = b.predicted(site) + (0.0 if before is None else before.values)
    predicted = computed.apply(whole)
    if not computed.name:
        return together([Explanation(*it, predicted, b.compute, b.inputs) for it in _differences(a, b)])

    def change(at: Values) -> np.ndarray:
        own = unset(at)(computed.name)
        return b.compute(at) - own if before is None else b.compute(at, unset(at)) + before.read(at) - own

    inputs = tuple(dict.fromkeys((computed.name, *b.inputs, *(() if before is None else before.inputs))))
    added = kept(change, inputs)
    further = (predicted, partial(changed_sum, computed, added, computed.name), inputs)
    found = together([Explanation(*it, *further, layer=site.layer, change=added) for it in _differences(a, b)])
    if found:
        remember(site, found[0], whole - site.a)
    return found


def _differences(a: Mixture, b: Mixture) -> Iterator[tuple[str, str, tuple[str, str]]]:
    mine, its = a.routing, b.routing
    if a.router.preferred.any() and not b.router.preferred.any():
        how = "added to the scores themselves" if b.router.bias.any() and not a.router.bias.any() else "missing"
        yield "expert-routing", "what the choice of experts adds to their scores is", ("added", how)
    elif a.router.bias.any() and not b.router.bias.any():
        yield "missing-bias", "the bias of the router is", ("added", "missing")
    if mine.number != its.number:
        yield "expert-routing", "experts for each token", (str(mine.number), str(its.number))
    if mine.groups != its.groups:
        texts = ["all" if it.groups is None else it.groups.text for it in (mine, its)]
        yield "expert-routing", "experts are taken from", (texts[0], texts[1])
    # Where one expert is taken and its score divided by itself, the kind of score makes no difference.
    if mine.score != its.score and not any(it.normalised and it.number == 1 for it in (mine, its)):
        yield "expert-routing", "the experts' scores are", (f"a {mine.score}", f"a {its.score}")
    if mine.normalised != its.normalised:
        texts = [("divided by their sum" if one.normalised else "taken as they are") for one in (mine, its)]
        yield "expert-routing", "the chosen experts' scores are", (texts[0], texts[1])
    if abs(a.factor - b.factor) > SAME * abs(a.factor):
        yield "expert-routing", "the experts' sum is multiplied by", (f"{a.factor:.6g}", f"{b.factor:.6g}")
    for term in a.added:
        other = next((it for it in b.added if it.name == term.name), None)
        if other is None:
            yield "missing-part", f"{last_part(term.name)} is", ("added", "left out")
        elif other.gate != term.gate:
            yield "missing-part", f"the gate {last_part(term.gate)} is", ("applied", "left out")
    if a.function is not b.function:
        yield cause_of(a.function, b.function), "the experts' activation is", (a.function.name, b.function.name)
    yield from differing_weights(a.bank, b.bank)
