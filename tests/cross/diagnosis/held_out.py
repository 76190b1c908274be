"""Held-out faults: `python -m tests.cross.diagnosis.held_out` says how often the cause named for them is right, none, or wrong.

The rules of the diagnosis were not written against this list, nor may they be: it is there to estimate what they do with
faults that nobody thought of. A trial's answer is right where each cause of the first finding is true of the fault and the
text names the layer; it is none where nothing is named; anything else is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import embgrad
from tests.cross.diagnosis.confusion import page_with
from tests.cross.diagnosis.held_out_list import Net

PAGE: Final = Path(__file__).parents[3] / "docs" / "diagnosis.md"
BEGIN: Final = "<!-- begin: made by python -m tests.cross.diagnosis.held_out -->"
END: Final = "<!-- end: made by python -m tests.cross.diagnosis.held_out -->"

FRAMEWORKS: Final = ("torch", "tensorflow", "gluon")
HEADS: Final = {"torch": "PyTorch", "tensorflow": "TensorFlow", "gluon": "Gluon"}

#: Which models a comparison is given.
MODELS: Final = {"both models": (True, True), "the first model alone": (True, False), "no model": (False, False)}

#: On how many of the nets that show a fault it is tried.
NETS_A_FAULT: Final = 3

#: The share in which the answer is to be right or none.
NOT_WRONG: Final = 0.95

ANSWERS: Final = ("right", "none", "wrong")


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        fault: the fault's name.
        framework: the framework.
        detail: the net, its seed and which side is broken.
        models: a key of `MODELS`.
        answer: one of `ANSWERS`.
        text: what was said first.
    """

    fault: str
    framework: str
    detail: str
    models: str
    answer: str
    text: str


def batch_of(framework: str, seed: int) -> embgrad.TokenBatch:
    """Examples of random ids, of several lengths where the nets take a mask."""
    random = np.random.default_rng([seed, 21])
    lengths = (9, 6, 8, 5)
    ids = random.integers(3, 57, (len(lengths), max(lengths)))
    ids[0, :5] = (5, 6, 7, 8, 5)
    if framework != "torch":
        return embgrad.TokenBatch(ids, convention="ids")
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return embgrad.TokenBatch(ids * mask, mask)


def trials(
    frameworks: Sequence[str] = FRAMEWORKS, pattern: str = "", nets: int = NETS_A_FAULT
) -> Iterator[tuple[str, Net, int, bool]]:
    """Each fault with some of the nets, a seed, and whether the broken net is the second: always the same ones.

    Args:
        frameworks: those whose nets are tried.
        pattern: is found in the faults that are tried.
        nets: on how many nets each fault is tried, of those that have what it breaks.
    """
    for framework in frameworks:
        module = importlib.import_module(f"tests.cross.diagnosis.held_out_{framework}")
        for number, name in enumerate(module.INJECTIONS):
            shown = 0
            for place in range(2 * len(module.NETS) if re.search(pattern, name) else 0):
                net = module.NETS[(number + place) % len(module.NETS)]
                seed = number + place
                if shown < nets and module.INJECTIONS[name](net.build(net.kind, seed), _random(seed)) is not None:
                    shown += 1
                    yield name, net, seed, bool((number + place) % 3)


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 22])


def ends(name: str, net: Net, seed: int, second: bool) -> Iterator[Outcome]:
    """How the trial ends, with each choice of models; nothing where the fault is too small to be seen."""
    module = importlib.import_module(f"tests.cross.diagnosis.held_out_{net.framework}")
    healthy = net.build(net.kind, seed)
    broken = module.INJECTIONS[name](net.build(net.kind, seed), _random(seed))
    assert broken is not None, "trials are of nets that have what is broken"
    models = (healthy, broken.model) if second else (broken.model, healthy)
    batch, objective = batch_of(net.framework, seed), embgrad.CrossEntropy([0, 2, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [embgrad.gradients(model, batch, objective) for model in models]
        for given, (one, other) in MODELS.items():
            pair = (models[0] if one else None, models[1] if other else None)
            compared = embgrad.compare(*results, models=None if pair == (None, None) else pair)
            if compared.agrees:
                return
            first = compared.findings[0] if compared.findings else None
            answer = "none" if first is None else _answer(first, broken.causes, broken.where)
            detail = f"{net.kind}, seed {seed}, {'b' if second else 'a'} broken"
            yield Outcome(name, net.framework, detail, given, answer, "" if first is None else str(first))


def _answer(finding: Any, causes: Sequence[str], where: str) -> str:
    named = re.sub(r"^.*?(?=layers?\.\d|h\.\d|\w+$)", "", where)  # a checkpoint's name begins otherwise than the path
    true = set(finding.causes) <= set(causes) and (not where or named in finding.text)
    return "right" if true else "wrong"


def outcomes(
    frameworks: Sequence[str] = FRAMEWORKS, pattern: str = "", nets: int = NETS_A_FAULT, *, told: bool = False
) -> list[Outcome]:
    """How all trials end; where asked for, each is told on standard error as it ends."""
    found = []
    for trial in trials(frameworks, pattern, nets):
        begun = time.perf_counter()
        for one in ends(*trial):
            found.append(one)
            if told:
                line = f"{one.answer:5} {one.fault} | {one.framework} {one.detail} | {one.models}: {one.text[:200]}"
                print(f"{line} [{time.perf_counter() - begun:.1f} s]", file=sys.stderr, flush=True)
    return found


def counts(found: Iterable[Outcome]) -> Counter[str]:
    """How many answers there are of each kind."""
    return Counter(one.answer for one in found)


def _cell(found: Sequence[Outcome]) -> str:
    many = counts(found)
    wrong = f"**{many['wrong']}**" if many["wrong"] else "0"
    return f"{many['right']} / {many['none']} / {wrong}" if found else ""


def tables(found: Sequence[Outcome]) -> str:
    """What stands between the markers of the page."""
    lines = ["| right / none / wrong | PyTorch | TensorFlow | Gluon | all | not wrong |", "|---|---|---|---|---|---|"]
    for given in MODELS:
        mine = [one for one in found if one.models == given]
        cells = [_cell([one for one in mine if one.framework == framework]) for framework in FRAMEWORKS]
        share = 100 * (1 - counts(mine)["wrong"] / max(len(mine), 1))
        lines.append(f"| {given} | {' | '.join(cells)} | {_cell(mine)} | {share:.1f} % |")
    lines += ["", "With both models, by fault:", ""]
    lines += ["| fault: right / none / wrong | PyTorch | TensorFlow | Gluon |", "|---|---|---|---|"]
    both = [one for one in found if one.models == "both models"]
    for name in dict.fromkeys(one.fault for one in both):
        mine = [one for one in both if one.fault == name]
        cells = [_cell([one for one in mine if one.framework == framework]) for framework in FRAMEWORKS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    wrong = [one for one in found if one.answer == "wrong"]
    lines += ["", "Named wrong:", ""]
    lines += [f"- {one.fault} ({HEADS[one.framework]}, {one.detail}; {one.models}): {one.text}" for one in wrong] or [
        "None."
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print the tables, and with --write put them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only the faults in whose name this pattern is found")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="those to run, separated by commas")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/diagnosis.md")
    options = parser.parse_args(arguments)
    text = tables(outcomes(options.frameworks.split(","), options.only, told=True))
    print(text)
    if options.write:
        PAGE.write_text(page_with(text, PAGE.read_text(encoding="utf-8"), (BEGIN, END)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
