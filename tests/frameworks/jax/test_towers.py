"""A model of an image and a text in Flax NNX: its layers are the text's."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from tests.frameworks.jax.nnx_layers import normal
from tests.support.towers import DIM, expect_roles_of_text


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(DIM, DIM, rngs=rngs)

    def __call__(self, hidden: Any) -> Any:
        return hidden + jnp.tanh(self.inner(hidden))


class Text(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words, self.places = nnx.Embed(20, DIM, rngs=rngs), nnx.Embed(20, DIM, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(2)])

    def __call__(self, input_ids: Any) -> Any:
        hidden = self.words(input_ids) + self.places(jnp.arange(input_ids.shape[1])[None])
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.mean(1)


class Towers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, image_first: bool) -> None:
        self.image_first = image_first
        self.text = Text(rngs)
        self.image = nnx.List([Layer(rngs) for _ in range(3)])
        self.places = nnx.Param(normal(rngs, (8, DIM), jnp.float32))

    def see(self, features: Any) -> Any:
        hidden = features + self.places[: features.shape[1]]
        for layer in self.image:
            hidden = layer(hidden)
        return hidden.mean(1)

    def __call__(self, input_ids: Any, features: Any) -> Any:
        if self.image_first:
            image = self.see(features)
            return self.text(input_ids) * image
        return self.text(input_ids) * self.see(features)


@pytest.mark.parametrize("image_first", [True, False])
def test_the_layers_are_those_of_the_text(image_first: bool) -> None:
    expect_roles_of_text(Towers(nnx.Rngs(0), image_first), "text")
