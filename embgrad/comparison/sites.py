"""Pairs of points with the same tensor in two models."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.recording import FINAL, HeldWeight, Recording, Tensor, contains
from embgrad.comparison.weights import Match, Matching, kind_of
from embgrad.model_points.points import INPUT, OUTPUT
from embgrad.model_points.roles import LAYER

__all__ = ["Pair", "count_layers", "difference", "in_order", "name_of", "pair_points"]

#: The role of the last layer, which models with other numbers of layers share.
LAST: Final = f"{LAYER}.-1"

#: The relative L2 up to which an output is the product of an input with a matrix.
PRODUCT: Final = 1e-2

#: The share of a product's largest entry from which what is added to it is a bias.
LEAST_BIAS: Final = 1e-4


@dataclass(frozen=True, eq=False)
class Pair:
    """A point of a and the point of b that holds the same tensor.

    Attributes:
        name: a readable name: the path in a, with ":input" where it is a module's input.
        a: the point's key in a.
        b: the point's key in b.
        features_a: the features of a's tensor, in order; None for all.
        features_b: the features of b's tensor that hold these; None for the same.
        time: when a computed it.
        bias_a: what a adds behind the point, and b before it; None for nothing.
        bias_b: what b adds behind the point, and a before it.
    """

    name: str
    a: str
    b: str
    features_a: np.ndarray | None = None
    features_b: np.ndarray | None = None
    time: float = 0.0
    bias_a: np.ndarray | None = None
    bias_b: np.ndarray | None = None

    def in_a(self, values: np.ndarray) -> np.ndarray:
        """Return the features of a's tensor that belong to the pair, with the bias that follows."""
        return _features(values, self.features_a, self.bias_a)

    def in_b(self, values: np.ndarray) -> np.ndarray:
        """Return the features of b's tensor that belong to the pair, in a's order, with the bias that follows."""
        return _features(values, self.features_b, self.bias_b)

    def put_in_b(self, values: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return b's tensor with the pair's features replaced by those of a."""
        new = new if self.bias_b is None else new - self.bias_b
        if self.features_b is None:
            return new
        changed = np.array(values)
        changed[..., self.features_b] = new
        return changed

    def holds(self, other: Pair) -> bool:
        """Return whether another pair is this, or a part of its tensor."""
        return self.name == other.name or (
            self.a == other.a and self.features_a is None and other.features_a is not None
        )

    @property
    def gradients(self) -> Pair:
        """The pair as gradients and the rows of weights are read and put in, which no bias changes."""
        return replace(self, bias_a=None, bias_b=None)

    @property
    def reversed(self) -> Pair:
        """The pair with the two sides exchanged."""
        return Pair(self.name, self.b, self.a, self.features_b, self.features_a, self.time, self.bias_b, self.bias_a)


def _features(values: np.ndarray, features: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
    chosen = values if features is None else np.asarray(values[..., features])
    return chosen if bias is None else chosen + bias.astype(chosen.dtype)


def pair_points(a: Recording, b: Recording, matching: Matching) -> list[Pair]:
    """Return the points of both sides that hold the same tensor, in a's order.

    These are the points with the same role, the inputs and outputs of modules whose weights belong together, and the models'
    outputs.
    """
    shifted = _shifted(a, b, matching) if count_layers(a) != count_layers(b) else frozenset()
    pairs = [*_by_roles(a, b, shifted), *_by_modules(a, b, matching)]
    if FINAL in a.tensors and FINAL in b.tensors:
        pairs.extend(_whole(FINAL, a.tensors[FINAL], b.tensors[FINAL]))
    unique: dict[tuple[str, str, bytes], Pair] = {}
    for pair in pairs:
        features = b"" if pair.features_a is None else pair.features_a.tobytes()
        unique.setdefault((pair.a, pair.b, features), pair)
    return _with_unique_names(in_order(unique.values(), a))


def in_order(pairs: Iterable[Pair], recording: Recording) -> list[Pair]:
    """Return pairs of points in the order in which their first side, which this recording is of, computed them."""
    order = {key: number for number, key in enumerate(recording.tensors)}
    return sorted(pairs, key=lambda pair: (pair.time, order[pair.a], pair.name))


def _with_unique_names(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs; of a lookup and the output of its module, and of several partners of one point, the later are renamed."""
    seen: Counter[str] = Counter()
    named = []
    for pair in pairs:
        seen[pair.name] += 1
        if seen[pair.name] == 1:
            named.append(pair)
        elif pair.a.partition("#")[0].endswith(f":{OUTPUT}") and seen[pair.name] == 2:
            named.append(replace(pair, name=f"{pair.name}:{OUTPUT}"))
        else:
            named.append(replace(pair, name=f"{pair.name} ({seen[pair.name]})"))
    return named


def difference(reference: np.ndarray, other: np.ndarray, real: np.ndarray) -> float:
    """Return the relative L2 of one tensor against another at real positions; infinite where either is not finite there.

    Args:
        reference: (example, position, feature).
        other: of the same shape.
        real: bool, (example, position), the positions that count; not used where a tensor has no positions.
    """
    first, second = (
        (values[real] if values.shape[:2] == real.shape else values.reshape(-1, values.shape[-1])).astype(np.float64)
        for values in (reference, other)
    )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 0.0 if np.array_equal(first, second, equal_nan=True) else float("inf")
    length = float(np.linalg.norm(first))
    distance = float(np.linalg.norm(second - first))
    return distance / length if length else (float("inf") if distance else 0.0)


def count_layers(recording: Recording) -> int:
    """Return the number of layers, by the roles of the points, or else by the weights."""
    roles = {role for tensor in recording.tensors.values() for role in tensor.roles}
    by_roles = sum(role.startswith(f"{LAYER}.") and role != LAST for role in roles)
    return by_roles or len({weight.layer for weight in recording.weights} - {None})


def _shifted(a: Recording, b: Recording, matching: Matching) -> frozenset[str]:
    """Return the roles of layers whose weights are those of a layer with another number on the other side."""
    layers_a, layers_b = ({weight.name: weight.layer for weight in side.weights} for side in (a, b))
    pairs = [(layers_a[match.a], layers_b[match.b]) for match in matching.matches if match.by_value]
    return frozenset(f"{LAYER}.{number}" for pair in pairs if None not in pair and len({*pair}) == 2 for number in pair)


def _by_roles(a: Recording, b: Recording, shifted: Container[str]) -> Iterator[Pair]:
    roles = dict.fromkeys(role for tensor in a.tensors.values() for role in tensor.roles)
    for role in roles:
        if role in shifted:
            continue
        first, second = a.by_role(role), b.by_role(role)
        if first is not None and second is not None:
            yield from _whole(name_of(first), first, second)


def _whole(name: str, first: Tensor, second: Tensor) -> Iterator[Pair]:
    if first.values.shape == second.values.shape:
        yield Pair(name, first.key, second.key, time=first.time)


def name_of(tensor: Tensor) -> str:
    """Return the readable name of a point: its path, with its number from the second call, and with ":input" where it is one."""
    path = tensor.path if tensor.number == 0 else f"{tensor.path}#{tensor.number}"
    return f"{path}:{INPUT}" if tensor.side == INPUT else path


def _by_modules(a: Recording, b: Recording, matching: Matching) -> Iterator[Pair]:
    held_a, held_b = ({weight.name: weight for weight in side.weights} for side in (a, b))
    partners: dict[str, list[Match]] = defaultdict(list)
    for match in matching.matches:
        partners[held_a[match.a].module].append(match)
    split = {held_a[name].module for name in matching.parts}
    vectors_alone, loose = holders = _holders_of_products(a), _holders_of_products(b)
    biases = _Biases((a, b), (held_a, held_b), holders, matching)
    composed = _composed(held_a, held_b, matching, loose)
    owners: dict[str, set[str]] = defaultdict(set)
    for match in matching.matches:
        owners[held_b[match.b].module].add(held_a[match.a].module)
    for module, matches in partners.items():
        if module in vectors_alone:
            continue
        matrices = [match for match in matches if len(held_a[match.a].shape) > 1]
        others = {held_b[match.b].module for match in matches}
        if matrices and len(others) > 1:  # in functions a matrix is what is called, and a bias belongs to no module
            others = {other for other in others - loose if b.of_module(other, OUTPUT) is not None}
        if len(others) == 1 and module not in split and not others & composed.keys():
            other = next(iter(others))
            # A layer that computes its norms itself is no norm, nor one that never calls the norm that it holds.
            if not matrices and (
                len(owners[other]) > 1 or _holds_others(held_a, module) != _holds_others(held_b, other)
            ):
                continue
            permuted = next((match for match in matrices if len(matrices) == 1 and match.order is not None), None)
            pairs = [biases.added(pair, module, other) for pair in _of_two_modules(a, b, module, other, permuted)]
            # The frequencies of rotary positions, for example, are held by modules that take and return other tensors.
            if matrices or any(a.tensors[pair.a].side == OUTPUT for pair in pairs):
                yield from pairs
    for other, modules in composed.items():
        # A module that never calls a part that it holds leaves out what the part computes.
        if not _holds_others(held_b, other, matrices=True):
            yield from _around(a, b, modules, other)
    for name, parts in matching.parts.items():
        for part in parts if not {held_b[part.name].module for part in parts} & composed.keys() else ():
            owner, other = held_a[name].module, held_b[part.name].module
            for pair in _of_parts(a, b, held_a[name], held_b[part.name], part.rows, part.others):
                yield biases.added(pair, owner, other)


def _holds_others(held: Mapping[str, HeldWeight], module: str, *, matrices: bool = False) -> bool:
    """Return whether modules inside a module hold weights as well, or matrices."""
    least = 2 if matrices else 0
    return any(
        weight.module != module and contains(module, weight.module) and len(weight.shape) >= least
        for weight in held.values()
    )


class _Biases:
    """The biases that one model adds behind a product, as functions do, and the other within a module.

    Args:
        sides: the recordings of a and of b.
        weights: the weights of each by name.
        holders: the modules of each whose products are points.
        matching: the weights by their partners.
    """

    def __init__(
        self,
        sides: tuple[Recording, Recording],
        weights: tuple[Mapping[str, HeldWeight], Mapping[str, HeldWeight]],
        holders: tuple[Container[str], Container[str]],
        matching: Matching,
    ) -> None:
        self._sides = sides
        self._held: list[dict[str, list[HeldWeight]]] = []
        self._outside: list[list[HeldWeight]] = []
        for side, held, loose in zip(sides, weights, holders, strict=True):
            by_module: dict[str, list[HeldWeight]] = defaultdict(list)
            for weight in held.values():
                by_module[weight.module].append(weight)
            self._held.append(by_module)
            outside = (it for it in held.values() if it.module in loose or side.of_module(it.module, OUTPUT) is None)
            self._outside.append(list(outside))
        self._partners = (
            {match.b: weights[0][match.a] for match in matching.matches},
            {match.a: weights[1][match.b] for match in matching.matches},
        )

    def added(self, pair: Pair, module: str, other: str) -> Pair:
        """Return a pair with the biases that the sides add behind it."""
        first, second = self._sides[0].tensors[pair.a], self._sides[1].tensors[pair.b]
        if first.side == INPUT:
            return pair
        return replace(
            pair,
            bias_a=self._bias(0, second, other, pair.features_a, pair.features_b, first),
            bias_b=self._bias(1, first, module, pair.features_b, pair.features_a, second),
        )

    def _bias(
        self,
        side: int,
        within: Tensor,
        module: str,
        features: np.ndarray | None,
        others: np.ndarray | None,
        product: Tensor,
    ) -> np.ndarray | None:
        """Return the bias that a side adds behind its product, in the pair's order; None for none.

        Args:
            side: 0 for a, 1 for b.
            within: the tensor of the other side, whose module adds the bias itself.
            module: that module's path.
            features: the features of the side's tensor.
            others: those of the other's.
            product: the side's tensor.
        """
        own = next((it for it in self._held[1 - side][module] if _size(it) == within.features), None)
        if own is None:
            return None
        partner = self._partners[side].get(own.name)
        outside = [it for it in self._outside[side] if _size(it) == product.features]
        if partner is not None and partner not in outside:
            return None
        wanted = own.get().ravel() if others is None else own.get().ravel()[others]
        for weight in [*([] if partner is None else [partner]), *outside]:
            chosen = weight.get().ravel() if features is None else weight.get().ravel()[features]
            if weight is partner or np.allclose(chosen, wanted, atol=1e-6):
                return None if self._contains(side, product, weight.get().ravel()) else np.asarray(chosen)
        return None

    def _contains(self, side: int, product: Tensor, bias: np.ndarray) -> bool:
        """Return whether a bias is in a product already, as functions return it that take both."""
        given = self._sides[side].of_module(product.path, INPUT, product.number)
        matrices = [weight for weight in self._held[side][product.path] if len(weight.shape) > 1]
        if given is None or len(matrices) != 1 or _size(matrices[0]) != given.features * product.features:
            return False
        rest = _rest(given, product, matrices[0])
        if rest is not None:
            return float(np.linalg.norm(rest - bias)) < float(np.linalg.norm(rest))
        # Where it multiplies by another layer's matrix, it adds that layer's bias.
        kind = kind_of(matrices[0].name)
        others = (it for held in self._held[side].values() for it in held if kind_of(it.name) == kind)
        rests = (_rest(given, product, other) for other in others if _size(other) == _size(matrices[0]))
        rest = next((rest for rest in rests if rest is not None), None)
        return rest is not None and float(np.linalg.norm(rest)) > LEAST_BIAS * float(np.abs(product.values).max())


def _rest(given: Tensor, product: Tensor, matrix: HeldWeight) -> np.ndarray | None:
    """Return what is added to the product of a tensor with a matrix, (feature,); None where it is another product."""
    values = matrix.get()
    for turned in (values.reshape(-1, given.features), values.reshape(given.features, -1).T):
        if is_product(given.values, turned, product.values):
            x, y = (it.reshape(-1, it.shape[-1]).astype(np.float64) for it in (given.values, product.values))
            return np.asarray((y - x @ turned.T.astype(np.float64)).mean(0))
    return None


def _holders_of_products(recording: Recording) -> frozenset[str]:
    """Return the paths of the modules with several matrices, products with which are points by the matrices' names."""
    own = (weight.module for weight in recording.weights if weight.module and weight.name.endswith(weight.module))
    return frozenset(path.rpartition(".")[0] for path in own) - {""}


def _size(weight: HeldWeight) -> int:
    return int(np.prod(weight.shape))


def _around(a: Recording, b: Recording, modules: Iterable[str], other: str) -> Iterator[Pair]:
    """Yield the pairs at the input and the output of a module of b that computes what several modules of a compute in turn.

    Where the last of them is given what the first is, all are branches, of which none returns what b's module does.
    """
    calls = [tensor for tensor in a.tensors.values() if tensor.path in modules and tensor.number == 0]
    given, returned = ([tensor for tensor in calls if tensor.side == side] for side in (INPUT, OUTPUT))
    first, last = b.of_module(other, INPUT), b.of_module(other, OUTPUT)
    if not given or not returned or first is None or last is None:
        return
    entry = a.of_module(returned[-1].path, INPUT)
    if entry is not None and not np.array_equal(entry.values, given[0].values):
        yield from _whole(name_of(given[0]), given[0], first)
        yield from _whole(name_of(returned[-1]), returned[-1], last)


def _composed(
    held_a: Mapping[str, HeldWeight], held_b: Mapping[str, HeldWeight], matching: Matching, loose: Container[str]
) -> dict[str, set[str]]:
    """Return the modules of b that hold matrices of several modules of a, such as an attention that multiplies itself.

    Args:
        held_a: the weights of a by name.
        held_b: those of b.
        matching: the weights by their partners.
        loose: the modules of b whose products are points.

    Returns:
        By the module of b the modules of a, also those of vectors, such as the norm behind an attention.
    """
    owners: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    held: dict[str, set[str]] = defaultdict(set)
    pairs = [(match.a, match.b) for match in matching.matches]
    for mine, its in [*pairs, *((name, part.name) for name, parts in matching.parts.items() for part in parts)]:
        held[held_b[its].module].add(held_a[mine].module)
        if len(held_b[its].shape) > 1 and held_b[its].module not in loose:
            owners[held_b[its].module][its].add(held_a[mine].module)
    return {
        module: held[module]
        for module, owned in owners.items()
        if len({frozenset(mine) for mine in owned.values()}) > 1
    }


def _of_two_modules(a: Recording, b: Recording, module: str, other: str, permuted: Match | None) -> Iterator[Pair]:
    for tensor in a.tensors.values():
        if tensor.path != module:
            continue
        partner = b.of_module(other, tensor.side, tensor.number)
        if partner is None or partner.values.shape != tensor.values.shape:
            continue
        order = None
        if permuted is not None and permuted.order is not None and len(permuted.order) == tensor.features:
            order = permuted.order if _is_side_of(a, module, permuted, tensor) else None
        yield Pair(name_of(tensor), tensor.key, partner.key, None, order, tensor.time)


def _is_side_of(a: Recording, module: str, match: Match, tensor: Tensor) -> bool:
    """Return whether the permuted axis of a's matrix holds this tensor's features."""
    values = next(weight.get() for weight in a.weights if weight.name == match.a)
    matrix = values.reshape(len(values), -1)
    first, last = a.of_module(module, INPUT, tensor.number), a.of_module(module, OUTPUT, tensor.number)
    if first is None or last is None:
        return tensor.side == OUTPUT
    rows_are_outputs = is_product(first.values, matrix, last.values)
    return (match.axis == 0) == (rows_are_outputs == (tensor.side == OUTPUT))


def is_product(before: np.ndarray, matrix: np.ndarray, behind: np.ndarray) -> bool:
    """Return whether an output is the product of an input with the transpose of a matrix, (output, input), up to a bias."""
    if matrix.shape != (behind.shape[-1], before.shape[-1]):
        return False
    x, y = (values.reshape(-1, values.shape[-1]).astype(np.float64) for values in (before, behind))
    rest = y - x @ matrix.T.astype(np.float64)
    rest -= rest.mean(0)
    return float(np.linalg.norm(rest)) <= PRODUCT * float(np.linalg.norm(y - y.mean(0))) + 1e-12


def _of_parts(
    a: Recording, b: Recording, weight: HeldWeight, other: HeldWeight, rows: np.ndarray, others: np.ndarray
) -> Iterator[Pair]:
    """Yield the pairs of a module whose matrix is fused or split on the other side.

    A matrix that is split by its inputs, as where several devices compute terms of one sum, has parts of the input alone.
    """
    given = a.of_module(weight.module, INPUT), b.of_module(other.module, INPUT)
    by_inputs = None not in given and len({tensor.features for tensor in given if tensor is not None}) > 1
    for tensor in a.tensors.values():
        if tensor.path != weight.module or tensor.side is None:
            continue
        partner = b.of_module(other.module, tensor.side, tensor.number)
        if partner is None or partner.values.shape[:2] != tensor.values.shape[:2]:
            continue
        if tensor.side == INPUT and not by_inputs and tensor.values.shape == partner.values.shape:
            yield Pair(name_of(tensor), tensor.key, partner.key, time=tensor.time)
        elif (tensor.side == INPUT) == by_inputs:
            if rows.max(initial=0) >= tensor.features or others.max(initial=0) >= partner.features:
                continue
            whole_a = len(rows) == tensor.features and np.array_equal(rows, np.arange(len(rows)))
            whole_b = len(others) == partner.features and np.array_equal(others, np.arange(len(others)))
            name = name_of(tensor) if whole_a else f"{name_of(tensor)}[{rows.min()}:{rows.max() + 1}]"
            yield Pair(
                name,
                tensor.key,
                partner.key,
                None if whole_a else rows,
                None if whole_b else others,
                tensor.time,
            )
