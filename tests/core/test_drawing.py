"""Whether what is run goes by numbers that it draws: looked at, drawn by another way, or in another thread."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embgrad.drawing import Drawing
from embgrad.generators import user_code_beside

DRAWS: list[Callable[[], Any]] = [
    lambda: random.random(),
    lambda: random.uniform(0, 1),
    lambda: np.random.random(),
    lambda: np.random.random_sample(),
    lambda: np.random.rand(),
    lambda: np.random.uniform(0, 1),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_that_nobody_looks_at_is_of_no_account(draw: Callable[[], Any]) -> None:
    with Drawing() as drawing:
        share, training = draw(), False
        assert not (training and share < 0.5)
        _ = share
    assert not drawing.seen
    assert type(draw()) is float


LOOKS: list[Callable[[Any], Any]] = [
    *(lambda one: one < 0.5, lambda one: one >= 0.5, lambda one: one == 0.5, lambda one: one != 0.5, bool, float, int),
    *(lambda one: 2 * one, lambda one: one + 1, lambda one: 1 - one, lambda one: -one, abs, round, math.floor),
    *(lambda one: 1 / one, lambda one: one**2, lambda one: 2**one, lambda one: one % 1, lambda one: divmod(one, 1)),
    *(np.asarray, lambda one: np.ones(2) * one, lambda one: one.is_integer(), str, lambda one: f"{one:.3f}", hash),
    *(math.sqrt, lambda one: max(0.5, one), lambda one: sorted([0.5, one]), lambda one: len({one: 1})),
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_number_that_is_looked_at_counts_and_is_what_was_drawn(look: Callable[[Any], Any]) -> None:
    random.seed(3)
    plain = look(random.random())
    random.seed(3)
    with Drawing() as drawing:
        found = look(random.random())
    assert drawing.seen
    np.testing.assert_array_equal(np.asarray(found, float), np.asarray(plain, float))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.randint(0, 9),
        lambda: random.choice("ab"),
        lambda: random.shuffle([1, 2]),
        lambda: np.random.rand(2),
        lambda: np.random.normal(),
        lambda: np.random.randint(9),
        lambda: random.seed(5),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_is_drawn_by_another_way_counts(draw: Callable[[], Any], before: bool) -> None:
    with Drawing() as drawing:
        if before:
            draw()
            random.random()
        else:
            random.random()
            draw()
    assert drawing.seen


def test_nothing_drawn_is_nothing_seen() -> None:
    with Drawing() as drawing:
        pass
    assert not drawing.seen


@pytest.mark.parametrize("sort", [random.Random, np.random.default_rng, np.random.RandomState])
def test_what_a_generator_of_the_models_own_gives_counts(sort: Any) -> None:
    generator = sort(0)
    with Drawing([generator]) as drawing:
        pass
    assert not drawing.seen
    with Drawing([generator]) as drawing:
        generator.random()
    assert drawing.seen
    assert not drawing.suspected


def test_what_the_system_draws_from_may_have_been_drawn_from() -> None:
    with Drawing([random.SystemRandom()]) as drawing:
        pass
    assert drawing.seen


def test_what_another_thread_draws_is_its_own() -> None:
    """As the source of a stream, which is read ahead; it has plain numbers."""
    drew: list[type] = []

    def source() -> None:
        with user_code_beside():
            drew.append(type(random.random()))

    with Drawing() as drawing:
        thread = threading.Thread(target=source)
        thread.start()
        thread.join()
    assert drew == [float]
    assert (drawing.seen, drawing.suspected) == (False, True)
