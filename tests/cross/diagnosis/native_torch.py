"""PyTorch by hand: healthy models, and the gradient as a user's own script takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import nn

from tests.cross.diagnosis.losses import Functions, losses_of, reduced
from tests.cross.diagnosis.recipes import Computed, Loss, Recipe

CONVENTIONS: Final = dict.fromkeys(("classifier", "encoder", "tied", "causal", "own"), "huggingface")

PREFIX: Final = {
    "classifier": {"": "bert.", "classifier": "classifier"},
    "encoder": {"": ""},
    "tied": {"": "bert.", "head.bias": "cls.predictions.bias", "head.transform": "cls.predictions.transform"},
}
CLASSES: Final = {
    "classifier": transformers.BertForSequenceClassification,
    "encoder": transformers.BertModel,
    "tied": transformers.BertForMaskedLM,
}


class Own(nn.Module):
    """A pre-norm transformer of a user's own, whose lookup is scaled by the root of its width."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        wide = size.hidden
        self.tokens = nn.Embedding(size.vocab, wide)
        self.places = nn.Parameter(torch.randn(size.positions, wide) * 0.5)
        self.blocks = nn.ModuleList(Block(wide, size.inner, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, size.classes)

    def scaled(self, input_ids: torch.Tensor) -> torch.Tensor:
        """What goes into the blocks, less the places."""
        return self.tokens(input_ids) * math.sqrt(self.tokens.embedding_dim)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.scaled(input_ids) + self.places[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x, attention_mask)
        return self.head(self.norm(x).mean(1))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, wide: int, inner: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.query, self.key, self.value, self.out = (nn.Linear(wide, wide) for _ in range(4))
        self.up, self.down, self.act = nn.Linear(wide, inner), nn.Linear(inner, wide), nn.GELU()
        self.drop, self.heads = nn.Dropout(0.1), heads

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        parts = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query(h), self.key(h), self.value(h))
        ]
        joined = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask[:, None, None, :].bool())
        x = x + self.drop(self.out(joined.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


def seed(number: int) -> None:
    torch.manual_seed(number)


def build(kind: str, size: Any, weights: Mapping[str, np.ndarray], seed: int) -> Any:
    torch.manual_seed(seed)
    if kind == "own":
        return _randomised(Own(size), seed).eval()
    if kind == "causal":
        config = transformers.GPT2Config(
            vocab_size=size.vocab,
            n_embd=size.hidden,
            n_layer=size.layers,
            n_head=size.heads,
            n_positions=size.positions,
        )
        return _randomised(transformers.GPT2LMHeadModel(config), seed).eval()
    config = transformers.BertConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        max_position_embeddings=size.positions,
        type_vocab_size=size.types,
        num_labels=size.classes,
    )
    model = CLASSES[kind](config)
    state, prefix = model.state_dict(), PREFIX[kind]
    for name, value in weights.items():
        longest = max((start for start in prefix if name.startswith(start)), key=len)
        native = (
            prefix[longest] + name[len(longest) :] if longest or not name.startswith(("head", "classifier")) else ""
        )
        if native in state:
            state[native].copy_(torch.tensor(value))
    return model.eval()


def _randomised(model: Any, seed: int) -> Any:
    random = np.random.default_rng([seed, 4])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            table = name.endswith(("wte.weight", "wpe.weight", "tokens.weight", "places"))
            std = 0.35 if table else 0.25 if parameter.ndim == 2 else 0.15
            base = 1.0 if parameter.ndim == 1 and ("norm" in name or "ln_" in name) and name.endswith("weight") else 0.0
            parameter.copy_(torch.tensor(base + random.normal(0, std, tuple(parameter.shape)), dtype=parameter.dtype))
    return model


class Port(nn.Module):
    """Somebody's port of the model, which loses or changes an input on the way."""

    def __init__(self, inner: Any, drop: str = "", offset: int = 0) -> None:
        super().__init__()
        self.inner, self.drop, self.offset = inner, drop, offset

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Any:
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        passed = {name: value for name, value in given.items() if value is not None and name != self.drop}
        if self.offset:
            passed["position_ids"] = torch.arange(input_ids.shape[1])[None] + self.offset
        return self.inner(input_ids, **passed)


def core(model: Any) -> Any:
    """The model inside a port, and the BERT inside a head."""
    inner = model.inner if isinstance(model, Port) else model
    return getattr(inner, "bert", inner)


def table_of(model: Any) -> Any:
    inner = core(model)
    return inner.tokens if isinstance(inner, Own) else inner.get_input_embeddings()


def by_hand(model: Any, world: Any, loss: Loss, recipe: Recipe) -> Computed:
    """The gradient as a user's own script takes it, with hooks and backward."""
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., torch.Tensor]:
        def hook(_module: Any, _given: Any, output: torch.Tensor) -> torch.Tensor:
            if not output.requires_grad:
                output.requires_grad_(True)
            output.retain_grad()
            kept[name] = output
            return output

        return hook

    handles = [table_of(model).register_forward_hook(keep("lookup"))]
    if recipe.tap == "norm":
        handles.append(core(model).embeddings.LayerNorm.register_forward_hook(keep("norm")))
    if recipe.tap == "scaled":
        handles.append(core(model).blocks[0].register_forward_pre_hook(_first_through(keep("scaled"))))
    was = model.training
    try:
        model.train(recipe.training)
        torch.manual_seed(world.seed)
        model.zero_grad()
        losses = losses_of(_called(model, world, recipe).float(), loss, world, FUNCTIONS)
        reduced(losses, recipe.reduction, world, FUNCTIONS).backward()
        table = table_of(model).weight
        found = table.grad[torch.tensor(world.batch.ids)] if recipe.tap == "table" else kept[recipe.tap].grad
        return Computed(found.float().numpy().copy(), losses.detach().double().numpy())
    finally:
        for handle in handles:
            handle.remove()
        model.train(was)
        model.zero_grad()


def _first_through(hook: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A hook of a module's output as one of its first argument."""
    return lambda module, given: (hook(module, (), given[0]), *given[1:])


def _called(model: Any, world: Any, recipe: Recipe) -> torch.Tensor:
    batch = world.batch
    inputs = {"input_ids": torch.tensor(batch.ids) + recipe.shift}
    if batch.mask is not None and "mask" not in recipe.drop:
        inputs["attention_mask"] = torch.tensor(batch.mask)
    if batch.types is not None and "types" not in recipe.drop:
        inputs["token_type_ids"] = torch.tensor(batch.types)
    if recipe.offset:
        inputs["position_ids"] = torch.arange(batch.shape[1])[None] + recipe.offset
    output = model(**inputs)
    if isinstance(output, torch.Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


FUNCTIONS: Final = Functions(
    array=lambda value: torch.tensor(value),
    exp=torch.exp,
    log_softmax=lambda output: output.log_softmax(-1),
    pick=lambda output, labels: output.gather(-1, labels[..., None])[..., 0],
    total=torch.sum,
)
