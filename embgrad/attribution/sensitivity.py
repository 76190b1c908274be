"""`embgrad.metrics.sensitivity`: how far attributions change when the inputs change a little."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.attribution.draws import generators_of
from embgrad.attribution.method import Method, expect_count, expect_number
from embgrad.attribution.passes import Passes, passes_of
from embgrad.attribution.scores import are_several, by_name, snake_case
from embgrad.backend.protocol import Call
from embgrad.common.arrays import to_numpy
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import lengths
from embgrad.engine.call_errors import explain_errors
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.conventions import tokenizer_of
from embgrad.model_points.points import WORD

__all__ = ["sensitivity"]


@explain_arguments
def sensitivity(
    model: Any,
    batch: Any,
    objective: Any,
    method: Any,
    *,
    radius: float = 0.02,
    samples: int = 10,
    noise: Any = None,
    seed: int = 0,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
) -> Any:
    """Return the max-sensitivity of an attribution method: how far its attribution moves at most when the values at a point do.

    For attributions Φ it is the largest ‖Φ(x + δ) − Φ(x)‖ / ‖Φ(x)‖ over random δ, uniform in [−radius, radius] in each entry,
    with the L2 norm of an example's `values`, or of its `scores` where the method has no values. Low is stable; stable is not
    faithful. Where ‖Φ(x)‖ is 0, the change is not divided. Yeh, Hsieh, Suggala, Inouye and Ravikumar, "On the (in)fidelity and
    sensitivity of explanations", 2019; divided by the norm as in captum.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and `training`.
        method: a method, such as `embgrad.methods.Saliency()`, or several, as a mapping of names to methods or a list. It is run
            once for each sample, and once without noise.
        at: see `attribute`; so is `batch_size`.
        radius: the largest change of an entry, in the units of the values at the point.
        samples: the number of changed inputs.
        noise: the changes themselves, in place of random ones, (sample, example, position, dim).
        seed: with it an example has the same changes in each framework, whatever batch it is in; padding has none.

    Returns:
        float64, shape (example,); for several methods a dict of these by name.

    Raises:
        EmbgradError: `method` is none, `noise` has another shape or is not finite; or as `attribute` raises.
    """
    expect_number(radius, "radius")
    expect_count(samples, "samples")
    expect_count(seed, "seed", 0)
    chosen = {name: _check(entry) for name, entry in by_name(method, "method", _name).items()}
    passes = passes_of(model, batch, objective, at, tokenizer, max_length, call, batch_size, training=training)
    tokenizer = tokenizer_of(model, tokenizer)
    with explain_errors(passes.bound, passes.batch):
        shape = passes.inputs.shape
        if noise is None:
            generators, real = generators_of(passes.batch, seed), passes.batch.real
            moves = [radius * _uniform(generators, real, shape[-1]) for _ in range(samples)]
        else:
            moves = list(_check_noise(noise, shape))
        results = {name: _largest(passes, entry, moves, tokenizer) for name, entry in chosen.items()}
    return results if are_several(method) else next(iter(results.values()))


def _name(method: Any) -> str:
    return snake_case(type(method).__name__)


def _check(method: Any) -> Method:
    if not isinstance(method, Method):
        raise EmbgradError(
            f"method is {brief(method)}: expected the method itself, which is run again, such as embgrad.methods.Saliency()"
        )
    return method


def _largest(passes: Passes, method: Method, moves: list[np.ndarray], tokenizer: Any) -> np.ndarray:
    """Return the largest relative change of each example's attribution, (example,)."""
    own = _flat(method, passes, tokenizer)
    norms = lengths(own)
    changes = [lengths(_flat(method, passes.with_values(passes.inputs + move), tokenizer) - own) for move in moves]
    return np.asarray(np.max(changes, 0) / np.where(norms > 0, norms, 1.0))


def _flat(method: Method, passes: Passes, tokenizer: Any) -> np.ndarray:
    """Return an attribution as one vector for each example."""
    made = method.mean_contributions(passes, tokenizer)
    array = made.scores if made.values is None else made.values
    return np.asarray(array, np.float64).reshape(len(array), -1)


def _uniform(generators: list[np.random.Generator], real: np.ndarray, dim: int) -> np.ndarray:
    """Return noise that is uniform in [-1, 1], (example, position, dim), and 0 at padding."""
    noise = np.zeros((*real.shape, dim))
    for example, generator in enumerate(generators):
        noise[example, real[example]] = generator.uniform(-1, 1, (int(real[example].sum()), dim))
    return noise


def _check_noise(noise: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = to_numpy(noise)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.shape[1:] != shape or not len(array) or not np.isfinite(array).all():
        raise EmbgradError(
            f"noise is {brief(noise)}, of shape {array.shape}: expected finite numbers, (sample, example, position, dim), with "
            f"{shape} last and one sample at least"
        )
    return array.astype(np.float64)
