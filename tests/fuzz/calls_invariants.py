"""Calls of `gradients` in pairs: what must not change, or changes in a known way, when the call is made otherwise."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.batches import drawn_mask
from tests.fuzz.cases import UNUSED, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.worlds import FLOOR, World, drawn_world

Found = embgrad.EmbeddingGradients


class _Asked:
    """A classifier that takes a mask, a batch for it, and labels."""

    def __init__(self, draw: Draw, world: World, examples: int = 2) -> None:
        self.world = world
        shape = draw.whole(examples, 4), draw.whole(1, 5)
        self.ids = draw.wholes(0, world.vocab - 1, shape)
        self.mask = drawn_mask(draw, shape) if world.architecture == "masked" else np.ones(shape, int)
        self.labels = draw.wholes(0, world.classes - 1, shape[0])
        self.vectors = draw.normal(2, shape[0], world.classes)

    def run(
        self, objective: Any = None, rows: Any = slice(None), ids: Any = None, mask: Any = None, **options: Any
    ) -> Found:
        """The gradients, of some of the examples, or of other ids and mask."""
        objective = embgrad.CrossEntropy(self.labels[rows]) if objective is None else objective
        ids, mask = (self.ids if ids is None else ids)[rows], (self.mask if mask is None else mask)[rows]
        batch = embgrad.TokenBatch(ids, mask if self.world.architecture == "masked" else None)
        return embgrad.gradients(self.world.model, batch, objective, **options)


def invariants(draw: Draw, framework: str) -> Case:
    world = drawn_world(draw, framework, ("masked", "hidden", "mean"), least=2)
    one = _Asked(draw, world)
    tolerance = 5 * world.tolerance
    kinds: dict[str, Callable[[Draw, _Asked, float], Any]] = {
        "linear in the objective": _linear,
        "order of the examples": _order,
        "split in two": _halves,
        "padding": _padding,
        "in micro-batches": _micro_batches,
        "one pullback an example": _one_by_one,
        "the framework's own gradient of the table": _own,
        "the same call again": _again,
        "two threads at once": _threads,
        "texts": _texts,
    }
    if world.architecture != "masked":
        del kinds["padding"]
    if world.architecture == "masked":
        del kinds["the framework's own gradient of the table"]
    kind = draw.one(list(kinds))
    check = kinds[kind](draw, one, tolerance)
    text = f"model: {world}\nids={one.ids.tolist()}\nmask={one.mask.tolist()}\nlabels={one.labels.tolist()}\ninvariant: {kind}"
    # The framework's own pass leaves what it leaves: its state is not the library's affair.
    own = kind.startswith("the framework's")
    return Case(
        "gradients",
        text,
        check,
        lambda found: None,
        worlds=[] if own else [world],
        arguments=[one.ids, one.mask],
        warns=kind == "texts",
        random_moves=own,
        framework=framework,
        foreign=UNUSED if own else (),
    )


def _linear(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    first, second = one.vectors
    share = float(draw.random.uniform(-2, 2))

    def check() -> None:
        both = one.run(embgrad.Projection(first + share * second))
        parts = [one.run(embgrad.Projection(vector)) for vector in (first, second)]
        expected = parts[0].values.astype(np.float64) + share * parts[1].values
        expect_close(both.values, expected, tolerance, "the sum's values", _scale(*parts))

    return check


def _scale(*results: Found) -> float:
    return max(FLOOR, *(float(np.abs(one.values).max()) for one in results))


def _order(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    order = draw.random.permutation(len(one.ids))

    def check() -> None:
        plain, turned = one.run(), one.run(rows=order)
        expect_close(turned.values, plain.values[order], tolerance, "values", _scale(plain))
        expect_close(turned.objective, plain.objective[order], tolerance, "objective", 1.0)
        expect_close(turned.table().to_dense(), plain.table().to_dense(), tolerance, "table()", _scale(plain))

    return check


def _halves(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    place = draw.whole(1, len(one.ids) - 1)

    def check() -> None:
        plain, first, second = one.run(), one.run(rows=slice(place)), one.run(rows=slice(place, None))
        expect_close(np.concatenate([first.values, second.values]), plain.values, tolerance, "values", _scale(plain))
        tables = first.table().to_dense() + second.table().to_dense()
        expect_close(tables, plain.table().to_dense(), tolerance, "table()", _scale(plain))

    return check


def _padding(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    before, after = draw.whole(0, 3), draw.whole(0, 3)
    pad = draw.whole(0, one.world.vocab - 1)
    positions = one.ids.shape[1]

    def check() -> None:
        widths = ((0, 0), (before, after))
        plain = one.run()
        wide = one.run(ids=np.pad(one.ids, widths, constant_values=pad), mask=np.pad(one.mask, widths))
        inside = wide.values[:, before : before + positions]
        expect_close(inside, plain.values, tolerance, "values", _scale(plain))
        expect_close(wide.values.sum((0, 1)), plain.values.sum((0, 1)), tolerance, "what is left", _scale(plain))
        expect_equal(wide.pad_leak, 0.0, "pad_leak")

    return check


def _micro_batches(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    size = draw.whole(1, 5)

    def check() -> None:
        plain, pieces = one.run(), one.run(batch_size=size)
        expect_close(pieces.values, plain.values, tolerance, "values", _scale(plain))
        expect_close(pieces.objective, plain.objective, tolerance, "objective", 1.0)
        expect_equal(pieces.ids, plain.ids, "ids")
        expect_equal(pieces.mask, plain.mask, "mask")

    return check


def _one_by_one(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    def check() -> None:
        plain, split = one.run(), one.run(split=True)
        expect_close(split.values, plain.values, tolerance, "values", _scale(plain))
        for mine, theirs in zip(split.per_example(), plain.per_example(), strict=True):
            expect_close(mine.to_dense(), theirs.to_dense(), tolerance, "per_example()", _scale(plain))
        norms = embgrad.table_norms(plain)
        expect_close(norms, [table.norm() for table in plain.per_example()], 1e-9, "table_norms")
        products = embgrad.table_products(plain)
        dense = np.stack([table.to_dense().astype(np.float64) for table in plain.per_example()])
        expect_close(products, np.einsum("ivd,jvd->ij", dense, dense), 1e-6, "table_products", 1e-6)

    return check


def _own(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    if one.world.frozen:
        one.world.frozen = False
        one.world.model = one.world.built()

    def check() -> None:
        own = one.world.harness.table_gradient(one.world.model, one.ids, one.labels)
        found = one.run()
        expect_close(found.table().to_dense(), own, tolerance, "table()", max(FLOOR, float(np.abs(own).max())))
        summed = sum(table.to_dense().astype(np.float64) for table in found.per_example())
        expect_close(summed, own, tolerance, "the sum of per_example()", max(FLOOR, float(np.abs(own).max())))

    return check


def _again(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    def check() -> None:
        first, second = one.run(), one.run()
        expect_equal(second.values, first.values, "the same call's values")
        expect_equal(second.objective, first.objective, "the same call's objective")

    return check


def _threads(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    """Two threads on one model, each with examples and an objective of its own."""
    place = draw.whole(1, len(one.ids) - 1)
    rows = [slice(place), slice(place, None)]

    def check() -> None:
        plain = one.run()
        with ThreadPoolExecutor(2) as pool:
            found = [each.result() for each in [pool.submit(one.run, rows=some) for some in rows * 2]]
        for some, result in zip(rows * 2, found, strict=True):
            expect_close(result.values, plain.values[some], tolerance, "a thread's values", _scale(plain))
            expect_close(result.objective, plain.objective[some], tolerance, "a thread's objective", 1.0)

    return check


def _texts(draw: Draw, one: _Asked, tolerance: float) -> Callable[[], None]:
    """Texts with a tokenizer, against the batch that it makes of them."""
    texts = ["".join(map(chr, row[: draw.whole(1, len(row))] + ord("a"))) for row in one.ids]

    def tokenizer(text: str, pair: Any = None) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def check() -> None:
        batch = embgrad.encode(texts, tokenizer)
        objective = embgrad.CrossEntropy(one.labels)
        mine = embgrad.gradients(one.world.model, texts, objective, tokenizer=tokenizer)
        theirs = embgrad.gradients(one.world.model, batch, objective)
        expect_equal(mine.ids, batch.ids, "ids")
        expect_equal(mine.values, theirs.values, "values of texts")

    return check


def native_points(draw: Draw, framework: str) -> Case:
    """Every point that `points` tells of can be asked for by its name; one with a role gives what the role gives."""
    architectures = ("layers", "repeated", "hidden", "mean", "flat", "positional", "named", "two_tables", "twice")
    world = drawn_world(draw, framework, architectures, exact=True)
    examples, positions = draw.whole(1, 3), draw.whole(4, 5)  # not as many of the one as of the other
    ids = draw.wholes(2, world.vocab - 1, (examples, positions))
    objective = embgrad.Sum(output="sequence" if world.architecture == "named" else None)

    def run() -> Any:
        listed = embgrad.points(world.model, ids)
        return [(point, *_asked_for(world.model, ids, objective, point)) for point in listed]

    def judge(found: list[Any]) -> None:
        reached = 0
        for point, by_name, by_role in found:
            if isinstance(by_name, embgrad.EmbgradError):
                expect(str(by_name).strip(), f"{point.name}: an error that says nothing")
                expect(by_role is None or point.roles == ("word",), f"{point.name} with {point.roles}: {by_name}")
                continue
            reached += 1
            expect_equal(by_name.values.size, int(np.prod(point.shape)), f"the size at {point.name}")
            if by_role is not None and by_role.values.shape == by_name.values.shape:
                expect_equal(by_name.values, by_role.values, f"the values at {point.name} and at {point.roles[0]!r}")
        expect(reached, f"no point gave a result: {[str(one) for one in found]}")

    text = f"model: {world}\nids={ids.tolist()}\nobjective: {objective!r}\nat: every point by its native name"
    return Case("gradients", text, run, judge, (), [world], [ids], framework=framework)


def _asked_for(model: Any, ids: np.ndarray, objective: Any, point: embgrad.Point) -> tuple[Any, Any]:
    """The result by the point's name, or the refusal; and by its role, where it has one that means it alone."""
    try:
        by_name: Any = embgrad.gradients(model, ids, objective, at=point.name)
    except embgrad.EmbgradError as error:
        by_name = error
    role = next((role for role in point.roles if role != "word"), None)
    return by_name, None if role is None else embgrad.gradients(model, ids, objective, at=role)
