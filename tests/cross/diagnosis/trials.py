"""What is tried: every fault in every framework that can show it, its pairs, and what has no cause; and how one trial ends."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import embgrad
from tests.cross.diagnosis import controls
from tests.cross.diagnosis.faults import BASES, FAULTS, FRAMEWORKS, PAIRS, UNKNOWN, Causes, Fault, shown_in
from tests.cross.diagnosis.worlds import KINDS, SIZES, world

Given = tuple[embgrad.results.EmbeddingGradients, embgrad.results.EmbeddingGradients, tuple[Any, Any] | None]

#: What a trial may be about.
GROUPS: Final = ("fault", "pair", "unknown", "random", "noise", "healthy")


@dataclass(frozen=True)
class Trial:
    """One comparison whose right answer is known.

    Attributes:
        group: one of `GROUPS`.
        row: the fault's name.
        column: the framework, or "a → b" for two.
        detail: the model, the seed, and whether the sides are swapped.
        with_models: whether the comparison is given the models.
        expected: the right answers.
        must_name: whether naming nothing is wrong.
        make: makes what is compared.
    """

    group: str
    row: str
    column: str
    detail: str
    with_models: bool
    expected: tuple[Causes, ...]
    must_name: bool
    make: Callable[[], Given]

    @property
    def name(self) -> str:
        models = "with models" if self.with_models else "numbers alone"
        return f"{self.row} | {self.column} | {self.detail} | {models}"


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        named: the causes of the first finding; empty for none.
        others: those of the others.
        agrees: whether the two were said to agree.
        text: the first finding's, or what went wrong.
    """

    trial: Trial
    named: Causes
    others: tuple[Causes, ...]
    agrees: bool
    relative_l2: float
    text: str
    seconds: float
    failed: bool = False

    @property
    def right(self) -> bool:
        if self.failed or (self.trial.group == "healthy" and not self.agrees):
            return False
        if not self.trial.must_name:
            return not self.false
        return any(sorted(self.named) == sorted(answer) for answer in self.trial.expected)

    @property
    def false(self) -> bool:
        """Whether a cause was named that is none; one of two that are there is none of these."""
        return bool(self.named) and not any(set(self.named) <= set(answer) for answer in self.trial.expected)


def run(trial: Trial) -> Outcome:
    a, b, models = trial.make()
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embgrad.EmbgradWarning)
            warnings.filterwarnings("error", "the hypothesis .* failed")
            found = embgrad.compare(a, b, models=models)
    except Exception as error:
        # A comparison that ends in an exception is a miss to be listed, not the end of the table.
        return Outcome(trial, (), (), False, 0.0, f"{type(error).__name__}: {error}", time.process_time() - start, True)
    seconds = time.process_time() - start
    named = [finding.causes for finding in found.findings]
    text = str(found.findings[0]) if found.findings else "; ".join(found.notes)
    relative = found.figures.relative_l2
    return Outcome(
        trial, tuple(named[0]) if named else (), tuple(map(tuple, named[1:])), found.agrees, relative, text, seconds
    )


def all_trials() -> Iterator[Trial]:
    yield from _of_faults()
    yield from _of_pairs()
    yield from _of_unknown()
    yield from _of_healthy()
    yield from _of_random()


def _of_faults() -> Iterator[Trial]:
    for number, fault in enumerate(FAULTS):
        for framework in FRAMEWORKS:
            kinds = list(shown_in(fault, framework, KINDS[framework]))
            if not kinds:
                continue
            kind, seed = kinds[number % len(kinds)], _seed(number, framework)
            swapped = framework == FRAMEWORKS[number % 3]
            yield _trial("fault", fault, (framework, framework), kind, seed, True, swapped)
            if framework == "torch":
                # What the numbers alone must tell is no matter of the framework that made them: one shows it.
                yield _trial("fault", fault, (framework, framework), kind, _seed(number + 1, framework), False, False)
        if number % 4 == 0:
            yield from _across("fault", fault, number // 4)


def _seed(number: int, framework: str) -> int:
    """The first two sizes in TensorFlow, where the third takes long; else all in turn."""
    return number % (2 if framework == "tensorflow" else len(SIZES))


def _across(group: str, fault: Fault, number: int) -> Iterator[Trial]:
    """The healthy side in PyTorch, the faulty one in another framework: rounding lies on top."""
    framework = ("tensorflow", "gluon", "gluon", "gluon")[number % 4]
    if framework not in fault.frameworks:
        framework = "tensorflow" if framework == "gluon" else "gluon"
    kind = fault.kinds[0]
    if framework in fault.frameworks and kind in ("classifier", "encoder", "tied"):
        seed = _seed(number + 1, framework)
        yield _trial(group, fault, ("torch", framework), kind, seed, not fault.alone or number % 2 == 0, False)


def _of_pairs() -> Iterator[Trial]:
    for number, fault in enumerate(PAIRS):
        shown = [framework for framework in FRAMEWORKS if framework in fault.frameworks]
        framework = shown[number % len(shown)]
        place = FRAMEWORKS.index(framework)
        kind = next(shown_in(fault, framework, KINDS[framework]))
        seed = _seed(number + place, framework)
        yield _trial("pair", fault, (framework, framework), kind, seed, True, number % 2 == 0)
        if fault.alone:
            yield _trial("pair", fault, (framework, framework), kind, seed, False, False)
        if number % 4 == 0:
            yield from _across("pair", fault, number // 4)


def _of_unknown() -> Iterator[Trial]:
    for number, fault in enumerate(UNKNOWN):
        shown = [framework for framework in FRAMEWORKS if framework in fault.frameworks]
        framework = shown[number % len(shown)]
        kind = next(shown_in(fault, framework, KINDS[framework]))
        yield _trial("unknown", fault, (framework, framework), kind, _seed(number, framework), True, False)


def _trial(
    group: str, fault: Fault, frameworks: tuple[str, str], kind: str, seed: int, with_models: bool, swapped: bool
) -> Trial:
    def make() -> Given:
        healthy, home = world(frameworks[0], kind, seed), world(frameworks[1], kind, seed)
        (a, b), models = fault.inject(home, healthy)
        for one in (healthy, home):  # dropout draws the same, whatever ran before
            one.native.seed(seed)
        if swapped:
            a, b, models = b, a, models[::-1]
        return a, b, models if with_models else None

    column = frameworks[1] if len(set(frameworks)) == 1 else " → ".join(frameworks)
    detail = f"{kind}, seed {seed}{', swapped' if swapped else ''}"
    must_name = bool(fault.expected) and (fault.alone or with_models) and not fault.silent
    return Trial(group, fault.name, column, detail, with_models, fault.expected, must_name, make)


def _of_healthy() -> Iterator[Trial]:
    pairs = (("torch", "tensorflow"), ("torch", "gluon"), ("tensorflow", "gluon"))
    for (one, other), kind, seed in itertools.product(pairs, ("classifier", "tied"), range(1)):

        def make(one: str = one, other: str = other, kind: str = kind, seed: int = seed) -> Given:
            base = BASES.get(kind, "cross-entropy")
            a, b = world(one, kind, seed), world(other, kind, seed)
            return a.healthy(base), b.healthy(base), (a.model, b.model)

        yield Trial("healthy", "healthy", f"{one} → {other}", f"{kind}, seed {seed}", True, (), False, make)


def _of_random() -> Iterator[Trial]:
    number = 0
    for framework, seed in itertools.product(("torch", "gluon"), range(2)):
        for kind in KINDS[framework]:
            for which in range(3 if BASES.get(kind, "cross-entropy") == "cross-entropy" else 1):
                for maker in [*controls.RANDOM, *controls.NOISE]:
                    number += 1
                    if number % 5 == 1:
                        yield _control(framework, kind, seed, which, maker, number, False)
                    if number % 97 == 0 and which != 1:  # these cost more
                        yield _control(framework, kind, seed, which, maker, number, True)


def _control(framework: str, kind: str, seed: int, which: int, maker: Any, number: int, with_models: bool) -> Trial:
    def make() -> Given:
        home = world(framework, kind, seed)
        a = controls.healthy_results(home)[which]
        b = controls.unrelated(a, maker, number) if isinstance(maker, str) else controls.noisy(a, maker, number)
        return a, b, (home.model, home.model) if with_models else None

    group, row = ("random", maker) if isinstance(maker, str) else ("noise", f"noise of {maker:g}")
    return Trial(group, row, framework, f"{kind}, seed {seed}, batch {which}", with_models, (), False, make)
