"""Text models in Equinox, and what is Equinox's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest

from tests.frameworks.jax.cases import Case, as_dict, cross_entropies
from tests.frameworks.jax.checks import ModelChecks, by_path, known, replaced
from tests.frameworks.jax.equinox_models import CASES


class TestEquinox(ModelChecks):
    """The checks of every model."""

    cases = CASES

    @pytest.fixture(params=CASES, ids=str)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    def gradients_of_parameters(self, case: Case, model: Any) -> Mapping[str, Any]:
        """By `eqx.filter_grad`; a part's path begins with its number."""
        inputs = {name: jnp.asarray(one) for name, one in as_dict().items()}

        @eqx.filter_jit
        @eqx.filter_grad
        def gradients(model: Any) -> Any:
            return cross_entropies(model(**inputs) if case.call is None else case.call(model, inputs)).sum()

        found = gradients(model)
        if not isinstance(model, tuple):
            return by_path(found)
        return {f"0.{path}": one for path, one in by_path(found[0]).items()}

    def with_table(self, case: Case, table: Any) -> Any:
        """The model with another table."""
        model = known(case)[0]
        return replaced(model, case.table(model), table)
