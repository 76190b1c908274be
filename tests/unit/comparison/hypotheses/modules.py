"""Sites at the outputs of modules and lookups, with weights on both sides that are matched by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from embgrad import TokenBatch
from embgrad.comparison.findings import CAUSES
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values, arrived
from embgrad.comparison.recording import HeldWeight, Recording, Tensor
from embgrad.comparison.settings import Declared
from embgrad.comparison.sites import Pair
from embgrad.comparison.weights import match_weights

#: The ids of two examples of five tokens, of which the second ends with padding.
IDS = np.array([[3, 1, 4, 2, 5], [6, 2, 7, 0, 0]])
REAL = np.array([[True] * 5, [True] * 3 + [False] * 2])


def held(arrays: Mapping[str, np.ndarray]) -> tuple[HeldWeight, ...]:
    """Return weights, each of the module that its name begins with; they are called in order."""
    return tuple(
        HeldWeight(
            name, name.rpartition(".")[0], values.shape, partial(np.asarray, values), (number + 1) / (len(arrays) + 1)
        )
        for number, (name, values) in enumerate(arrays.items())
    )


def module_site(
    a: np.ndarray,
    b: np.ndarray,
    before: Mapping[str, np.ndarray],
    *,
    key: str = "up:output#0",
    held_a: Mapping[str, np.ndarray] | None = None,
    held_b: Mapping[str, np.ndarray] | None = None,
    declared: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    roles: Mapping[str, Sequence[str]] | None = None,
    others: Sequence[Tensor] = (),
    alone: Sequence[str] = (),
    pair: Pair | None = None,
    **further: Any,
) -> Site:
    """Return a site at the output of a module.

    Args:
        a: the reference's output.
        b: the port's.
        before: the tensors before it by name, the nearest first.
        key: the key of the site's point in both models.
        held_a: the reference's weights by name.
        held_b: the port's; None for the same.
        declared: the settings that both sides declare.
        roles: by the paths of lookups and modules the roles of their tensors in the reference.
        others: further tensors of the reference.
        alone: the names of tensors that the reference alone has.
        pair: the pair of points; None for one of the whole tensors.
        **further: fields of the site.
    """
    path, _, side = key.partition("#")[0].partition(":")
    batch = TokenBatch(IDS, REAL.astype(int))
    recordings = []
    for values, weights, settings in zip((a, b), (held_a, held_a if held_b is None else held_b), declared, strict=True):
        tensors = [
            Tensor(name, name, None, 0, tuple(names), 0.0, before.get(name, values))
            for name, names in (roles or {}).items()
        ]
        tensors += [Tensor(key, path, side or None, 0, tuple((roles or {}).get(path, ())), 9.0, values), *others]
        recordings.append(
            Recording(
                "a model",
                {tensor.key: tensor for tensor in tensors},
                held(weights or {}),
                batch,
                "float64",
                settings={name: Declared(value, name) for name, value in settings.items()},
            )
        )
    return Site(
        **{
            "pair": Pair(path, key, key) if pair is None else pair,
            "layer": None,
            "a": np.asarray(a, np.float64),
            "b": np.asarray(b, np.float64),
            "real": REAL,
            "ids": IDS,
            "before": [
                Before(name, np.asarray(values, np.float64), name not in alone) for name, values in before.items()
            ],
            "recordings": (recordings[0], recordings[1]),
            "matching": match_weights(recordings[0].weights, recordings[1].weights),
            "floor": 1e-12,
            **further,
        }
    )


def in_pass(at: Mapping[str, np.ndarray]) -> Values:
    """Return the values at points in a pass that changes none of them."""
    return {**at, **{arrived(name): values for name, values in at.items()}}.__getitem__


def best(
    site: Site, explanations: Sequence[Explanation], earlier: Mapping[str, np.ndarray] | None = None
) -> Explanation:
    """Return the first explanation that predicts b's output nearly exactly, also as a function of the tensors before.

    Args:
        site: the site.
        explanations: those of a hypothesis.
        earlier: further tensors at earlier points, by name.
    """
    at = {**(earlier or {}), **{before.name: before.values for before in site.before}}
    values = in_pass(at)
    for explanation in explanations:
        if site.off(explanation.predicted) < 1e-6:
            assert explanation.cause in CAUSES
            assert explanation.compute is not None
            np.testing.assert_allclose(explanation.compute(values), explanation.predicted, rtol=1e-9, atol=1e-9)
            assert set(explanation.inputs) <= set(at)
            return explanation
    raise AssertionError([(item.text, site.off(item.predicted)) for item in explanations])
