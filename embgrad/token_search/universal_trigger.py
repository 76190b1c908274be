"""Universal triggers: the same few tokens, inserted in every text of a dataset, that move the mean of an objective the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from embgrad.attribution.method import expect_choice, expect_count
from embgrad.errors import BatchError, EmbgradError, brief
from embgrad.token_search.draws import priorities
from embgrad.token_search.estimates import top_substitutions
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.problem import Problem
from embgrad.token_search.resizing import expect_room
from embgrad.token_search.trigger_texts import PLACES, TriggerTexts, trigger_texts

__all__ = ["UniversalTrigger"]

#: How many times the candidates are offered where only some tokenise to their own ids.
OFFERED: Final = 4

#: How many tokens are tried as the initial trigger.
TRIED: Final = 64


@dataclass(frozen=True)
class UniversalTrigger(SearchMethod):
    """One trigger for all texts of a batch, by first-order estimates from the mean gradient and a beam over its positions.

    The goal is the mean of L over the texts. Each step takes the gradient of the mean at the trigger, and goes through the
    positions of the trigger from left to right: for each trigger of the beam it evaluates the `candidates` ids with the best
    estimates, and keeps the best `beam` of the new triggers and the old ones. The step's best trigger is then evaluated on all
    texts; the one with the best mean over all texts is returned. Wallace et al., "Universal adversarial triggers for attacking
    and analyzing NLP", 2019, whose numbers are the defaults.

    The gradients and the texts of a step are computed in pieces, so that a batch may be a whole dataset. Texts run without
    padding, those of a length together.

    The trigger stands before the first, or after the last, of the positions whose tokens may be replaced, see `positions` of
    `search`: after the special tokens at the start, or before those at the end. Of a pair that is the start of the first text,
    and the end of the second; `positions` may choose a text, and is needed where neither the batch nor a tokenizer shows which
    tokens are special. The types of the trigger are those of the token next to it. A position at which an objective reads moves
    along with its token; one that counts back from the end of a text still does.

    The search stops when the mean of L meets `until` of `search`, or its mean where there is one for each example. With a
    tokenizer only triggers are returned with which each text tokenises to its own ids that does so without a trigger.
    `objective_before` is L without a trigger, and so is entry 0 of the history.

    Args:
        length: the number of tokens of the trigger.
        place: "start" or "end" of the texts.
        initial: the ids from which the search begins, shape (length,); None for the allowed id that is the most frequent in the
            texts, `length` times.
        steps: the number of steps; they end early when a step on all texts changes nothing.
        candidates: how many ids a step evaluates for each position and trigger of the beam.
        beam: how many triggers are kept from position to position.
        examples: how many texts a step uses, in rounds through all texts in random order; None for all.
        seed: determines that order, the same in each framework.
    """

    length: int = 3
    place: str = "start"
    initial: Sequence[int] | np.ndarray | None = None
    steps: int = 20
    candidates: int = 40
    beam: int = 1
    examples: int | None = 128
    seed: int = 0
    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("length", "steps", "candidates", "beam"):
            expect_count(getattr(self, name), name)
        if self.examples is not None:
            expect_count(self.examples, "examples")
        expect_count(self.seed, "seed", 0)
        expect_choice(self.place, "place", PLACES)
        if self.initial is not None and _whole(self.initial, self.length) is None:
            raise EmbgradError(
                f"initial is {brief(self.initial)}: expected {self.length} ids, as many as the length of the trigger"
            )

    def start(self, problem: Problem) -> State:
        """Return the state before the first step: the texts without a trigger."""
        texts = trigger_texts(problem, self.length, self.place)
        state = super().start(problem)
        expect_room(problem, texts.template, "pass a shorter trigger")
        return replace(
            state, arrays={"current": self._initial(texts), "settled": np.array(False), "stable": texts.stable}
        )

    def active(self, problem: Problem, state: State) -> np.ndarray:
        """Return true for all examples until their mean meets the stopping rule."""
        until = problem.rule.until
        met = until is not None and problem.sign * state.objective.mean() >= problem.sign * until.mean()
        return np.full(len(state.objective), not met)

    def step(self, problem: Problem, state: State, active: np.ndarray, number: int) -> State:
        """Return the state after a step."""
        if state.arrays["settled"]:
            return state
        texts = trigger_texts(problem, self.length, self.place, state.arrays["stable"])
        current = state.arrays["current"]
        examples = self._draw(len(texts.template), number)
        found = self._beam_search(texts, examples, current)
        if len(examples) < len(texts.template) and not len(texts.first_stable(texts.everything, found[None], 1)):
            found = current
        arrays = {**state.arrays, "current": found}
        arrays["settled"] = np.array(len(examples) == len(texts.template) and np.array_equal(found, current))
        known = state.arrays.get("trigger")
        if known is not None and np.array_equal(found, known):
            return replace(state, arrays=arrays)
        values = texts.objectives(found)
        if known is not None and problem.sign * values.mean() <= problem.sign * state.objective.mean():
            return replace(state, arrays=arrays)
        return State.at(texts.with_trigger(texts.everything, found), values, {**arrays, "trigger": found})

    def _initial(self, texts: TriggerTexts) -> np.ndarray:
        """Return the trigger from which the search begins."""
        problem = texts.problem
        if self.initial is not None:
            trigger = _whole(self.initial, self.length)
            assert trigger is not None, "it was checked when the method was made"
            if trigger.max() >= problem.table.count:
                raise BatchError(
                    f"initial holds the id {trigger.max()}: expected ids below {problem.table.count}, the number of rows of the "
                    "table"
                )
            if not len(texts.first_stable(texts.everything, trigger[None], 1)):
                raise BatchError(
                    f"initial is {trigger.tolist()}, and not all texts with these ids tokenise to them: give other ids, or "
                    "stable=False"
                )
            return trigger
        allowed = problem.allowed_ids
        counts = np.bincount(problem.original.ids[problem.original.free], minlength=problem.table.count)[allowed]
        frequent = allowed[np.argsort(-counts, kind="stable")][:TRIED]
        triggers = np.repeat(frequent[:, None], self.length, 1)
        stable = texts.first_stable(texts.everything, triggers, 1)
        if not len(stable):
            raise BatchError(
                f"the texts do not tokenise to their own ids with any of their {len(triggers)} most frequent tokens, repeated "
                f"{self.length} times, at their {self.place}: give the ids to begin with in initial=..., or stable=False"
            )
        return np.asarray(triggers[stable[0]])

    def _draw(self, count: int, number: int) -> np.ndarray:
        """Return the indices of the texts that a step uses: the next ones of a random order, which is another in each round."""
        if self.examples is None or self.examples >= count:
            return np.arange(count)
        rounds = count // self.examples
        key = np.random.SeedSequence([self.seed, number // rounds]).generate_state(1, np.uint64)[0]
        order = np.argsort(priorities(key, np.arange(count)), kind="stable")
        start = number % rounds * self.examples
        return np.sort(order[start : start + self.examples])

    def _beam_search(self, texts: TriggerTexts, examples: np.ndarray, trigger: np.ndarray) -> np.ndarray:
        """Return the best trigger of a step."""
        problem = texts.problem
        mean, gradient, rows = texts.gradient(examples, trigger)
        offered = self.candidates * (1 if problem.stability is None else OFFERED)
        ids, _ = top_substitutions(gradient, rows, trigger, problem.table, problem.allowed, offered, problem.sign)
        beam, means = trigger[None], np.array([mean])
        for position in range(self.length):
            new = np.concatenate([self._replace(texts, examples, own, position, ids[position]) for own in beam])
            if not len(new):
                continue
            beam, means = np.concatenate([beam, new]), np.concatenate([means, texts.means(examples, new)])
            best = np.argsort(-problem.sign * means, kind="stable")[: self.beam]
            beam, means = beam[best], means[best]
        return np.asarray(beam[0])

    def _replace(
        self, texts: TriggerTexts, examples: np.ndarray, trigger: np.ndarray, position: int, ids: np.ndarray
    ) -> np.ndarray:
        """Return the stable triggers with another id at a position, int64, shape (trigger, length)."""
        others = ids[(ids >= 0) & (ids != trigger[position])]
        triggers = np.repeat(trigger[None], len(others), 0)
        triggers[:, position] = others
        return np.asarray(triggers[texts.first_stable(examples, triggers, self.candidates)])


def _whole(initial: Sequence[int] | np.ndarray, length: int) -> np.ndarray | None:
    """Return ids as int64, shape (length,); None where they are something else."""
    try:
        ids = np.asarray(initial)
    except ValueError:  # of several lengths
        return None
    is_whole = ids.shape == (length,) and ids.dtype.kind in "iu" and bool((ids >= 0).all())
    return ids.astype(np.int64) if is_whole else None
