"""The actors that process a dataset: the resources that they claim, and how often they are restarted."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Final

import ray
import ray.data

from embgrad.errors import BackendError, EmbgradError, EmbgradWarning
from embgrad.ray.settings import RESTARTS, Job, Pool

__all__ = ["expect_startable", "mapped"]

#: The number of batches in an actor's block: rows are grouped by length within a block, whose sum is sent on once.
BATCHES_A_BLOCK: Final = 4


def mapped(rows: Any, worker: type, arguments: tuple[Any, ...], job: Job, pool: Pool) -> Any:
    """Return the dataset of the results that the actors compute from the rows.

    Args:
        rows: the dataset.
        worker: the actors' class.
        arguments: the arguments of its constructor.
        job: the request that the actors receive.
        pool: the number of actors and their resources.
    """
    if not ray.is_initialized():
        ray.init()  # as Ray Data does: at RAY_ADDRESS, or on this machine
    options = {**_restarts(rows), **_options(pool)}
    options["num_cpus"] = _cpus(options["num_cpus"], pool.workers, _claimed(rows))
    block = job.batch_size * BATCHES_A_BLOCK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about the restarts, see `_restarts`
        # Ray reads a file of a hundred thousand texts as one block: a single actor would process all of it, and losing that actor
        # would lose all of the work.
        return rows.repartition(target_num_rows_per_block=block).map_batches(
            worker,
            fn_constructor_args=arguments,
            batch_size=block,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=pool.workers),
            **options,
        )


def _options(pool: Pool) -> dict[str, Any]:
    return {"num_cpus": pool.num_cpus, "num_gpus": pool.num_gpus, **pool.actor_options}


def expect_startable(job: Job, pool: Pool) -> None:
    """Check, before anything is read, that the actors can start; Ray would report a failure in a hundred lines.

    Raises:
        BackendError: the request cannot be sent to the actors.
        EmbgradError: Ray does not accept the actors' resources or options.
    """
    try:
        ray.remote(**_options(pool))(Pool)  # any class will do
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


def _restarts(rows: Any) -> dict[str, int]:
    """Return the limits on an actor's restarts, where Ray accepts them; by default Ray restarts actors without limit."""
    parameters = inspect.signature(rows.map_batches).parameters.values()
    accepts_options = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return {"max_restarts": RESTARTS, "max_task_retries": RESTARTS} if accepts_options else {}


def _cpus(num_cpus: float | None, workers: int, claimed: float) -> float:
    """Return the CPUs of each actor, leaving one to the tasks that read the dataset: without it all wait for each other.

    Args:
        num_cpus: the option `num_cpus`.
        workers: the number of actors.
        claimed: the CPUs of the actors that produce the dataset, which run at the same time.
    """
    available = float(ray.cluster_resources().get("CPU", 0))
    if num_cpus is not None:
        if available and available - claimed - num_cpus * workers < 1:
            claimed_note = f" and those that produce the dataset, with num_cpus={claimed:g} in all," if claimed else ""
            warnings.warn(
                f"{workers} actors of num_cpus={num_cpus}{claimed_note} leave none of the cluster's "
                f"{available:g} CPUs to read the dataset: unless the cluster grows, the run waits for ever. Lower num_cpus "
                "or workers" + (", or call the dataset's materialize() first" if claimed else ""),
                EmbgradWarning,
                stacklevel=4,
            )
        return num_cpus
    if available == 0 or available - claimed >= workers + 1:
        return 1
    return round(max(available - claimed - 1, 0) / workers, 3)  # actors with 0 CPUs share them with the others


def _claimed(rows: Any) -> float:
    """Return the CPUs held by the actors that produce a dataset; Ray starts all of them at once, which is undocumented."""
    claimed = 0.0
    for step in rows._logical_plan.dag.post_order_iter():
        compute = getattr(step, "compute", None)
        if isinstance(compute, ray.data.ActorPoolStrategy):
            num_cpus = step.ray_remote_args.get("num_cpus")
            claimed += compute.min_size * (1.0 if num_cpus is None else float(num_cpus))
    return claimed
