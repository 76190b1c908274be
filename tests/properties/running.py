"""How a property is run: in which frameworks, and on how many generated cases."""

from __future__ import annotations

import itertools
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import PACKAGES, backends_under_test

__all__ = ["by_hand", "each_framework", "each_pair", "property_of"]

#: Every framework that is under test, the reference among them.
each_framework = pytest.mark.parametrize("framework", backends_under_test())

#: Every two of them; those of which one is not under test are left out, as the summary says.
each_pair = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=[pytest.mark.framework(name) for name in pair])
        for pair in itertools.combinations(["reference", *PACKAGES], 2)
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

#: Of what is computed in NumPy alone.
by_hand = settings(_ALIKE, max_examples=100)
