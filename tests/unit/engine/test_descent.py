"""Models that take an image or another text beside the text: the roles are those of the blocks that take the ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, Tensor, lookup, pull_back
from tests.unit.refusals import refused

DIM = 4
IDS = np.random.default_rng(3).permutation(np.arange(1, 31)).reshape(3, 10)
VECTOR = np.array([1.0, -2.0, 0.5, 3.0])
OBJECTIVE = embgrad.Projection(VECTOR)
RANDOM = np.random.default_rng(0)
WEIGHTS = {
    **{name: RANDOM.normal(size=(40, DIM)) for name in ("words", "places", "image_places")},
    **{f"{tower}.{number}": RANDOM.normal(0, 0.5, (DIM, DIM)) for tower in ("text", "image") for number in range(3)},
}
MODULES = [
    f"{tower}.layers.{number}{part}" for tower in ("text", "image") for number in range(3) for part in ("", ".linear")
]


def stack(model: Any, tower: str, hidden: Tensor, count: int) -> Tensor:
    """Run blocks h → tanh(h W), each a module that holds another."""

    def linear(tensor: Tensor, number: int) -> Tensor:
        return tensor @ model[f"{tower}.{number}"]

    def layer(tensor: Tensor, number: int) -> Tensor:
        return model.module(f"{tower}.layers.{number}.linear", linear, tensor, number).tanh()

    for number in range(count):
        hidden = model.module(f"{tower}.layers.{number}", layer, hidden, number)
    return hidden


def image(model: Any, pixels: Any, layers: int = 3) -> Tensor:
    """Return the sum over the image's positions of the last block's output, (example, dim)."""
    places = lookup(model["image_places"], np.arange(pixels.shape[1])[None])
    return stack(model, "image", Tensor(np.asarray(pixels)) + places, layers).sum(1)


def text(model: Any, input_ids: Any, layers: int = 2) -> Tensor:
    """Return the last block's output, (example, position, dim)."""
    places = lookup(model["places"], np.arange(input_ids.shape[1])[None])
    return stack(model, "text", lookup(model["words"], input_ids) + places, layers)


def dual(*, image_first: bool, layers: int = 2) -> ReferenceModel:
    """Return a model of an image and a text, whose output is the sum of both towers."""

    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        before = image(model, pixel_values) if image_first else None
        of_text = text(model, input_ids, layers)
        of_image = image(model, pixel_values) if before is None else before
        return of_text + of_image.reshape(len(input_ids), 1, DIM)

    return ReferenceModel(forward, WEIGHTS, MODULES)


def batch(positions: int = 10, patches: int = 10) -> dict[str, np.ndarray]:
    pixels = np.random.default_rng(1).normal(size=(len(IDS), patches, DIM))
    return {"input_ids": IDS[:, :positions], "pixel_values": pixels}


def by_hand(ids: np.ndarray, layers: int = 2) -> dict[str, np.ndarray]:
    """Return the text's hidden states and the gradients of the objective there."""
    states = [WEIGHTS["words"][ids] + WEIGHTS["places"][: ids.shape[1]]]
    for number in range(layers):
        states.append(np.tanh(states[-1] @ WEIGHTS[f"text.{number}"]))
    gradients = [np.broadcast_to(VECTOR, states[-1].shape)]
    for number in reversed(range(layers)):
        gradients.append((gradients[-1] * (1 - states[number + 1] ** 2)) @ WEIGHTS[f"text.{number}"].T)
    named = ["embeddings", *(f"layer.{number}" for number in range(layers))]
    return dict(zip(named, reversed(gradients), strict=True))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that the backend runs."""
    made: list[Any] = []
    run = ReferenceBackend.run

    def of_run(self: Any, model: Any, batch: Any, request: Any) -> Any:
        made.append(request)
        return run(self, model, batch, request)

    monkeypatch.setattr(ReferenceBackend, "run", of_run)
    return made


SIZES = [(10, 10), (6, 10), (10, 6), (2, 10)]


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_layers_are_the_texts_whatever_the_image(sizes: tuple[int, int], image_first: bool) -> None:
    model, inputs = dual(image_first=image_first), batch(*sizes)
    expected = by_hand(inputs["input_ids"])
    names = ["layer.0", "layer.-1", "embeddings", "position"]
    results = embgrad.gradients(model, inputs, OBJECTIVE, at=names)
    paths = [results[name].provenance["path"] for name in names]
    assert paths == ["text.layers.0:output#0", "text.layers.1:output#0", "text.layers.0:input#0", "places#0"]
    for name, other in (("layer.0", "layer.0"), ("layer.-1", "layer.1"), ("embeddings", "embeddings")):
        np.testing.assert_allclose(results[name].values, expected[other], atol=1e-13)
    np.testing.assert_allclose(results["position"].values, expected["embeddings"], atol=1e-13)
    roles = {role: point.name for point in embgrad.points(model, inputs) for role in point.roles}
    assert roles == {
        "word": "words#0",
        "position": "places#0",
        "embeddings": "text.layers.0:input#0",
        "layer.0": "text.layers.0#0",
        "layer.1": "text.layers.1#0",
        "layer.-1": "text.layers.1#0",
    }


@pytest.mark.parametrize("image_first", [True, False])
def test_an_image_beside_a_text_without_layers_gives_none(image_first: bool) -> None:
    model = dual(image_first=image_first, layers=0)
    with refused(embgrad.errors.UnknownPointError, "there is no point 'layer.-1'", "or do not take the ids"):
        embgrad.gradients(model, batch(), OBJECTIVE, at="layer.-1")
    position = embgrad.gradients(model, batch(), OBJECTIVE, at="position")
    assert position.provenance["path"] == "places#0"
    assert embgrad.gradients(model, batch(), OBJECTIVE, at="image.layers.2").values.any()


def test_the_passes_that_show_it_are_remembered(runs: list[Any]) -> None:
    model = dual(image_first=True)
    embgrad.gradients(model, batch(), OBJECTIVE, at="layer.-1")
    assert sum(bool(request.add) for request in runs) == 1
    runs.clear()
    embgrad.gradients(model, batch(), OBJECTIVE, at="layer.-1")
    assert len(runs) == 1
    runs.clear()
    embgrad.gradients(model, batch(), OBJECTIVE)
    embgrad.gradients(model, batch(), OBJECTIVE, at="image.layers.0")
    assert len(runs) == 2


def test_a_model_of_a_text_alone_takes_no_further_pass(runs: list[Any]) -> None:
    model = ReferenceModel(lambda model, input_ids: text(model, input_ids, 3), WEIGHTS, MODULES)
    embgrad.gradients(model, IDS, OBJECTIVE, at=["layer.-1", "embeddings", "position"])
    assert len(runs) == 1


@pytest.mark.parametrize("layers", [3, 0], ids=["the same layers", "no layers"])
@pytest.mark.parametrize("queries", [["other"], ["equal", "other"], ["other", "equal"]], ids=" ".join)
def test_an_encoder_of_two_texts_has_the_layers_of_the_ids(queries: list[str], layers: int) -> None:
    def forward(model: Any, query_ids: Any, input_ids: Any) -> Tensor:
        query = text(model, query_ids, 3) if layers else lookup(model["words"], query_ids)
        return text(model, input_ids, 3) + query.sum(1).reshape(len(input_ids), 1, DIM)

    model, time, expected = ReferenceModel(forward, WEIGHTS, MODULES), int(layers > 0), by_hand(IDS, 3)
    for query in queries:
        inputs = {"input_ids": IDS, "query_ids": IDS[:, ::-1].copy() if query == "other" else IDS.copy()}
        embgrad.points(model, inputs)  # which shows of two equal texts neither as that of the ids
        results = embgrad.gradients(model, inputs, OBJECTIVE, at=["word", "layer.-1", "position"])
        assert results["word"].provenance["path"] == "words#1"
        assert results["layer.-1"].provenance["path"] == f"text.layers.2:output#{time}"
        assert results["position"].provenance["path"] == f"places#{time}"
        np.testing.assert_allclose(results["layer.-1"].values, expected["layer.2"], atol=1e-13)
        np.testing.assert_allclose(results["word"].values, expected["embeddings"], atol=1e-13)


def test_an_image_that_only_the_users_function_gives() -> None:
    def forward(model: Any, ids: Any, pixels: Any) -> Tensor:
        rows = lookup(model["words"], ids)
        return rows + image(model, pixels).reshape(len(ids), 1, DIM)

    model, pixels = ReferenceModel(forward, WEIGHTS, MODULES), batch()["pixel_values"]

    def call(model: Any, inputs: Any) -> Any:
        return model(inputs, pixels[: len(inputs)])

    with pytest.raises(embgrad.errors.UnknownPointError, match=r"there is no point 'layer\.0'"):
        embgrad.gradients(model, IDS, OBJECTIVE, at="layer.0", call=call)


def test_text_that_reads_the_image_and_an_image_that_reads_the_text() -> None:
    """A text that attends to the image keeps its layers; blocks of an image that gets the text first have them too."""

    def reading(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        seen = image(model, pixel_values).reshape(len(input_ids), 1, DIM)
        return stack(model, "text", lookup(model["words"], input_ids) + seen, 2)

    model = ReferenceModel(reading, WEIGHTS, MODULES)
    result = embgrad.gradients(model, batch(), OBJECTIVE, at="layer.0")
    assert result.provenance["path"] == "text.layers.0:output#0"
    assert embgrad.gradients(model, batch(), OBJECTIVE, at="embeddings").provenance["path"] == "text.layers.0:input#0"

    def read(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        return stack(model, "image", lookup(model["words"], input_ids) + Tensor(pixel_values), 2)

    result = embgrad.gradients(ReferenceModel(read, WEIGHTS, MODULES), batch(), OBJECTIVE, at="layer.-1")
    assert result.provenance["path"] == "image.layers.1:output#0"


def test_a_model_that_hides_its_lookup_is_asked_with_other_ids() -> None:
    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        of_image = image(model, pixel_values).reshape(len(input_ids), 1, DIM)
        return stack(model, "text", Tensor(WEIGHTS["words"][input_ids]), 2) + of_image

    model = ReferenceModel(forward, WEIGHTS, MODULES)
    result = embgrad.gradients(model, batch(), OBJECTIVE, at="layer.-1")
    assert result.provenance["path"] == "text.layers.1:output#0"


def gated(gate: float) -> ReferenceModel:
    """Return a model whose first blocks take an image and a small share of the text."""

    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        rows = lookup(model["words"], input_ids)
        mixed = stack(model, "image", Tensor(pixel_values) + rows * gate, 3)
        return stack(model, "text", rows, 2) + mixed

    return ReferenceModel(forward, WEIGHTS, MODULES)


def test_a_change_as_small_as_rounding_is_not_decided_on() -> None:
    with refused(
        embgrad.errors.AmbiguousPointError,
        "the layers may be those of the text or of another input, in 'image.layers.0', 'text.layers.0'",
        "'image.layers.0:input#0' hardly changes with other rows at 'word'. Name a module by its path",
    ):
        embgrad.gradients(gated(1e-15), batch(), OBJECTIVE, at="layer.-1")
    roles = [role for point in embgrad.points(gated(1e-15), batch()) for role in point.roles]
    assert roles == ["word"]
    result = embgrad.gradients(gated(1e-3), batch(), OBJECTIVE, at="layer.-1")
    assert result.provenance["path"] == "image.layers.2:output#0"


def test_a_pass_that_raises_is_reported() -> None:
    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        rows = lookup(model["words"], input_ids)
        if abs(rows.value).max() > abs(WEIGHTS["words"]).max():
            raise ValueError("too large")
        return stack(model, "text", rows, 2) + image(model, pixel_values).reshape(len(input_ids), 1, DIM)

    with refused(
        embgrad.errors.AmbiguousPointError,
        "in 'text.layers.0', 'image.layers.0', and a forward pass with other rows at 'word', which would show it, raised "
        "ValueError: name a module by its path",
    ):
        embgrad.gradients(ReferenceModel(forward, WEIGHTS, MODULES), batch(), OBJECTIVE, at="layer.-1")


@pytest.mark.parametrize("image_first", [True, False])
@pytest.mark.parametrize("name", ["layer.0", "embeddings"])
def test_the_users_own_passes(name: str, image_first: bool) -> None:
    model, inputs = dual(image_first=image_first), batch()
    with embgrad.capture(model, at=name) as tap:
        output = model(**inputs)
        pull_back([(output, np.broadcast_to(VECTOR, output.shape))], [model["words"]])
    np.testing.assert_allclose(tap.steps[0].values, by_hand(IDS)[name], atol=1e-13)
    plain = model(**inputs).value
    with embgrad.perturbed(model, {name: np.full(DIM, 0.1)}):
        changed = model(**inputs).value - plain
    states = WEIGHTS["words"][IDS] + WEIGHTS["places"][: IDS.shape[1]]
    entered = states + 0.1 * (name == "embeddings")
    first = np.tanh(entered @ WEIGHTS["text.0"]) + 0.1 * (name == "layer.0")
    expected = np.tanh(first @ WEIGHTS["text.1"]) - np.tanh(np.tanh(states @ WEIGHTS["text.0"]) @ WEIGHTS["text.1"])
    np.testing.assert_allclose(changed, expected, atol=1e-13)


def test_a_pass_of_the_user_without_a_lookup_of_ids_is_not_decided_on() -> None:
    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        of_image = image(model, pixel_values).reshape(len(input_ids), 1, DIM)
        return stack(model, "text", Tensor(WEIGHTS["words"][input_ids]), 2) + of_image

    model = ReferenceModel(forward, WEIGHTS, MODULES)
    with (
        refused(embgrad.errors.AmbiguousPointError, "in 'image.layers.0', 'text.layers.0': name a module by its path"),
        embgrad.capture(model, at="layer.0"),
    ):
        model(**batch())


def test_a_model_that_holds_blocks_is_not_its_own_embedding_block() -> None:
    """The blocks run at the positions of the image and the text together, so that they are no layers of the text's."""

    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        def embed(ids: Any) -> Tensor:
            return lookup(model["words"], ids) + lookup(model["places"], np.arange(ids.shape[1])[None])

        def whole(ids: Any) -> Tensor:
            rows = model.module("base.embeddings", embed, ids)
            both = np.concatenate([rows.value, pixel_values], 1)
            joined = Tensor(both, [(rows, lambda g: g[:, : ids.shape[1]])])
            return stack(model, "text", joined, 2).sum(1)

        return model.module("base", whole, input_ids)

    model = ReferenceModel(forward, WEIGHTS, ["base", "base.embeddings", *MODULES])
    result = embgrad.gradients(model, batch(6, 10), OBJECTIVE, at="embeddings")
    assert result.provenance["path"] == "base.embeddings:output#0"


SPECIAL: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("NaN", lambda pixels: np.where(np.arange(DIM) == 0, np.nan, pixels)),
    ("infinite", lambda pixels: np.where(np.arange(DIM) == 0, np.inf, pixels)),
]


@pytest.mark.parametrize(("what", "change"), SPECIAL, ids=[name for name, _ in SPECIAL])
def test_an_image_with_numbers_that_are_not_finite(what: str, change: Any) -> None:
    inputs = batch()
    inputs["pixel_values"] = change(inputs["pixel_values"])

    def forward(model: Any, input_ids: Any, pixel_values: Any) -> Tensor:
        image(model, pixel_values)
        return text(model, input_ids)

    with np.errstate(all="ignore"):
        result = embgrad.gradients(ReferenceModel(forward, WEIGHTS, MODULES), inputs, OBJECTIVE, at="layer.0")
    assert result.provenance["path"] == "text.layers.0:output#0", what
    np.testing.assert_allclose(result.values, by_hand(IDS)["layer.0"], atol=1e-13)
