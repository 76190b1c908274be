"""Text models in Flax NNX: three architectures, whatever way they look up, and what is NNX's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import embgrad
from tests.frameworks.jax.cases import Case, as_dict, cross_entropies
from tests.frameworks.jax.checks import ModelChecks, known
from tests.frameworks.jax.nnx_models import CASES


class TestNNX(ModelChecks):
    """The checks of every model."""

    cases = CASES

    @pytest.fixture(params=CASES, ids=str)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    def gradients_of_parameters(self, case: Case, model: Any) -> Mapping[str, Any]:
        """By `nnx.grad`, compiled."""
        given: dict[str, Any] = {**as_dict(), **(case.further or {})}
        inputs = {name: jnp.asarray(one) for name, one in given.items()}

        @nnx.jit
        @nnx.grad
        def gradients(model: Any) -> Any:
            outputs = model(**inputs) if case.call is None else case.call(model, inputs)
            return cross_entropies(outputs["logits"] if isinstance(outputs, dict) else outputs).sum()

        return {".".join(map(str, path)): one[...] for path, one in nnx.to_flat_state(gradients(model))}

    def state(self, model: Any) -> Any:
        """The classes and attributes of every module and variable, with the arrays."""
        nodes = [(path, type(node), id(node), node) for path, node in nnx.iter_graph(model)]
        variables = [node for *_, node in nodes if isinstance(node, nnx.Variable)]
        return (
            [node[:3] for node in nodes],
            [(id(one.get_value()), np.asarray(_plain(one)).tobytes(), repr(one.get_metadata())) for one in variables],
            [{name: id(own) for name, own in vars(node).items()} for _, node in nnx.iter_modules(model)],
        )

    def with_table(self, case: Case, table: Any) -> Any:
        """A copy of the model, in whose variable the table stands."""
        model = known(case)[0]
        before = np.asarray(case.table(model))
        path = next(path for path, one in nnx.iter_graph(model) if _holds(one, before))
        copied = nnx.clone(model)
        dict(nnx.iter_graph(copied))[path].set_value(table)
        return copied


def _plain(variable: nnx.Variable[Any]) -> Any:
    return variable.get_value() if not isinstance(variable, nnx.RngKey) else 0


def _holds(node: Any, array: np.ndarray) -> bool:
    return isinstance(node, nnx.Param) and np.array_equal(np.asarray(node.get_value()), array)


def test_a_layer_that_was_named_before_takes_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs = CASES[0].make("float64"), []
    forward = type(model).__call__

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        runs.append(1)
        return forward(self, *arguments, **named)

    monkeypatch.setattr(type(model), "__call__", counted)
    batch = CASES[0].batch
    embgrad.gradients(model, batch, embgrad.Logit(0), at="layer.0")
    for name in ("layer.0", "layers.0"):
        runs.clear()
        assert embgrad.gradients(model, batch, embgrad.Logit(0), at=name).provenance["path"] == "layers.0:output#0"
        assert len(runs) == 1
