"""`embgrad.search`: search for texts near those of a batch at which the objective is as high, or as low, as possible."""

from __future__ import annotations

import time
from os import PathLike
from typing import Any, Final

import numpy as np

from embgrad.attribution.method import choose_method
from embgrad.attribution.passes import size_of_pass
from embgrad.attribution.text_inputs import expect_no_copies
from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import count_or_none, expect_flags
from embgrad.common.progress import Progress, reporter
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.embedding_table import word_table_reader
from embgrad.engine.origins import origins
from embgrad.engine.probe import with_shared
from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of, tokenizer_of
from embgrad.inputs.encode import is_vocabulary, with_known_tokens
from embgrad.inputs.special_tokens import id_of_special
from embgrad.objectives.log_probability import LogProbability
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective, as_objective, describe
from embgrad.results.history import ARRAYS
from embgrad.results.search import History, Search
from embgrad.token_search.checkpoint import Checkpoint, expect_target
from embgrad.token_search.gcg import GCG
from embgrad.token_search.hotflip import HotFlip
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.pez import PEZ
from embgrad.token_search.positions import searched_positions
from embgrad.token_search.problem import Problem, Queries
from embgrad.token_search.rule import Rule
from embgrad.token_search.stability import decode, stability_of
from embgrad.token_search.universal_trigger import UniversalTrigger
from embgrad.token_search.vocabulary import allowed_ids

__all__ = ["METHODS", "search"]

#: The methods by name.
METHODS: Final[dict[str, type[SearchMethod]]] = {
    "hotflip": HotFlip,
    "gcg": GCG,
    "universal_trigger": UniversalTrigger,
    "pez": PEZ,
}


@explain_arguments
def search(
    model: Any,
    batch: Any,
    objective: Any,
    method: SearchMethod | str,
    *,
    goal: str = "maximize",
    until: Any = None,
    allowed: Any = None,
    positions: Any = None,
    stable: bool = True,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
    to: str | PathLike[str] | None = None,
    run_id: str | None = None,
) -> Search:
    """Return texts near those of a batch at which the objective of each is as high, or as low, as a method finds.

    Gradients propose which tokens to replace, and forward passes decide. Each example is searched by itself: what is found for it
    does not depend on the others, up to rounding, and the same seed finds the same in each framework.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length` and `call`.
        method: a method, such as `embgrad.methods.HotFlip(steps=3)`, or its name, which takes its defaults.
        goal: "maximize" or "minimize" the objective.
        until: a number, or one for each example: the search of an example stops as soon as its L is at least this, or at most
            this where the goal is to minimise. None runs all steps.
        allowed: the tokens that may be put in, see `substitutions`.
        positions: the positions whose tokens may be replaced, see `substitutions`; by default also none whose token is a label
            of `LogProbability`.
        stable: with a tokenizer, keep only texts that tokenise to the same ids, so that what is found can be typed. A vocabulary
            in its place, a list of tokens or a mapping of tokens to ids, names the tokens that were put in, and splits no texts.
        training: see `gradients`. Each pass draws random numbers of its own, if the model does, so that texts are compared under
            different ones, and the same seed does not find the same again.
        batch_size: how many texts one pass runs at most; None for as many as have 2,048 positions.
        progress: a function that takes (steps done, number of steps); or True for a line on stderr, where that is a terminal.
        to: a file for the state of the search, which is written after steps, about once a second. The same call goes on from it,
            and returns what an uninterrupted one returns, bit for bit but for the seconds; with more `steps` a finished search
            goes on. The file is no result: `Search.save` writes one.
        run_id: with `to` a text that identifies your functions among the arguments, see `stream`.

    Returns:
        A `Search`.

    Raises:
        EmbgradError: there is no such method or goal; or as `gradients` raises.
        FileFormatError: the file `to` holds another search, or something else.
        BatchError: a batch's own text does not tokenise to its ids; or as `substitutions` raises.
        UnsupportedError: the objective is a `Scalar`, the objectives of examples depend on one another, or the tokenizer cannot
            decode ids.
    """
    chosen, target = method_from(method), expect_target(to)
    problem, tokenizer = problem_of(
        model,
        batch,
        objective,
        goal=goal,
        until=until,
        allowed=allowed,
        positions=positions,
        stable=stable,
        tokenizer=tokenizer,
        max_length=max_length,
        call=call,
        training=training,
        batch_size=batch_size,
        joint=chosen.joint,
    )
    with (
        explain_errors(problem.bound, problem.batch),
        reporter(progress, "steps") as report,
        Checkpoint(target, chosen, problem, tokenizer, run_id) as checkpoint,
    ):
        record = _Record(problem.queries, checkpoint.history)
        problem.expect_independent()
        state = checkpoint.state
        if state is None:
            state = chosen.start(problem)
            record.add(state)
            checkpoint.put(0, state, record.history)
        report(checkpoint.steps, chosen.steps)
        for number in range(checkpoint.steps, chosen.steps):
            active = chosen.active(problem, state)
            if not active.any():
                break
            state = chosen.step(problem, state, active, number)
            record.add(state)
            checkpoint.put(number + 1, state, record.history)
            report(number + 1, chosen.steps)
    return _result(problem, chosen, state, record, tokenizer)


def problem_of(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    goal: str,
    until: Any,
    allowed: Any,
    positions: Any,
    stable: bool,
    tokenizer: Any,
    max_length: int | None,
    call: Call | None,
    batch_size: int | None,
    training: bool = False,
    joint: bool = False,
) -> tuple[Problem, Any]:
    """Return the problem for the arguments of `search`, and the tokenizer, None where none is known; `joint` is the method's."""
    expect_flags(stable=stable, training=training)
    size = count_or_none(batch_size, "batch_size")
    tokens = batch_of(batch, tokenizer, max_length, model)
    rule = Rule.of(goal, until, len(tokens))
    made = as_objective(objective)
    if isinstance(made, NativeObjective) and made.scalar:
        raise UnsupportedError(
            "a Scalar objective reduces over the batch, and each example is searched by itself: give a function of shape "
            "(example,)"
        )
    bound, tokenizer = bind(model, call), tokenizer_of(model, tokenizer)
    can_split = stable and tokenizer is not None and not is_vocabulary(tokenizer)
    if tokens.extras:
        tokens = with_shared(bound, tokens, repeated=True)
    with explain_errors(bound, tokens):
        table = word_table_reader(bound, tokens[: size_of_pass(size, tokens.shape[1])], "embgrad.search")
        problem = Problem(
            bound,
            tokens,
            made,
            rule,
            allowed_ids(allowed, tokenizer, table.count),
            _find_searched(positions, tokens, tokenizer, made),
            table,
            stability_of(tokens, tokenizer, some=joint) if can_split else None,
            size,
            Queries.none(len(tokens)),
            joint,
            training,
        )
        expect_no_copies(problem.passes)
    return problem, tokenizer


def _find_searched(
    positions: Any, batch: TokenBatch, tokenizer: Any, objective: Objective | NativeObjective
) -> np.ndarray:
    """Return the positions that are searched; unless the user names them, none whose token a language model is to predict."""
    if positions is None and isinstance(objective, LogProbability) and objective.shift:
        targets = objective.targets(batch)
        if targets.any() and not targets[batch.real].all():
            positions = searched_positions(None, batch, tokenizer) & ~targets
    return searched_positions(positions, batch, tokenizer)


class _Record:
    """The entries of a `History`, one for each step, after those of an interrupted search."""

    def __init__(self, queries: Queries, former: History | None) -> None:
        self._queries = queries
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]] = []
        if former is not None:
            self._entries.extend(zip(*(getattr(former, name) for name in ARRAYS), strict=True))
        self._began = time.perf_counter() - (0.0 if former is None else former.seconds[-1])

    def add(self, state: State) -> None:
        """Add a state."""
        queries, seconds = self._queries, time.perf_counter() - self._began
        self._entries.append(
            (state.objective.copy(), state.best.ids, queries.evaluations.copy(), queries.gradients.copy(), seconds)
        )

    def history(self) -> History:
        """Return the history."""
        objective, ids, evaluations, gradients, seconds = zip(*self._entries, strict=True)
        width = max(array.shape[1] for array in ids)
        filled = [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=-1) for array in ids]
        return History(
            np.stack(objective), np.stack(filled), np.stack(evaluations), np.stack(gradients), np.array(seconds)
        )


def _result(
    problem: Problem,
    method: SearchMethod,
    state: State,
    record: _Record,
    tokenizer: Any,
) -> Search:
    history = record.history()
    before = history.objective[0]
    found = problem.whole_batch_of(state.best, None if tokenizer is None else id_of_special(tokenizer, "pad"))
    batch = problem.batch
    texts: dict[str, Any] = {"texts_before": None, "texts": None}
    if tokenizer is not None:
        found, batch = with_known_tokens(found, tokenizer), with_known_tokens(batch, tokenizer)
        if hasattr(tokenizer, "decode"):
            for name, side in (("texts_before", batch), ("texts", found)):
                rows = [row[real] for row, real in zip(side.ids, side.real, strict=True)]
                texts[name] = tuple(decode(rows, tokenizer))
    return Search(
        before=batch,
        batch=found,
        objective_before=before,
        objective=state.objective,
        success=None if problem.rule.until is None else problem.rule.is_met(state.objective),
        history=history,
        **texts,
        trigger=state.arrays.get("trigger"),
        provenance={
            **origins(problem.bound),
            "objective": describe(problem.objective),
            "method": method.describe(),
            **problem.rule.describe(),
            "stable": problem.stability is not None,
            "allowed": int(problem.allowed.sum()),
            "training": problem.training,
            "batch_size": problem.batch_size,
            **problem.prefixes.describe(),
        },
    )


def method_from(method: Any) -> SearchMethod:
    """Return a method, or the method of a name with its defaults."""
    return choose_method(method, SearchMethod, METHODS, "embgrad.methods.HotFlip()")
