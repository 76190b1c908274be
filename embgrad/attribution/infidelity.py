"""`embgrad.metrics.infidelity`: how far scores are from the change of the objective when sets of tokens are removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.attribution.draws import generators_of
from embgrad.attribution.method import expect_count
from embgrad.attribution.passes import passes_of
from embgrad.attribution.removal import removal_of
from embgrad.attribution.scores import are_several, scores_by_name
from embgrad.backend.protocol import Call
from embgrad.common.arrays import to_numpy
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import expect_flag
from embgrad.engine.call_errors import explain_errors
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.conventions import tokenizer_of
from embgrad.model_points.points import WORD

__all__ = ["infidelity"]


@explain_arguments
def infidelity(
    model: Any,
    batch: Any,
    objective: Any,
    attribution: Any,
    *,
    remove: str | int = "delete",
    samples: int = 100,
    removed: Any = None,
    normalize: bool = False,
    seed: int = 0,
    at: str = WORD,
    keep_special: bool = True,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    batch_size: int | None = None,
) -> Any:
    """Return the infidelity of attributions: the mean square of their error in L when sets of tokens are removed.

    For a set S of tokens the error is the sum of the scores in S minus L(all) − L(all but S); the mean is over random sets,
    each token being in a set with probability 1/2. Low is faithful: 0 is an attribution that adds up exactly. Yeh, Hsieh,
    Suggala, Inouye and Ravikumar, "On the (in)fidelity and sensitivity of explanations", 2019, with the binary perturbations
    meant for attributions that are in the units of L; `Saliency`, which is not, needs `normalize=True`.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and `training`.
        attribution: see `faithfulness`; so are `remove`, `at`, `keep_special` and `batch_size`.
        samples: the number of sets of each example.
        removed: the sets themselves, in place of random ones: bool, (sample, example, position), true at removed positions.
        normalize: multiply an example's scores by the factor that makes its infidelity least, so that their units do not
            matter.
        seed: with it an example has the same sets in each framework, whatever batch it is in.

    Returns:
        float64, shape (example,), in the square of L's units; for several attributions a dict of these by name.

    Raises:
        EmbgradError: `removed` has another shape, or holds a position that cannot be removed; or as `faithfulness` raises.
    """
    expect_count(samples, "samples")
    expect_count(seed, "seed", 0)
    expect_flag(normalize, "normalize")
    passes = passes_of(model, batch, objective, at, tokenizer, max_length, call, batch_size, training=training)
    tokenizer = tokenizer_of(model, tokenizer)
    with explain_errors(passes.bound, passes.batch):
        removal = removal_of(passes, remove, keep_special, tokenizer)
        scores = scores_by_name(attribution, passes.batch, removal.removable)
        if removed is None:
            sets = _draw(removal.removable, samples, generators_of(passes.batch, seed))
        else:
            sets = _check_sets(removed, removal.removable)
        rows = np.concatenate([np.zeros_like(sets[:1]), sets])
        kept = passes.batch.real & ~rows
        objectives = np.stack(removal.objectives(list(kept.swapaxes(0, 1))), 1)
    changes = objectives[0] - objectives[1:]
    results = {name: _infidelity((sets * entry).sum(-1), changes, normalize) for name, entry in scores.items()}
    return results if are_several(attribution) else next(iter(results.values()))


def _infidelity(sums: np.ndarray, changes: np.ndarray, normalize: bool) -> np.ndarray:
    """Return the infidelity of each example from the sums of scores and the changes of L, both (sample, example)."""
    if normalize:
        squares = (sums**2).sum(0)
        sums = sums * (sums * changes).sum(0) / np.where(squares > 0, squares, 1.0)
    return np.asarray(((sums - changes) ** 2).mean(0))


def _draw(removable: np.ndarray, samples: int, generators: list[np.random.Generator]) -> np.ndarray:
    """Return random sets of tokens, bool, (sample, example, position)."""
    sets = np.zeros((samples, *removable.shape), bool)
    for example, generator in enumerate(generators):
        own = removable[example]
        sets[:, example, own] = generator.random((samples, int(own.sum()))) < 0.5
    return sets


def _check_sets(removed: Any, removable: np.ndarray) -> np.ndarray:
    try:
        array = to_numpy(removed)
    except ValueError:
        array = np.array(None)
    if array.dtype != bool or array.ndim != 3 or array.shape[1:] != removable.shape or not len(array):
        raise EmbgradError(
            f"removed is {brief(removed)}, of shape {array.shape}: expected bool, (sample, example, position), with "
            f"{removable.shape} last and one sample at least"
        )
    wrong = np.argwhere(array & ~removable)
    if len(wrong):
        sample, example, position = wrong[0]
        raise EmbgradError(
            f"removed holds example {example}, position {position} in sample {sample}, which cannot be removed: expected only "
            "tokens that are neither padding nor, with keep_special=True, special"
        )
    return array
