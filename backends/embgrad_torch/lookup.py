"""Find the lookups of a forward pass by watching every PyTorch function that it calls, and keep hold of their outputs."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from embgrad.batch import TokenBatch
from embgrad.errors import UnsupportedError
from embgrad.points import UNNAMED_TABLE, LookupWatch, layout_of

__all__ = ["Kept", "LookupMode", "table_paths"]


@dataclass(frozen=True)
class _Read:
    """A lookup that a function is about to make.

    Attributes:
        table: a matrix, one row an index.
        indices: an integer tensor of any shape.
        indexing: it is written as indexing, which may count from the end, and which is no lookup in a table where
            it picks rows out of activations.
        max_norm: rows with a larger norm are to be scaled in the table itself.
        norm_type: of which norm.
    """

    table: Any
    indices: Any
    indexing: bool = False
    max_norm: float | None = None
    norm_type: float = 2.0


@dataclass(frozen=True)
class Kept:
    """The output of a lookup that may be asked for.

    Attributes:
        mark: the tensor with respect to which the gradient is taken.
        table: the table, as the function was given it.
        indices: the indices looked up.
        connected: whether the mark hangs on the graph below it, as where the table itself is computed.
    """

    mark: Any
    table: Any
    indices: np.ndarray
    connected: bool


class LookupMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """While active in this thread: every lookup goes to the watch, and those that it wants become leaves of the graph.

    A leaf is the lookup's own output, cut off from the table, so that nothing below it is differentiated. What
    goes on is a clone of it, because models write into it (scale it in place).

    Active again during the backward pass, where checkpointed segments run once more: their lookups then give
    the kept values, and the watch is not told.

    Attributes:
        watch: what takes the lookups down.
        kept: by the lookup's number in the watch.
        pulling: whether this is the backward pass.
        suspended_grad: whether the forward pass switched gradients off somewhere.
    """

    def __init__(self, batch: TokenBatch, names: Sequence[str], paths: Mapping[Any, str]) -> None:
        super().__init__()
        self.watch = LookupWatch(batch, names)
        self.kept: dict[int, Kept] = {}
        self.pulling = False
        self.suspended_grad = False
        self._ids = batch.ids
        self._paths = paths
        self._scaled: list[tuple[Any, Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    @contextlib.contextmanager
    def tables_as_found(self) -> Iterator[None]:
        """Afterwards the rows that lookups with `max_norm` have scaled are what they were."""
        try:
            yield
        finally:
            while self._scaled:
                table, rows, before = self._scaled.pop()
                table.index_copy_(0, rows, before)

    def on_lookup(self, func: Any, args: Any, kwargs: Mapping[str, Any], reader: Callable[..., _Read | None]) -> Any:
        """A function that may look up rows."""
        read = reader(*args, **kwargs)
        if read is None:
            return func(*args, **kwargs)
        if read.max_norm is not None:
            kwargs = {**kwargs, "max_norm": None}  # it is done by _scale
        rows = self._rows(read, lambda: func(*args, **kwargs))
        return func(*args, **kwargs) if rows is None else rows

    def on_bag(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A bag of embeddings: where it is asked for, a lookup, which has a point at each position, and a bag of its rows."""
        indices, table = args
        if indices.is_floating_point():  # the order of the arguments before PyTorch 1.0 is still taken
            indices, table = table, indices
        read = _Read(table, indices, max_norm=kwargs.get("max_norm"), norm_type=kwargs.get("norm_type", 2.0))
        kwargs = {**kwargs, "max_norm": None}
        rows = self._rows(read, lambda: functional.embedding(indices, table))
        return func(indices, table, **kwargs) if rows is None else _bag(rows, indices, len(table), kwargs)

    def on_closed_bag(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A bag on a level at which it cannot be taken apart any more."""
        for tensor in [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]:
            if not tensor.is_floating_point() and layout_of(tensor.cpu().numpy(), self._ids) is not None:
                raise UnsupportedError(
                    "the model sums the rows of the batch's ids by torch.embedding_bag, which has no output at each position: "
                    "expected nn.EmbeddingBag, or nn.Embedding and a sum after it"
                )
        return func(*args, **kwargs)

    def on_grad_mode(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Gradients switched on or off, as the older kind of checkpointing does it."""
        self.suspended_grad = self.suspended_grad or not args[0]
        return func(*args, **kwargs)

    def _rows(self, read: _Read, compute: Callable[[], Any]) -> Any:
        """The rows that go on in place of those that the lookup computes; None where nobody asks for it."""
        if _is_transformed(read.table) or _is_transformed(read.indices):
            if read.indexing:
                return None
            raise UnsupportedError(
                "the model looks up rows inside torch.vmap or another transform of torch.func, where indices and rows have no "
                "values to be read: expected a lookup outside of it; call the model without the transform by call=..."
            )
        indices = _as_numpy(read)
        path = self._paths.get(id(read.table)) or self._paths.get(_place(read.table)) or UNNAMED_TABLE
        if read.indexing and path == UNNAMED_TABLE and layout_of(indices, self._ids) is None:
            return None
        if self.pulling:
            return self._again(read, indices, compute)
        wanted = self.watch.see(path, indices, *read.table.shape)
        self._scale(read)
        if not wanted:
            return None
        if not read.table.is_floating_point():
            raise UnsupportedError(
                f"the table {path!r} holds {read.table.dtype}: expected floating point, which alone has a gradient; give a "
                "model that is not quantised"
            )
        kept = _keep(read, indices, compute)
        self.kept[len(self.watch.lookups) - 1] = kept
        return _pass_on(kept.mark)

    def _again(self, read: _Read, indices: np.ndarray, compute: Callable[[], Any]) -> Any:
        """A lookup of a checkpointed segment that runs again: the same values, and as much saved for the backward."""
        for kept in self.kept.values():
            if _place(kept.table) == _place(read.table) and np.array_equal(kept.indices, indices):
                return _pass_on(compute() if kept.connected else kept.mark)
        self._scale(read)
        return None

    def _scale(self, read: _Read) -> None:
        """What `max_norm` asks for, by a way that can be undone and that the versions in other graphs do not show."""
        if read.max_norm is not None:
            table, rows = read.table.data, read.indices.unique()
            self._scaled.append((table, rows, table[rows]))
            torch.embedding_renorm_(table, read.indices.contiguous(), read.max_norm, read.norm_type)


def _keep(read: _Read, indices: np.ndarray, compute: Callable[[], Any]) -> Kept:
    """The lookup's output as a leaf; where the table is computed, left on the graph, as another point may lie below."""
    if read.table.grad_fn is not None:
        rows = compute()
        if rows.requires_grad:
            return Kept(rows, read.table, indices, connected=True)
    with torch.inference_mode(False), torch.no_grad():
        rows = compute()
    return Kept(rows.detach().requires_grad_(), read.table, indices, connected=False)


def _pass_on(mark: Any) -> Any:
    """What the model goes on with: connected to the mark, also where gradients are off around the lookup alone."""
    with torch.inference_mode(False), torch.enable_grad():
        return mark.clone()


def _bag(rows: Any, indices: Any, vocab: int, kwargs: Mapping[str, Any]) -> Any:
    """The bag of rows that have been looked up, by PyTorch's own arithmetic: a bag in a table of these rows."""
    padding = kwargs.get("padding_idx")
    table = rows.reshape(-1, rows.shape[-1])
    places = torch.arange(len(table), device=table.device).reshape(indices.shape)
    if padding is not None:  # what does not count is one row at the end
        places = places.masked_fill(indices == padding % vocab, len(table))
        padding, table = len(table), torch.cat([table, table.new_zeros(1, table.shape[1])])
    of_table = {"sparse": False, "scale_grad_by_freq": False}  # these are about a table's gradient, which nobody takes
    return functional.embedding_bag(places, table, **{**kwargs, **of_table, "padding_idx": padding})


def _embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0, **_: Any
) -> _Read | None:
    return _Read(weight, input, max_norm=max_norm, norm_type=norm_type)


def _torch_embedding(weight: Any, indices: Any, *_: Any, **__: Any) -> _Read | None:
    return _Read(weight, indices)


def _getitem(table: Any, index: Any) -> _Read | None:
    if isinstance(index, tuple) and index and all(_is_whole(entry) for entry in index[1:]):
        index = index[0]
    return _indexing(table, index)


def _aten_index(self: Any, indices: Any) -> _Read | None:
    return None if any(index is not None for index in indices[1:]) else _indexing(self, indices[0])


def _index_select(input: Any, dim: Any, index: Any) -> _Read | None:
    return _indexing(input, index) if dim in (0, -2) else None


def _is_whole(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def _indexing(table: Any, index: Any) -> _Read | None:
    if not isinstance(index, torch.Tensor) or index.dtype not in (torch.int64, torch.int32, torch.int16):
        return None
    if not isinstance(table, torch.Tensor) or table.dim() != 2 or not table.is_floating_point():
        return None
    return _Read(table, index, indexing=True)


def _is_transformed(tensor: Any) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _as_numpy(read: _Read) -> np.ndarray:
    indices: np.ndarray = read.indices.detach().cpu().numpy()
    return np.where(indices < 0, indices + read.table.shape[0], indices) if read.indexing else indices


#: How each function that can look up rows is told its table and its indices.
_READERS: Final[Mapping[Any, Callable[..., _Read | None]]] = {
    functional.embedding: _embedding,
    torch.embedding: _torch_embedding,
    torch.ops.aten.embedding: _torch_embedding,
    torch.ops.aten.embedding.default: _torch_embedding,
    torch.Tensor.__getitem__: _getitem,
    torch.ops.aten.index: _aten_index,
    torch.ops.aten.index.Tensor: _aten_index,
    torch.index_select: _index_select,
    torch.Tensor.index_select: _index_select,
    torch.ops.aten.index_select: _index_select,
    torch.ops.aten.index_select.default: _index_select,
}

#: What the mode does at each function that it looks at. All others pass by untouched.
_HANDLERS: Final[Mapping[Any, Callable[[LookupMode, Any, Any, Mapping[str, Any]], Any]]] = {
    **{func: functools.partial(LookupMode.on_lookup, reader=reader) for func, reader in _READERS.items()},
    functional.embedding_bag: LookupMode.on_bag,
    torch.embedding_bag: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag.default: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag.padding_idx: LookupMode.on_closed_bag,
    torch._C._set_grad_enabled: LookupMode.on_grad_mode,
}


def table_paths(modules: Iterable[tuple[str, Any]]) -> dict[Any, str]:
    """The attribute paths of the matrices of modules with these paths, by identity and by their place in memory.

    A table called `weight` has its module's path. One that several modules share has that of an embedding, or
    of the first.
    """
    paths: dict[Any, str] = {}
    found = []
    for path, module in modules:
        embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.dim() == 2:
                found.append((not embedding, _spelled(path, name), tensor))
    for _, path, tensor in sorted(found, key=operator.itemgetter(0)):
        paths.setdefault(id(tensor), path)
        paths.setdefault(_place(tensor), path)
    return paths


def _spelled(module: str, name: str) -> str:
    steps = [
        step for step in module.split(".") if step and step != "_orig_mod"
    ]  # a compiled module has the same attributes
    return ".".join(steps if steps and name == "weight" else [*steps, name])


def _place(tensor: Any) -> Any:
    """What tells that two tensors, such as a parameter and its `.data`, are the same memory."""
    try:
        return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device)
    except RuntimeError:  # a subclass without memory of its own
        return id(tensor)
