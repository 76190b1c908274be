"""What tells TensorFlow's tensors from others when a stream is gone on with: also ragged ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from embgrad.streaming.digest import UnreadableError, digest_of

#: By what they are, tensors that hold a number, and others of another one.
KINDS: dict[str, Callable[[int], Any]] = {
    "bfloat16": lambda n: tf.constant([n], tf.bfloat16),
    "texts": lambda n: tf.constant(["a" * n]),
    "ragged": lambda n: tf.ragged.constant([[n], [1, 2]]),
    "a variable": lambda n: tf.Variable([n]),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_tensors_have_digests_of_their_values(make: Callable[[int], Any]) -> None:
    assert digest_of(make(1)) == digest_of(make(1))
    assert digest_of(make(1)) != digest_of(make(2))


@pytest.mark.parametrize(
    "made",
    [tf.experimental.Optional.from_value(1), tf.data.Dataset.range(2), tf.sparse.from_dense([[1, 0]]),
        tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1])), tf.int32],
    ids=lambda made: type(made).__name__,
)  # fmt: skip
def test_objects_without_values_have_no_digest(made: Any) -> None:
    with pytest.raises(UnreadableError):
        digest_of(made)
