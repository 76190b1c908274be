"""The options of a run over a dataset, checked before anything is started."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
import ray

from embgrad.common.options import count_or_none, expect_flag
from embgrad.engine.options import GradientOptions, check_options, expect_one_name
from embgrad.errors import (
    BackendError,
    BatchError,
    EmbgradError,
    ObjectiveError,
    UnsupportedError,
    brief,
    did_you_mean,
    quote,
)
from embgrad.inputs.batch import CONVENTIONS
from embgrad.inputs.encode import expect_id
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import Objective, Scalar, as_objective
from embgrad.ray.columns import Inputs
from embgrad.streaming.broadcast import for_all_batches
from embgrad.toolkit.signature import expect_callable

if TYPE_CHECKING:
    from embgrad.backend.protocol import Call

__all__ = ["OUTPUTS", "Job", "Options", "Pool", "actor_options", "settings"]

#: The possible outputs for each row.
OUTPUTS: Final = ("saliency", "tables", "values")

#: How often an actor is restarted and its work repeated, unless `actor_options` set another limit. The loss of a machine then
#: costs nothing, and a row that crashes the process each time does not keep the run going for ever.
RESTARTS: Final = 8

#: The options of `embgrad.gradients`, with their defaults.
OF_GRADIENTS: Final = {"pads": "keep", "compile": False, "check": False, "override": None, "add": None, "edit": None}


class Options(TypedDict, total=False):
    """The options that `gradients`, `write` and `table` have in common.

    Attributes:
        text: the column of the texts, "text" by default; two columns, ("premise", "hypothesis"), for pairs.
        ids: the column of the token ids, one list a row, in place of texts; shorter rows are padded and masked.
        mask: with `ids`, the column of the masks.
        types: with `ids`, the column of the segment numbers.
        key: the column that names a row in errors and identifies it when rows in and out are compared.
        max_length: the largest number of tokens in a text, see `embgrad.encode`; the column `truncated` then holds the number
            of tokens that were cut off.
        pad_id: with `ids`, the id of the padding; 0 by default.
        convention: how the inputs are passed to the model, see `embgrad.TokenBatch`; by default as the tokenizer says, or
            "huggingface". With "ids" the model receives no mask, so that only rows of one length share a batch.
        batch_size: the largest number of rows that are run at once, 32 by default; rows of similar length are run together.
        workers: the number of actors, each with its own copy of the model, 2 by default.
        num_cpus: the CPUs of each actor; by default 1, or less where that would leave no CPU to read the dataset with.
        num_gpus: the GPUs of each actor; none by default.
        actor_options: further options of Ray for the actors, such as `max_restarts`, `memory` or `runtime_env`.
        at: the point, as in `embgrad.gradients`, but only one; likewise `call`, `pads`, `compile`, `check`, `override`, `add`
            and `edit`, without arrays that have an example axis.
        verify: whether `write` and `table` compare the rows of the dataset with those of the result, and all three functions
            check that the model has the same weights in each actor. It reads the dataset once more, and `write` then also
            checks in advance that the types of each column are compatible. True by default.
    """

    text: str | Sequence[str]
    ids: str
    mask: str
    types: str
    key: str
    max_length: int
    pad_id: int
    convention: str
    batch_size: int
    workers: int
    num_cpus: float
    num_gpus: float
    actor_options: Mapping[str, Any]
    at: str
    call: Call
    pads: str
    compile: bool
    check: bool
    override: Mapping[str, Any]
    add: Mapping[str, Any]
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]]
    verify: bool


@dataclass(frozen=True)
class Job:
    """The request that each actor receives: how to build the model, and what to compute.

    Attributes:
        build: the function that returns the model, or (model, tokenizer).
        objective: the objective, or a function of the rows that returns one.
        run: the identifier of the run, whose actors must have the same weights; None without that check.
    """

    build: Callable[[], Any]
    objective: Any
    inputs: Inputs
    batch_size: int
    options: GradientOptions
    call: Call | None
    run: str | None

    @property
    def point(self) -> str:
        """The point's name."""
        return self.options.names[0]


@dataclass(frozen=True)
class Pool:
    """The number of actors, their resources, and whether the run is verified; see `Options`."""

    workers: int = 2
    num_cpus: float | None = None
    num_gpus: float | None = None
    actor_options: Mapping[str, Any] = field(default_factory=dict)
    verify: bool = True


def settings(build: Any, objective: Any, options: Mapping[str, Any]) -> tuple[Job, Pool]:
    """Return the request to the actors and how they are started.

    Raises:
        EmbgradError: an option is unknown or not valid, or cannot be sent to the actors.
    """
    for name in options:
        if name not in Options.__annotations__:
            raise EmbgradError(_unknown(name))
    if not callable(build):
        raise BackendError(
            f"build is {brief(build)}: expected a function without arguments that returns the model, or (model, tokenizer); each "
            "actor calls it once"
        )
    chosen = {name: value for name, value in options.items() if value is not None}
    _expect_objective(objective)
    call = chosen.get("call")
    expect_callable(call)
    pool = Pool(**{field.name: chosen[field.name] for field in fields(Pool) if field.name in chosen})
    count_or_none(pool.workers, "workers")
    expect_flag(pool.verify, "verify")
    size = count_or_none(chosen.get("batch_size", 32), "batch_size") or 32
    run = uuid.uuid4().hex if pool.verify else None
    job = Job(build, objective, _inputs(chosen), size, _gradient_options(chosen), call, run)
    _expect_startable(job, pool)
    return job, pool


def actor_options(pool: Pool) -> dict[str, Any]:
    """Return the arguments of `ray.remote` for the actors."""
    limits = {"max_restarts": RESTARTS, "max_task_retries": RESTARTS}
    return {**limits, "num_cpus": pool.num_cpus, "num_gpus": pool.num_gpus, **pool.actor_options}


def _expect_startable(job: Job, pool: Pool) -> None:
    """Check, before anything is read, that the actors can start; Ray would report a failure in a hundred lines."""
    try:
        ray.remote(**actor_options(pool))(Pool)  # any class will do
    except (TypeError, ValueError) as error:
        raise EmbgradError(
            f"Ray does not accept these actors ({error}): pass num_cpus, num_gpus and actor_options as for ray.remote"
        ) from error
    sent = {"build": job.build, "the objective": job.objective, "call": job.call, **job.options.changes}
    for name, value in sent.items():
        try:
            ray.cloudpickle.dumps(value)
        except Exception as error:  # users' objects may raise any class
            raise BackendError(
                f"{name} cannot be sent to the actors ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]}): it "
                "must be picklable. Create other objects, such as a model, a lock or an open file, inside the function"
            ) from error


def _unknown(name: str) -> str:
    known = Options.__annotations__
    if name in ("split", "training"):
        return (
            f"{name!r} has no meaning over a dataset, since Ray decides which rows share a batch: omit it. Rows must not "
            "interact, and the model runs in evaluation mode"
        )
    if name == "tokenizer":
        return "the tokenizer comes with the model: expected build to return (model, tokenizer)"
    return f"there is no option {name!r}: expected some of {quote(known, 30)}.{did_you_mean(name, known)}"


def _inputs(options: Mapping[str, Any]) -> Inputs:
    chosen: dict[str, Any] = {field.name: options[field.name] for field in fields(Inputs) if field.name in options}
    if "text" in chosen and "ids" in chosen:
        raise BatchError("text and ids both name columns: pass one of them")
    without_ids = [name for name in ("mask", "types", "pad_id") if name in chosen and "ids" not in chosen]
    if without_ids:
        raise BatchError(f"{without_ids[0]} requires ids, but the rows are texts: name their column with ids=...")
    if "max_length" in chosen and "ids" in chosen:
        raise BatchError("max_length cuts texts, and the rows hold ids: cut them in the dataset")
    if "max_length" in chosen:
        chosen["max_length"] = count_or_none(chosen["max_length"], "max_length")
    if "pad_id" in chosen:
        expect_id(chosen["pad_id"])
        chosen["pad_id"] = int(chosen["pad_id"])
    if "text" in chosen:
        named = [chosen["text"]] if isinstance(chosen["text"], str) else chosen["text"]
        chosen["text"] = tuple(named) if isinstance(named, (list, tuple)) else ()
        if len(chosen["text"]) not in (1, 2) or not all(isinstance(name, str) for name in chosen["text"]):
            raise BatchError(f"text is {options['text']!r}: expected the name of a column, or of two for pairs")
    for name in ("ids", "mask", "types", "key"):
        if not isinstance(chosen.get(name, ""), str):
            raise BatchError(f"{name} is {chosen[name]!r}: expected the name of a column")
    conventions = [*CONVENTIONS, "gluonnlp", "ids"]
    if chosen.get("convention", "ids") not in conventions:
        raise BatchError(
            f"convention is {chosen['convention']!r}: expected one of {quote(conventions)}."
            f"{did_you_mean(str(chosen['convention']), conventions)}"
        )
    return Inputs(**chosen)


def _gradient_options(options: Mapping[str, Any]) -> GradientOptions:
    at = options.get("at", WORD)
    expect_one_name(at, "make one run for each point")
    chosen: dict[str, Any] = {name: options.get(name, default) for name, default in OF_GRADIENTS.items()}
    return for_all_batches(check_options(at, training=False, **chosen))


def _expect_objective(objective: Any) -> None:
    """Check that the objective does not depend on how rows are batched."""
    if isinstance(objective, Scalar):
        raise UnsupportedError(
            "a Scalar objective reduces over the batch, but Ray decides which rows share one: pass an objective with one number "
            "a row"
        )
    as_objective(objective)
    if not isinstance(objective, Objective):
        return
    try:
        objective.take(slice(0, 0), 0)
    except ObjectiveError:
        raise ObjectiveError(
            f"the objective {objective!r} has arguments of one entry an example, but Ray decides which rows share a batch: "
            'pass a function of the rows, such as objective=lambda rows: embgrad.CrossEntropy(rows["label"])'
        ) from None
