"""A model of an image and a text in both Keras: its layers are the text's."""

from __future__ import annotations

from typing import Any

import keras as keras3
import pytest
import tensorflow as tf
import tf_keras as keras2

from tests.support.towers import DIM, expect_roles_of_text


def towers(keras: Any, image_first: bool) -> Any:
    """Return the model, of subclasses of this Keras's layers."""

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(DIM, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.5, 1))

        def call(self, hidden: Any) -> Any:
            return hidden + tf.tanh(self.inner(hidden))

    class Text(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = keras.layers.Embedding(20, DIM), keras.layers.Embedding(20, DIM)
            self.blocks = [Block() for _ in range(2)]

        def call(self, input_ids: Any) -> Any:
            hidden = self.words(input_ids) + self.places(tf.range(tf.shape(input_ids)[1])[None])
            for block in self.blocks:
                hidden = block(hidden)
            return tf.reduce_mean(hidden, 1)

    class Towers(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.text = Text()
            self.image = [Block() for _ in range(3)]

        def see(self, features: Any) -> Any:
            for block in self.image:
                features = block(features)
            return tf.reduce_mean(features, 1)

        def call(self, input_ids: Any, features: Any) -> Any:
            if image_first:
                image = self.see(features)
                return self.text(input_ids) * image
            return self.text(input_ids) * self.see(features)

    return Towers()


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("keras", [keras2, keras3], ids=["tf_keras", "keras"])
def test_the_layers_are_those_of_the_text(keras: Any, image_first: bool) -> None:
    expect_roles_of_text(towers(keras, image_first), "text")
