"""Small real models with the same random weights in each framework, and what is asked of them."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import embgrad
from embgrad import TokenBatch
from tests.cross.diagnosis.recipes import POSTS, Computed, Loss, Recipe

#: The models of each framework: BERT with a head, bare, and with a tied head; a causal one; one of the user's own.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("classifier", "encoder", "tied", "causal", "own"),
    "tensorflow": ("classifier", "encoder", "tied", "own"),
    "gluon": ("classifier", "encoder", "tied", "own"),
}


@dataclass(frozen=True)
class Size:
    vocab: int = 60
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    inner: int = 48
    positions: int = 20
    types: int = 2
    classes: int = 3
    lengths: tuple[int, ...] = (11, 7, 5, 9)


#: Several, so that no factor of one is a factor of all: batch, tokens, classes, width.
SIZES: Final = (
    Size(),
    Size(
        vocab=70, hidden=24, layers=2, heads=3, inner=40, positions=16, types=3, classes=2, lengths=(9, 4, 8, 6, 7, 3)
    ),
    Size(vocab=50, hidden=40, layers=3, heads=5, inner=64, positions=24, classes=4, lengths=(5, 13, 9)),
)


def bert_weights(size: Size, seed: int) -> dict[str, np.ndarray]:
    """Random weights by Hugging Face's names: no norm is trivial, no table small, attention is not even."""
    random = np.random.default_rng([seed, 1])
    wide, inner = size.hidden, size.inner

    def normal(std: float, *shape: int) -> np.ndarray:
        return random.normal(0, std, shape).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": normal(0.4, size.vocab, wide),
        "embeddings.position_embeddings.weight": normal(0.3, size.positions, wide),
        "embeddings.token_type_embeddings.weight": normal(0.3, size.types, wide),
    }
    dense = {"pooler.dense": (wide, wide), "head.transform.dense": (wide, wide), "classifier": (size.classes, wide)}
    norms = ["embeddings.LayerNorm", "head.transform.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(size.layers)):
        dense |= {f"{layer}.attention.self.{name}": (wide, wide) for name in ("query", "key", "value")}
        dense |= {f"{layer}.attention.output.dense": (wide, wide), f"{layer}.intermediate.dense": (inner, wide)}
        dense |= {f"{layer}.output.dense": (wide, inner)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in dense.items():
        std = 0.3 if name.endswith(("query", "key")) else 0.18
        found |= {f"{name}.weight": normal(std, *shape), f"{name}.bias": normal(0.15, shape[0])}
    for name in norms:
        gamma = random.uniform(0.6, 1.5, wide).astype(np.float32)
        found |= {f"{name}.weight": gamma, f"{name}.bias": normal(0.2, wide)}
    return found | {"head.bias": normal(0.1, size.vocab)}


def token_batch(size: Size, seed: int, kind: str, convention: str) -> TokenBatch:
    """Examples of different lengths, padded on the right, as a tokenizer gives them: [CLS] … [SEP]."""
    random = np.random.default_rng([seed, 2])
    length = max(size.lengths)
    if kind == "tied" and size is SIZES[2]:  # no id stands twice, so that nothing is summed over repeats
        ids = random.permutation(np.arange(5, size.vocab))[: len(size.lengths) * length]
        ids = ids.reshape(-1, length)
        return TokenBatch(ids, np.ones_like(ids), ids % 2, convention=convention)
    ids = np.zeros((len(size.lengths), length), np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, count in enumerate(size.lengths):
        ids[row, :count] = [2, *random.integers(5, size.vocab - 3, count - 2), 3]
        mask[row, :count] = 1
        types[row, count // 2 + 1 : count] = 1
    if kind in ("causal", "own"):
        return TokenBatch(ids, mask, convention=convention)
    return TokenBatch(ids, mask, types, convention=convention)


@dataclass(frozen=True, eq=False)
class World:
    """A healthy model, its batch and its objectives.

    Attributes:
        native: the module that speaks to the framework, `native_torch` and so on.
        weights: by Hugging Face's names; empty where the model is the user's own.
    """

    framework: str
    kind: str
    seed: int
    size: Size
    native: Any
    weights: Mapping[str, np.ndarray]
    batch: TokenBatch
    model: Any

    def loss(self, base: str) -> Loss:
        random = np.random.default_rng([self.seed, 3])
        count, classes = len(self.batch), self.size.classes
        chosen = random.integers(0, classes, count)
        vector = random.normal(size=self.size.hidden)
        if base in ("projection", "first"):
            return Loss(base, vector)
        if base == "tokens":
            labels = random.integers(5, self.size.vocab, self.batch.shape)
            return Loss(base, np.where(self.batch.real & (random.random(self.batch.shape) < 0.6), labels, -100))
        return Loss(base, chosen, (chosen + 1) % classes if base == "margin" else None)

    def objective(self, base: str) -> Any:
        loss = self.loss(base)
        if base in ("projection", "first"):
            return embgrad.Projection(loss.numbers, output="sequence", position=0 if base == "first" else None)
        made = {
            "cross-entropy": lambda: embgrad.CrossEntropy(loss.numbers),
            "tokens": lambda: embgrad.CrossEntropy(loss.numbers),
            "logit": lambda: embgrad.Logit(loss.numbers),
            "margin": lambda: embgrad.Margin(loss.numbers, loss.against),
            "sum": lambda: embgrad.Sum(),
        }
        return made[base]()

    def changed_loss(self, base: str, kind: str) -> Loss:
        """The loss that a recipe asks for in place of the healthy one."""
        loss = self.loss(base)
        if kind == "next-label":
            return replace(loss, numbers=(loss.numbers + 1) % self.size.classes)
        if kind == "previous-label":
            return replace(loss, numbers=(loss.numbers - 1) % self.size.classes)
        return replace(loss, kind=kind) if kind else loss

    @functools.cached_property
    def _healthy(self) -> dict[str, embgrad.results.EmbeddingGradients]:
        return {}

    def healthy(self, base: str) -> embgrad.results.EmbeddingGradients:
        if base not in self._healthy:
            self._healthy[base] = quietly(self.model, self.batch, self.objective(base))
        return self._healthy[base]

    def modified(self, recipe: Recipe) -> Any:
        if not recipe.modify:
            return self.model
        model = self.native.build(self.kind, self.size, self.weights, self.seed)
        changes = importlib.import_module(f"tests.cross.diagnosis.changes_{self.framework}")
        for name in recipe.modify:
            model = changes.MODIFICATIONS[name](model, self)
        return model

    def faulty(self, recipe: Recipe, base: str) -> tuple[embgrad.results.EmbeddingGradients, Any]:
        model = self.modified(recipe)
        if recipe == Recipe(modify=recipe.modify, training=recipe.training):
            return quietly(model, self.batch, self.objective(base), training=recipe.training), model
        computed = self.native.by_hand(model, self, self.changed_loss(base, recipe.loss), recipe)
        return self.as_result(self.post(computed, recipe), recipe, base), model

    def post(self, computed: Computed, recipe: Recipe) -> Computed:
        """What the recipe does to the finished numbers."""
        values, healthy = computed.values, next(iter(self._healthy.values()))
        for name in recipe.post:
            values = POSTS[name](values, self.batch, healthy.activations)
        return replace(computed, values=np.ascontiguousarray(values, np.float32))

    def as_result(self, computed: Computed, recipe: Recipe, base: str) -> embgrad.results.EmbeddingGradients:
        """Numbers by hand as their user puts them into a result."""
        a = self.healthy(base)
        losses = computed.losses if recipe.reduction == "sum" else np.asarray(computed.losses.mean())
        provenance = {**a.provenance, "model": f"{a.provenance['model']}, by hand"}
        return replace(a, values=computed.values, objective=losses, provenance=provenance)


def quietly(model: Any, batch: TokenBatch, objective: Any, **options: Any) -> embgrad.results.EmbeddingGradients:
    """embgrad's result, without the warning that a model ignores the mask: some do here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        return embgrad.gradients(model, batch, objective, **options)


@functools.cache
def world(framework: str, kind: str, seed: int) -> World:
    native = importlib.import_module(f"tests.cross.diagnosis.native_{framework}")
    size = SIZES[seed % len(SIZES)]
    weights = {} if kind in ("own", "causal") else bert_weights(size, seed)
    convention = native.CONVENTIONS[kind]
    model = native.build(kind, size, weights, seed)
    return World(framework, kind, seed, size, native, weights, token_batch(size, seed, kind, convention), model)
