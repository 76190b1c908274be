"""Makes the calls in order, reports failures immediately, and counts."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.fuzz.cases import Case
from tests.fuzz.registry import FRAMEWORKS, drawn_case, framework_of
from tests.fuzz.verdicts import Verdict, verdict_of


@dataclass
class Tally:
    """The counts of verdicts, error classes and warnings, and the numbers of failed calls."""

    verdicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    warned: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, number: int, case: Case, verdict: Verdict) -> None:
        self.verdicts[case.function, case.framework, verdict.kind] += 1
        self.warned += verdict.warned
        if verdict.error is not None:
            self.errors[verdict.error] += 1
        if verdict.kind == "failed":
            self.failed.append(number)

    @property
    def calls(self) -> int:
        return sum(self.verdicts.values())


def numbers(seed: int, calls: int, frameworks: Sequence[str]) -> Iterator[int]:
    unknown = set(frameworks) - set(FRAMEWORKS)
    if unknown:
        raise ValueError(f"no call is of {', '.join(sorted(unknown))}: the frameworks are {', '.join(FRAMEWORKS)}")
    number = done = 0
    while done < calls:
        if framework_of(seed, number) in frameworks:
            yield number
            done += 1
        number += 1


def run(
    seed: int, chosen: Iterator[int], report: Callable[[str], None], draw: Callable[[int, int], Case] = drawn_case
) -> Tally:
    tally = Tally()
    for number in chosen:
        case, verdict = _made(draw, seed, number)
        tally.add(number, case, verdict)
        if verdict.kind == "failed":
            report(reproducer(seed, number, case, verdict))
    return tally


def _made(draw: Callable[[int, int], Case], seed: int, number: int) -> tuple[Case, Verdict]:
    """Return the call and its verdict; a call that cannot be drawn is a failure of the fuzzer itself."""
    try:
        case = draw(seed, number)
    except Exception:
        said = f"the call could not be drawn:\n{traceback.format_exc()}"
        return Case("the fuzzer", "", lambda: None, None), Verdict("failed", said=said)
    return case, verdict_of(case, seed=number)


def reproducer(seed: int, number: int, case: Case, verdict: Verdict) -> str:
    return (
        f"FAILED call {number} of seed {seed}: embgrad.{case.function} ({case.framework})\n"
        f"again: python -m tests.fuzz --seed {seed} --only {number}\n{case.text}\n{verdict.said}\n"
    )
