"""Text models in Flax Linen, as (module, variables) with `call=`, and what is Linen's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.frameworks.jax.cases import Case, as_dict, cross_entropies
from tests.frameworks.jax.checks import ModelChecks, by_path, known, replaced
from tests.frameworks.jax.linen_models import CASES


class TestLinen(ModelChecks):
    """The checks of every model."""

    cases = CASES

    @pytest.fixture(params=CASES, ids=str)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    def gradients_of_parameters(self, case: Case, model: Any) -> Mapping[str, Any]:
        """By `jax.grad` of the collection "params"; batch statistics are no parameters."""
        module, variables = model
        inputs = {name: jnp.asarray(one) for name, one in as_dict().items()}

        @jax.jit
        @jax.grad
        def gradients(parameters: Any) -> Any:
            return cross_entropies(case.call((module, {**variables, "params": parameters}), inputs)).sum()

        return {f"params.{path}": one for path, one in by_path(gradients(variables["params"])).items()}

    def state(self, model: Any) -> Any:
        """The module's attributes, and the variables."""
        module, variables = model
        return id(module), repr(vars(module)), super().state(variables)

    def with_table(self, case: Case, table: Any) -> Any:
        """The module, with variables among which the table stands."""
        module, variables = known(case)[0]
        return module, replaced(variables, case.table((module, variables)), table)
