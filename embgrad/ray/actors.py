"""The actors that a dataset goes through: what each may take of the cluster, and how often it is started anew."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Final

import ray
import ray.data

from embgrad.errors import BackendError, EmbgradError, EmbgradWarning
from embgrad.ray.settings import RESTARTS, Asked, Shape

__all__ = ["expect_startable", "mapped"]

#: How many batches make a block of an actor: rows of like length are found among so many, and their sum is sent on once.
BATCHES_A_BLOCK: Final = 4


def mapped(rows: Any, worker: type, arguments: tuple[Any, ...], asked: Asked, shape: Shape) -> Any:
    """The dataset that the actors make of the rows.

    Args:
        rows: the dataset.
        worker: the actors' class.
        arguments: of its constructor.
        asked: what the actors are told.
        shape: how they are started.
    """
    if not ray.is_initialized():
        ray.init()  # as Ray Data itself would: at RAY_ADDRESS, or on this machine
    options = {**_restarts(rows), **_options(shape)}
    options["num_cpus"] = _cpus(options["num_cpus"], shape.workers, _claimed(rows))
    block = asked.batch_size * BATCHES_A_BLOCK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the restarts, see there
        # A file of a hundred thousand texts is one block to Ray: one actor would have all of it, and its death cost all of it.
        return rows.repartition(target_num_rows_per_block=block).map_batches(
            worker,
            fn_constructor_args=arguments,
            batch_size=block,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=shape.workers),
            **options,
        )


def _options(shape: Shape) -> dict[str, Any]:
    return {"num_cpus": shape.num_cpus, "num_gpus": shape.num_gpus, **shape.actor_options}


def expect_startable(asked: Asked, shape: Shape) -> None:
    """Refuse, before anything is read, what Ray would refuse in a hundred lines.

    Raises:
        BackendError: what the actors are told cannot be sent to them.
        EmbgradError: Ray has no such actors.
    """
    try:
        ray.remote(**_options(shape))(Shape)  # of whichever class
    except (TypeError, ValueError) as error:
        raise EmbgradError(
            f"Ray has no such actors ({error}): expected num_cpus, num_gpus and actor_options as ray.remote takes them"
        ) from error
    for name, value in {"build": asked.build, "the objective": asked.objective, **asked.passed}.items():
        try:
            ray.cloudpickle.dumps(value)
        except Exception as error:  # of whatever class the user's own objects raise
            raise BackendError(
                f"{name} cannot be sent to the actors ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]}): "
                "expected what can be pickled; make within the function what cannot, such as a model, a lock or an open file"
            ) from error


def _restarts(rows: Any) -> dict[str, int]:
    """How often an actor is started anew, where Ray lets us say it: by itself it never gives up, and it will not be told so."""
    parameters = inspect.signature(rows.map_batches).parameters.values()
    told = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    return {"max_restarts": RESTARTS, "max_task_retries": RESTARTS} if told else {}


def _cpus(asked: float | None, workers: int, claimed: float) -> float:
    """The CPUs of each actor: those who read the dataset need one, too, or all wait for each other.

    Args:
        asked: what was asked for.
        workers: how many actors there are.
        claimed: what the actors take that make the dataset, which are there at the same time.
    """
    there = float(ray.cluster_resources().get("CPU", 0))
    if asked is not None:
        if there and there - claimed - asked * workers < 1:
            others = f", after {claimed:g} of those that make the dataset," if claimed else ""
            warnings.warn(
                f"{workers} actors of num_cpus={asked}{others} leave none of the cluster's {there:g} CPUs to read the "
                "dataset with: unless the cluster grows, the run waits for ever; lower num_cpus or workers"
                + (", or call the dataset's materialize() first" if claimed else ""),
                EmbgradWarning,
                stacklevel=4,
            )
        return asked
    if there == 0 or there - claimed >= workers + 1:
        return 1
    return round(max(there - claimed - 1, 0) / workers, 3)  # of 0 they take turns with the others


def _claimed(rows: Any) -> float:
    """The CPUs that the actors hold that make a dataset while it is read; Ray starts all of them at once, and says so nowhere."""
    claimed = 0.0
    for step in rows._logical_plan.dag.post_order_iter():
        compute = getattr(step, "compute", None)
        if isinstance(compute, ray.data.ActorPoolStrategy):
            asked = step.ray_remote_args.get("num_cpus")
            claimed += compute.min_size * (1.0 if asked is None else float(asked))
    return claimed
