"""How a property is run: in which frameworks, and on how many generated cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import PACKAGES, REFERENCE, backends_under_test

#: Every backend under test.
each_framework = pytest.mark.parametrize("framework", backends_under_test())

#: Every two frameworks. The reference needs no pairs: it is compared with the closed form, as each framework is.
each_pair = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=[pytest.mark.framework(name) for name in pair])
        for pair in itertools.combinations(PACKAGES, 2)
    ],
)

_ALIKE: Final = settings(
    deadline=None,  # a busy machine is no failure
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

#: Of what is asked of a framework: building a model of Keras takes 50 ms.
property_of = settings(_ALIKE, max_examples=25)

_IN_NUMPY: Final = settings(_ALIKE, max_examples=100)


def by_hand(test: Callable[..., Any]) -> Any:
    """Run a property of what is computed in NumPy alone, where the reference is under test."""
    return pytest.mark.framework(REFERENCE)(_IN_NUMPY(test))
