"""The frameworks and the number of generated cases of a property."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import backends_under_test

each_framework = pytest.mark.parametrize("framework", backends_under_test())

_SETTINGS: Final = settings(
    deadline=None,  # a busy machine is no failure
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

#: For properties of a framework, in which a model takes up to 50 ms to build, and in JAX, which compiles each operation for each
#: shape, a second to run.
property_of = settings(_SETTINGS, max_examples=10 if "jax" in backends_under_test() else 25)

#: For properties of the closed form.
in_numpy = settings(_SETTINGS, max_examples=100)
