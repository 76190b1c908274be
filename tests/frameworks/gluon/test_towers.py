"""A net of an image and a text: its layers are the text's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.gluon.helpers import mx
from tests.support.towers import DIM, expect_roles_of_text

nn = mx.gluon.nn


class Layer(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(DIM, in_units=DIM, flatten=False)

    def hybrid_forward(self, F: Any, hidden: Any) -> Any:
        return hidden + F.tanh(self.inner(hidden))


class Text(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, DIM), nn.Embedding(20, DIM)
        self.layers = nn.HybridSequential()
        self.layers.add(*[Layer() for _ in range(2)])

    def hybrid_forward(self, F: Any, input_ids: Any) -> Any:
        places = F.expand_dims(self.places(F.contrib.arange_like(input_ids, axis=1)), 0)
        return F.mean(self.layers(F.broadcast_add(self.words(input_ids), places)), axis=1)


class Towers(mx.gluon.HybridBlock):
    def __init__(self, image_first: bool) -> None:
        super().__init__()
        self.image_first = image_first
        self.text = Text()
        self.image = nn.HybridSequential()
        self.image.add(*[Layer() for _ in range(3)])

    def hybrid_forward(self, F: Any, input_ids: Any, features: Any) -> Any:
        if self.image_first:
            image = F.mean(self.image(features), axis=1)
            return self.text(input_ids) * image
        return self.text(input_ids) * F.mean(self.image(features), axis=1)


@pytest.mark.parametrize("hybridised", [True, False])
@pytest.mark.parametrize("image_first", [True, False])
def test_the_layers_are_those_of_the_text(image_first: bool, hybridised: bool) -> None:
    mx.random.seed(0)
    net = Towers(image_first)
    net.initialize(mx.init.Normal(0.5))
    if hybridised:
        net.hybridize()
    expect_roles_of_text(net, "text")
