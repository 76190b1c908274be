"""Models of an image and a text in transformers: their layers are the text's, as autograd shows, whatever the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

POSITIONS = (5, 9)  # the image has five: four patches and a class
TEXT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
    "max_position_embeddings": 40,
}  # fmt: skip
IMAGE = {
    "image_size": 16, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 37,
}  # fmt: skip
Similarity = Callable[[Any], Any]


def two_encoders(prefix: str, **text: Any) -> Callable[[], tuple[Any, Similarity]]:
    """A model whose two encoders meet in their similarity alone."""

    def make() -> tuple[Any, Similarity]:
        config = getattr(transformers, f"{prefix}Config")(
            text_config={**TEXT, **text}, vision_config=IMAGE, projection_dim=16
        )
        return getattr(transformers, f"{prefix}Model")(config), lambda outputs: outputs.logits_per_text.diagonal()

    return make


def blip() -> tuple[Any, Similarity]:
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = transformers.BlipConfig(text_config={**TEXT, **ids, "encoder_hidden_size": 32}, vision_config=IMAGE)
    return transformers.BlipForConditionalGeneration(config), lambda outputs: outputs.logits[:, -1, 7]


def llava() -> tuple[Any, Similarity]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE),
        text_config=transformers.LlamaConfig(**TEXT, num_key_value_heads=2),
        image_token_index=98,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config), lambda outputs: outputs.logits[:, -1, 7]


MODELS: dict[str, tuple[Callable[[], tuple[Any, Similarity]], str, int]] = {
    "CLIP": (two_encoders("CLIP", eos_token_id=98), "text_model.encoder.layers", 0),
    "BLIP": (blip, "text_decoder.bert.encoder.layer", 0),
    "Llava": (llava, "model.language_model.layers", 4),
}


def inputs(positions: int, images: int) -> dict[str, Any]:
    """Return the inputs of a model, of which the first positions are replaced by the image where the model does that."""
    random = np.random.default_rng(0)
    ids = random.integers(5, 90, (2, positions))
    ids[:, :images] = 98
    return {"input_ids": ids, "pixel_values": torch.rand(2, 3, 16, 16)}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_layers_are_those_that_take_the_ids(name: str, positions: int) -> None:
    build, tower, images = MODELS[name]
    torch.manual_seed(0)
    model, objective = build()
    batch = inputs(positions, images)
    results = embgrad.gradients(model.eval(), batch, objective, at=["layer.0", "layer.-1", "embeddings"])
    assert results["layer.0"].provenance["path"] == f"{tower}.0:output#0"
    assert results["layer.-1"].provenance["path"] == f"{tower}.1:output#0"
    layers = model.get_submodule(tower)
    outputs: list[Any] = []
    hooks = [
        layer.register_forward_hook(
            lambda module, args, output: outputs.append(output if torch.is_tensor(output) else output[0])
        )
        for layer in layers
    ]
    native = {key: torch.as_tensor(value) for key, value in batch.items()}
    expected = torch.autograd.grad(objective(model(**native)).sum(), outputs)
    for hook in hooks:
        hook.remove()
    for role, gradient in zip(("layer.0", "layer.-1"), expected, strict=True):
        np.testing.assert_allclose(results[role].values, gradient.numpy(), rtol=1e-5, atol=1e-9)
        assert results[role].values.any()


def test_positions_of_an_image_are_not_those_of_a_text_without_any() -> None:
    torch.manual_seed(0)
    model, objective = llava()
    with pytest.raises(embgrad.errors.UnknownPointError, match="the model makes no lookup by position"):
        embgrad.gradients(model.eval(), inputs(5, 4), objective, at="position")
    roles = {role for point in embgrad.points(model, inputs(5, 4)) for role in point.roles}
    assert roles == {"word", "embeddings", "layer.0", "layer.1", "layer.-1"}


def test_a_text_of_any_length_has_layers_beside_an_image() -> None:
    torch.manual_seed(0)
    model, objective = MODELS["CLIP"][0]()
    for positions in (3, 5, 6, 40):
        result = embgrad.gradients(model.eval(), inputs(positions, 0), objective, at="layer.-1")
        assert result.provenance["path"] == "text_model.encoder.layers.1:output#0"


def test_capture_and_perturbed_name_the_texts_layers() -> None:
    torch.manual_seed(0)
    model, objective = MODELS["CLIP"][0]()
    batch = {key: torch.as_tensor(value) for key, value in inputs(5, 0).items()}
    model.eval()
    with embgrad.capture(model, at="layer.0") as tap:
        objective(model(**batch)).sum().backward()
    result = embgrad.gradients(model, batch, objective, at="layer.0")
    np.testing.assert_allclose(tap.steps[0].values, result.values, rtol=1e-5, atol=1e-9)
    plain = objective(model(**batch)).detach().numpy()
    with embgrad.perturbed(model, {"layer.0": np.linspace(-1, 1, 32)}):
        changed = objective(model(**batch)).detach().numpy()
    added = embgrad.evaluate(model, batch, objective, add={"layer.0": np.linspace(-1, 1, 32)})
    np.testing.assert_allclose(changed, added, rtol=1e-5)
    assert abs(changed - plain).max() > 1e-4
