"""Read what PyTorch's functions are about to look up: the table and the indices among their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from embgrad.errors import UnsupportedError

__all__ = ["READERS", "Read", "Selection", "indices_of", "ones_of", "padding_row"]


class Read(NamedTuple):
    """A lookup that a function is about to make.

    Attributes:
        table: a matrix with one row for each index.
        indices: an integer tensor of any shape.
        padding: the row that is declared to be padding.
        indexing: whether it is written as indexing, which may count from the end, and is no lookup in a table where it
            selects rows of activations.
        sliced: whether it is a slice of consecutive rows, which is a lookup in a table of positions where it has a row for each.
        max_norm: the norm to which larger rows are scaled, in the table itself.
        norm_type: the order of that norm.
    """

    table: Any
    indices: Any
    padding: int | None = None
    indexing: bool = False
    sliced: bool = False
    max_norm: float | None = None
    norm_type: float = 2.0


class Selection(NamedTuple):
    """Entries that a function is about to select by indices along one axis of an array, where that is no lookup.

    Attributes:
        array: an array with more than one number for each index.
        indices: an integer tensor of any shape.
        axis: the axis that the indices count along.
        repeated: whether the indices are repeated for each entry of a row.
    """

    array: Any
    indices: Any
    axis: int
    repeated: bool = False


def ones_of(rows: Any, first: int) -> np.ndarray | None:
    """Return the places of the ones in one-hot rows; None where the rows are not one-hot, or the first has another place."""
    if rows.layout is torch.sparse_coo:
        ones = rows.coalesce()
        places, values = ones.indices()[-1], ones.values()
        single = len(values) == rows.numel() // rows.shape[-1] == len(ones.indices()[:-1].unique(dim=1).T)
        return np.asarray(places.cpu()) if single and bool((values == 1).all()) else None
    if rows.layout is torch.sparse_csr:
        single = bool((rows.crow_indices().diff() == 1).all() and (rows.values() == 1).all())
        return np.asarray(rows.col_indices().cpu()) if single else None
    if rows.layout is not torch.strided or first >= rows.shape[-1]:
        return None
    flat = rows.detach().reshape(-1, rows.shape[-1])
    if flat[0, first].item() != 1 or not bool(((flat != 0).sum(-1) == 1).all() and (flat.sum(-1) == 1).all()):
        return None
    return np.asarray(flat.argmax(-1).cpu())


def _embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0, **_: Any
) -> Read | None:
    return Read(weight, input, padding_row(padding_idx, weight), max_norm=max_norm, norm_type=norm_type)


def _torch_embedding(weight: Any, indices: Any, padding_idx: Any = -1, *_: Any, **__: Any) -> Read | None:
    return Read(weight, indices, int(padding_idx) if padding_idx >= 0 else None)


def padding_row(padding: Any, table: Any) -> int | None:
    """Return the row of padding, which may be counted from the end."""
    return None if padding is None else int(padding) % table.shape[0]


def _getitem(table: Any, index: Any) -> Read | Selection | None:
    if isinstance(index, tuple) and index and all(_is_whole(entry) for entry in index[1:]):
        index = index[0]
    if isinstance(index, tuple) and any(isinstance(entry, torch.Tensor) for entry in index):
        return _along_another_axis(table, index)
    return _slicing(table, index) if isinstance(index, (slice, tuple)) else _indexing(table, index)


def _along_another_axis(array: Any, index: tuple[Any, ...]) -> Selection | None:
    """Read an index that selects entries by one tensor of integers, among slices and single entries of other axes."""
    place, *others = (number for number, entry in enumerate(index) if isinstance(entry, torch.Tensor))
    if others or not _is_index(index[place]) or not isinstance(array, torch.Tensor):
        return None
    before = [entry for entry in index[:place] if entry is not None]
    from_end = any(entry is Ellipsis for entry in before)
    axis = array.dim() - sum(entry is not None for entry in index[place:]) if from_end else len(before)
    single = sum(isinstance(entry, int) for entry in index)
    return Selection(array, index[place], axis) if array.dim() - single > 1 else None


def _slicing(table: Any, index: Any) -> Read | None:
    """Read a slice of whole consecutive rows of a matrix, as Keras's `PositionEmbedding` takes it."""
    if not isinstance(table, torch.Tensor) or table.dim() != 2 or not table.is_floating_point():
        return None
    rows, *columns = index if isinstance(index, tuple) else (index,)
    if len(columns) > 1 or not all(isinstance(entry, slice) for entry in (rows, *columns)):
        return None
    start, stop, step = rows.indices(table.shape[0])
    if step != 1 or any(entry.indices(table.shape[1]) != (0, table.shape[1], 1) for entry in columns):
        return None
    return Read(table, torch.arange(start, max(start, stop)), sliced=True)


def _aten_index(self: Any, indices: Any) -> Read | Selection | None:
    if any(index is not None for index in indices[1:]):
        return _along_another_axis(self, tuple(slice(None) if index is None else index for index in indices))
    return _indexing(self, indices[0])


def _index_select(input: Any, dim: Any, index: Any) -> Read | Selection | None:
    return _indexing(input, index) if dim in (0, -input.dim()) else Selection(input, index, dim % input.dim())


def _gather(input: Any, dim: Any, index: Any, **_: Any) -> Selection | None:
    """Read a gather whose indices are repeated for each entry of a row, as in `table.gather(0, ids[:, None].expand(-1, n))`."""
    return Selection(input, index, dim % input.dim(), repeated=True) if input.dim() > 1 else None


def _take_along_dim(input: Any, indices: Any, dim: Any = None) -> Selection | None:
    return None if dim is None else _gather(input, dim, indices)


def _is_whole(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def _is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32, torch.int16)


def _indexing(table: Any, index: Any) -> Read | Selection | None:
    if not _is_index(index) or not isinstance(table, torch.Tensor) or table.dim() < 2:
        return None
    if table.dim() == 2 and table.is_floating_point():
        return Read(table, index, indexing=True)
    return Selection(table, index, 0)


def indices_of(read: Read) -> np.ndarray:
    """Return the rows that are looked up."""
    try:
        indices: np.ndarray = read.indices.detach().cpu().numpy()  # copies nothing that is on the CPU
    except RuntimeError as error:
        raise UnsupportedError(
            f"the model looks up rows by indices that are a {type(read.indices).__name__}, which NumPy cannot read ({error}). "
            "Use a plain tensor of padded ids, and nest the rows after the lookup"
        ) from error
    return np.where(indices < 0, indices + read.table.shape[0], indices) if read.indexing else indices


#: The functions that can look up rows; each reader returns the table and the indices.
READERS: Final[Mapping[Any, Callable[..., Read | Selection | None]]] = {
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
    torch.gather: _gather,
    torch.Tensor.gather: _gather,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
}
