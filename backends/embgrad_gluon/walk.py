"""The blocks, parameters and tables of a model with their attribute paths, and facts about single arrays."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad_gluon.importing import import_mxnet

__all__ = [
    *("all_blocks", "all_parameters", "arrays_of", "block_names", "contexts_of", "input_names", "is_recorded"),
    *("loose_parameters", "memory", "named_blocks", "named_parameters", "paths", "recorded_symbol", "same_bits"),
    *("table_path", "tables", "unique_names"),
]

#: The libraries whose blocks are points, and what they multiply by is theirs.
LIBRARIES: Final = frozenset({"gluonnlp", "mxnet"})


def all_blocks(parts: Sequence[Any]) -> list[Any]:
    """Return each block once."""
    blocks: dict[int, Any] = {}
    stack = list(reversed(parts))
    while stack:
        block = stack.pop()
        if id(block) not in blocks:
            blocks[id(block)] = block
            stack.extend(reversed(block._children.values()))
    return list(blocks.values())


def all_parameters(parts: Sequence[Any]) -> list[Any]:
    """Return each parameter once, including those that `collect_params` omits, and without its checks, which are slow."""
    blocks = all_blocks(parts)
    parameters = [p for block in blocks for p in (*block.params.values(), *block._reg_params.values())]
    return list({id(p): p for p in parameters}.values())


def arrays_of(parameter: Any) -> list[Any]:
    """Return a parameter's arrays, one for each context; none before it is initialized."""
    return list(parameter._data or ())  # `data()` may apply dropout (gluonnlp); `list_data()` refuses row-sparse arrays


def contexts_of(parameter: Any) -> list[Any]:
    """Return the contexts on which a parameter is or will be initialized; none before `initialize`."""
    try:
        return list(parameter.list_ctx())
    except RuntimeError:
        return []


def named_blocks(parts: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each block with its attribute path, once for each path: "" is a single model, a number one of several parts."""
    for path, part in _roots(parts):
        yield from _blocks_below(part, path)


def _roots(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the parts with their paths."""
    return [(str(number) if len(parts) > 1 else "", part) for number, part in enumerate(parts)]


def _join(path: str, name: object) -> str:
    """Return the path of a block's attribute."""
    return f"{path}.{name}" if path else str(name)


def _blocks_below(block: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, block
    for name, child in block._children.items():
        yield from _blocks_below(child, _join(path, name))


def block_names(parts: Sequence[Any]) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return by a block's id its path and its other names: further paths, and the name that Gluon gave it."""
    paths: dict[int, list[str]] = defaultdict(list)
    blocks = {}
    for path, block in named_blocks(parts):
        paths[id(block)].append(path)
        blocks[id(block)] = block
    known = {path for path, *_ in paths.values()}
    return {
        key: (first, tuple(name for name in dict.fromkeys((*others, blocks[key].name)) if name and name not in known))
        for key, (first, *others) in paths.items()
    }


def _direct_parameters(block: Any) -> dict[str, Any]:
    """Return a block's own parameters by name, without those of its children."""
    # A SymbolBlock's attributes are its parameters' names without their common prefix; the whole names are clearer.
    opaque = isinstance(block, import_mxnet().gluon.SymbolBlock)
    direct = dict(block.params.items() if opaque else block._reg_params)
    known_ids = {id(parameter) for parameter in direct.values()}
    if not opaque and not all(id(p) in known_ids for p in block.params.values()):
        # A block may have created the parameters that the blocks inside it hold as attributes.
        descendants = all_blocks(list(block._children.values()))
        known_ids |= {id(parameter) for child in descendants for parameter in child._reg_params.values()}
    # Parameters that no attribute holds, as those in a list, have their own names.
    return direct | {p.name.removeprefix(block.prefix): p for p in block.params.values() if id(p) not in known_ids}


def named_parameters(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return each parameter with its attribute path, as `_collect_params_with_prefix` spells it, once for each path."""
    return [pair for path, part in _roots(parts) for pair in _named_tree(part, path)]


def _named_tree(block: Any, path: str) -> Iterator[tuple[str, Any]]:
    method, default = type(block)._collect_params_with_prefix, import_mxnet().gluon.Block._collect_params_with_prefix
    if method is not default:  # such as gluonnlp's attention, with the names of an older release
        yield from block._collect_params_with_prefix(path).items()
        return
    for name, parameter in _direct_parameters(block).items():
        yield _join(path, name), parameter
    for name, child in block._children.items():
        yield from _named_tree(child, _join(path, name))


def loose_parameters(parts: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the matrices of the model itself and of blocks with several, with their paths: products with them are points.

    Those of the blocks of MXNet and gluonnlp are theirs.
    """
    for path, block in named_blocks(parts):
        held = _direct_parameters(block) if type(block).__module__.partition(".")[0] not in LIBRARIES else {}
        matrices = {name: parameter for name, parameter in held.items() if len(parameter.shape or ()) > 1}
        if len(matrices) > 1 or not path:
            yield from ((_join(path, name), parameter) for name, parameter in matrices.items())


def unique_names(parts: Sequence[Any]) -> Mapping[str, Any]:
    """Return each parameter once, under the first of its names."""
    first: dict[int, tuple[str, Any]] = {}
    for name, parameter in named_parameters(parts):
        first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


def table_path(name: str) -> str:
    """Return the path of a table: that of its block where the parameter is called `weight`."""
    return name.removesuffix(".weight")


def tables(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the parameters that may be tables, each once, with their paths: those of embeddings before the others."""
    nn = import_mxnet().gluon
    embeddings = (nn.nn.Embedding, nn.contrib.nn.SparseEmbedding)
    candidates: dict[int, tuple[str, Any]] = {}
    for path, block in sorted(named_blocks(parts), key=lambda pair: not isinstance(pair[1], embeddings)):
        for name, parameter in _direct_parameters(block).items():
            candidates.setdefault(id(parameter), (table_path(_join(path, name)), parameter))
    return list(candidates.values())


def paths(parts: Sequence[Any]) -> list[str]:
    """Return the names of the blocks and the tables."""
    blocks = [name for path, also in block_names(parts).values() for name in (path, *also)]
    tables = [table_path(name) for name, _ in named_parameters(parts)]
    return list(dict.fromkeys(name for name in (*blocks, *tables) if name))


def input_names(block: Any) -> list[str]:
    """Return the names of a SymbolBlock's inputs, in the order of its arguments."""
    return [symbol.name for symbol in block._cached_graph[0]]


# Single arrays


def memory(array: Any) -> int:
    """Return the address of an array's values, once they are computed."""
    base = import_mxnet().base
    array.wait_to_read()  # else this thread and the one that computes them may both allocate the memory
    address = ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return int(address.value or 0)


def same_bits(array: Any, other: Any) -> bool:
    """Return whether two arrays of one shape and dtype hold the same bits, NaN and -0.0 included. The first may be NumPy's."""
    values, copy = array if isinstance(array, np.ndarray) else array.asnumpy(), other.asnumpy()
    unsigned = f"u{copy.itemsize}"
    return bool((values.reshape(-1).view(unsigned) == copy.reshape(-1).view(unsigned)).all())


def recorded_symbol(array: Any) -> Any:
    """Return the array's recorded history as a symbol; None where it has none."""
    mx = import_mxnet()
    try:
        return mx.autograd.get_symbol(array)
    except mx.MXNetError as error:
        if "not part of a computation graph" in str(error):
            return None
        raise


def is_recorded(array: Any) -> bool:
    """Return whether the array is a variable of a graph, or was computed from one while it was recorded."""
    return recorded_symbol(array) is not None
