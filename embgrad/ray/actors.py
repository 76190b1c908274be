"""The actors that process a dataset: the resources that they claim, and how often they are restarted."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Final

import ray
import ray.data

from embgrad.errors import BackendError, EmbgradError, EmbgradWarning
from embgrad.ray.settings import RESTARTS, Asked, Shape

__all__ = ["expect_startable", "mapped"]

#: The number of batches in an actor's block: rows are grouped by length within a block, whose sum is sent on once.
BATCHES_A_BLOCK: Final = 4


def mapped(rows: Any, worker: type, arguments: tuple[Any, ...], asked: Asked, shape: Shape) -> Any:
    """Return the dataset of the results that the actors compute from the rows.

    Args:
        rows: the dataset.
        worker: the actors' class.
        arguments: the arguments of its constructor.
        asked: the request that the actors receive.
        shape: the number of actors and their resources.
    """
    if not ray.is_initialized():
        ray.init()  # as Ray Data does: at RAY_ADDRESS, or on this machine
    options = {**_restarts(rows), **_options(shape)}
    options["num_cpus"] = _cpus(options["num_cpus"], shape.workers, _claimed(rows))
    block = asked.batch_size * BATCHES_A_BLOCK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the restarts, see `_restarts`
        # Ray reads a file of a hundred thousand texts as one block: a single actor would process all of it, and losing that actor
        # would lose all of the work.
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
    """Check, before anything is read, that the actors can start; Ray would report a failure in a hundred lines.

    Raises:
        BackendError: the request cannot be sent to the actors.
        EmbgradError: Ray does not accept the actors' resources or options.
    """
    try:
        ray.remote(**_options(shape))(Shape)  # any class will do
    except (TypeError, ValueError) as error:
        raise EmbgradError(
            f"Ray has no such actors ({error}): expected num_cpus, num_gpus and actor_options as ray.remote takes them"
        ) from error
    for name, value in {"build": asked.build, "the objective": asked.objective, **asked.passed}.items():
        try:
            ray.cloudpickle.dumps(value)
        except Exception as error:  # users' objects may raise any class
            raise BackendError(
                f"{name} cannot be sent to the actors ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]}): "
                "expected what can be pickled; make within the function what cannot, such as a model, a lock or an open file"
            ) from error


def _restarts(rows: Any) -> dict[str, int]:
    """Return the limits on an actor's restarts, where Ray accepts them; by default Ray restarts actors without limit."""
    parameters = inspect.signature(rows.map_batches).parameters.values()
    told = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    return {"max_restarts": RESTARTS, "max_task_retries": RESTARTS} if told else {}


def _cpus(asked: float | None, workers: int, claimed: float) -> float:
    """Return the CPUs of each actor, leaving one to the tasks that read the dataset: without it all wait for each other.

    Args:
        asked: the option `num_cpus`.
        workers: the number of actors.
        claimed: the CPUs of the actors that produce the dataset, which run at the same time.
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
    return round(max(there - claimed - 1, 0) / workers, 3)  # actors with 0 CPUs share them with the others


def _claimed(rows: Any) -> float:
    """Return the CPUs held by the actors that produce a dataset; Ray starts all of them at once, which is undocumented."""
    claimed = 0.0
    for step in rows._logical_plan.dag.post_order_iter():
        compute = getattr(step, "compute", None)
        if isinstance(compute, ray.data.ActorPoolStrategy):
            asked = step.ray_remote_args.get("num_cpus")
            claimed += compute.min_size * (1.0 if asked is None else float(asked))
    return claimed
