"""The private names of TensorFlow and Keras on which the backend relies are there, and do what it relies on."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from tests.frameworks.tensorflow.helpers import KERAS
from tests.frameworks.tensorflow.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names

VERSIONS = f"TensorFlow {tf.__version__}, tf_keras {tf_keras.__version__}, keras {KERAS['keras3'].__version__}"


def expect(holds: bool, what: str) -> None:
    """Assert that a private name does what the backend relies on."""
    assert holds, f"{what} is not as it was any more in {VERSIONS}"


def test_the_list_has_the_private_names_in_use() -> None:
    assert sorted(private_names("embgrad_tensorflow")) == sorted(PRIVATE_NAMES)


@pytest.mark.parametrize("name", [one for one in PRIVATE_NAMES if "." in one])
def test_private_modules_and_classes_exist(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), attribute, None) or importlib.import_module(name)
    except ImportError:
        found = None
    expect(found is not None, name)
