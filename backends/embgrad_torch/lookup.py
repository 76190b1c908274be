"""Find the lookups of a forward pass by watching every PyTorch function that it calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from embgrad.backend import INPUT, UNNAMED_TABLE, PassRecorder, layout_of, split_name
from embgrad.errors import UnsupportedError
from embgrad.toolkit import ModuleCalls, split_last_factor
from embgrad_torch.inputs import PLAIN, Head, dtype_name, has_values, is_floating, is_quantised, is_transformed
from embgrad_torch.readers import READERS, Read, Selection, indices_of, ones_of, padding_row
from embgrad_torch.state import is_running
from embgrad_torch.tap import PointHandler, Unwatched, expect_uncompiled, run_again
from embgrad_torch.walk import TablePaths, storage_of

__all__ = ["Differentiating", "LookupMode", "WeightsDifferentiated"]

#: The functions that take gradients.
DIFFERENTIATING: Final[Collection[Callable[..., Any]]] = frozenset(
    {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}
)


class WeightsDifferentiated(BaseException):
    """The model takes gradients of weights, which must be trainable then. Handlers for Exception do not stop it."""


class Differentiating(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """A mode that stops a function of the user's that takes gradients.

    Args:
        stop: called before gradients are taken; it raises.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle a call of a PyTorch function; PyTorch calls this with the mode switched off."""
        if func in DIFFERENTIATING:
            self._stop()
        return func(*args, **(kwargs or {}))


class LookupMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """A mode that records every lookup of its thread, and passes the rows to the handler of points, which may replace them.

    It is active again during the backward pass, where the model's own functions may look rows up again: these lookups are not
    recorded, and refused at a point.

    Attributes:
        watch: records the lookups.
        at: handles the points.
        pulling: whether the backward pass runs.
        suspended_grad: whether the forward pass switched gradients off somewhere.
        frozen: whether weights are frozen for the pass.
        differentiated: whether the model took gradients of frozen weights itself.
        head: the last linear map; None where there is none.
        halves: the names of the dtypes of half precision in which the model multiplied matrices, as under autocast.

    Args:
        paths: the tables' attribute paths.
    """

    def __init__(self, watch: PassRecorder, at: PointHandler, paths: TablePaths) -> None:
        super().__init__()
        self.watch = watch
        self.at = at
        self.pulling = False
        self.suspended_grad = False
        self.frozen = False
        self.differentiated = False
        self.head: Head | None = None
        self.halves: set[str] = set()
        self._paths = paths
        self._requested: set[str] = set()  # the paths of the tables in which points were looked up
        # A method of the mode would refer to the mode itself, which then only the garbage collector would free.
        self._calls = ModuleCalls(watch, is_floating, functools.partial(_replace, at))
        self._scaled: list[tuple[Any, Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle a call of a PyTorch function; PyTorch calls this with the mode switched off."""
        if is_dynamo_compiling():
            if func in _LOOKING_UP:
                expect_uncompiled()  # raises in the trace, so that the function is not compiled
            return func(*args, **(kwargs or {}))
        if func not in _WATCHED:  # nearly all calls of a pass
            return func(*args, **kwargs) if kwargs else func(*args)
        if func in WEIGHING and self.watch.needs_modules and not (self.at.plain or self.pulling):
            return self._weigh(func, args, kwargs or {})
        return self._handle(func, args, kwargs)

    def _handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None and not (self.at.plain and is_running()):
            result = handler(self, func, args, kwargs or {})
        else:
            result = func(*args, **kwargs) if kwargs else func(*args)
        if func in PRODUCTS and result.dtype in HALF:
            self.halves.add(dtype_name(result.dtype))
        return result

    def _weigh(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return a product; with a weight of no module, it is recorded as a call of a module of the weight's name."""
        names = self._paths.alone()
        if not names:
            return self._handle(func, args, kwargs)
        is_sum = func is torch.einsum
        places = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor)]
        factors = [args[place] for place in places[: None if is_sum else 2]]
        looked_up = {lookup.path for lookup in self.watch.lookups}
        paths = [names.get(storage_of(factor)) for factor in factors]
        paths = [None if {path, str(path).removesuffix(".weight")} & looked_up else path for path in paths]
        steps = split_last_factor(args[0]) if is_sum and any(paths[-1:]) and not any(paths[:-1]) else None
        if steps is not None:  # of several factors, the last of which is such a weight
            return self._weigh(func, (steps[1], func(steps[0], *factors[:-1]), factors[-1]), kwargs)

        def product(others: list[Any]) -> Any:
            changed = dict(zip(places, others, strict=False))
            return self._handle(func, tuple(changed.get(place, value) for place, value in enumerate(args)), kwargs)

        return self._calls.multiply(product, factors, paths, args[0] if is_sum else None, torch.Tensor.permute)

    def is_active(self) -> bool:
        """Return whether the mode is active in this thread, or in the engine's thread that works for it."""
        stack = torch.overrides._get_current_function_mode_stack()
        innermost = next((mode for mode in reversed(stack) if mode is self or isinstance(mode, Unwatched)), None)
        return innermost is self

    def restore(self) -> None:
        """Restore the rows that lookups with `max_norm` have scaled."""
        while self._scaled:
            table, rows, before = self._scaled.pop()
            table.index_copy_(0, rows, before)

    def on_lookup(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], reader: Callable[..., Read | Selection | None]
    ) -> Any:
        """Handle a function that may look up rows."""
        read = reader(*args, **kwargs)
        if read is None:
            return func(*args, **kwargs)
        if isinstance(read, Selection):
            self._report_selection(func, read)
            return func(*args, **kwargs)
        if read.max_norm is not None and not self.at.plain:
            kwargs = {**kwargs, "max_norm": None}  # _scale does it
        rows = self._rows(read, lambda: func(*args, **kwargs))
        return func(*args, **kwargs) if rows is None else rows

    def on_bag(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Split a bag of embeddings into a lookup, which has a point at each position, and a bag of its rows."""
        indices, table = args
        if indices.is_floating_point():  # PyTorch still accepts the order of before 1.0
            indices, table = table, indices
        read = Read(
            table,
            indices,
            padding_row(kwargs.get("padding_idx"), table),
            max_norm=kwargs.get("max_norm"),
            norm_type=kwargs.get("norm_type", 2.0),
        )
        if self.at.plain:
            return self._plain_bag(read, lambda: func(*args, **kwargs))
        kwargs = {**kwargs, "max_norm": None}
        rows = self._rows(read, lambda: functional.embedding(indices, table))
        return func(indices, table, **kwargs) if rows is None else _bag(rows, indices, len(table), kwargs)

    def on_closed_bag(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Refuse a bag of the batch's ids at a level at which it cannot be split."""
        for tensor in [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]:
            if not tensor.is_floating_point() and layout_of(tensor.cpu().numpy(), self.watch.batch.ids) is not None:
                raise UnsupportedError(
                    "the model sums the rows of the batch's ids by torch.embedding_bag, which has no output at each position. "
                    "Use nn.EmbeddingBag, or nn.Embedding and a sum after it"
                )
        return func(*args, **kwargs)

    def on_cast(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Record the table that a cast one was made from, as under Keras's mixed precision."""
        result = func(*args, **kwargs)
        self._paths.cast(args[0], result)
        return result

    def on_choice(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run the chosen function of a `torch.cond` uncompiled."""
        if self.at.plain:
            return func(*args, **kwargs)
        chosen, true, false, operands = args
        with self:
            return (true if chosen else false)(*operands)

    def on_linear(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Record the last linear map, see `Head`; refuse a quantised one through which no gradient flows to its input."""
        result = func(*args, **kwargs)
        if self.at.plain or self.pulling or not torch.is_grad_enabled():
            return result
        features = args[0] if args else kwargs["input"]
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        if not features.requires_grad:
            self._report_product(func, features, weight, 1)
            return result
        if type(weight) in PLAIN:
            if result.requires_grad and not weight.is_inference():
                bias = args[2] if len(args) > 2 else kwargs.get("bias")
                self.head = Head(features, weight, bias, result)
        elif is_quantised(weight) and self._is_behind_a_point():
            row = features.detach().flatten(0, -2)[:1].requires_grad_()  # the result may depend on a trainable bias
            if not func(row, weight.detach()).requires_grad:
                self._refuse_product(type(weight).__name__)
        return result

    def on_product(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Report a product of one-hot rows with a matrix, which looks rows up."""
        factors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if len(factors) == 2 and not self.pulling and torch.is_grad_enabled():
            left, right = factors
            self._report_product(func, left, right, 0)
            if right.dim() > 1 and not right.requires_grad:
                self._report_product(func, right.mT, left, 1)
        return func(*args, **kwargs)

    def on_einsum(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Report an Einstein sum of one-hot rows and a matrix, which looks rows up."""
        factors = [value for value in args if isinstance(value, torch.Tensor)]
        if len(factors) == 2 and not self.pulling and torch.is_grad_enabled():
            for rows, matrix in (factors, factors[::-1]):
                for axis in range(matrix.dim()):
                    self._report_product(func, rows, matrix, axis)
        return func(*args, **kwargs)

    def on_quantised_linear(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Refuse PyTorch's own product with a quantised matrix, which has no backward pass."""
        if not self.at.plain and torch.is_grad_enabled() and args[0].requires_grad and self._is_behind_a_point():
            self._refuse_product(str(func))
        return func(*args, **kwargs)

    def _is_behind_a_point(self) -> bool:
        """Return whether a gradient may have to flow back from here: to a point before, or to weights."""
        return not self.frozen or bool(getattr(self.at, "marks", ()))

    @staticmethod
    def _refuse_product(kind: str) -> None:
        raise UnsupportedError(
            f"a linear layer of the model multiplies by quantised weights ({kind}) without a backward pass, so that the gradient "
            "would silently leave the layer out. Quantise the weights alone (torchao's weight-only configurations, "
            "bitsandbytes), or pass the model as it was before quantisation"
        )

    def on_grad_mode(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Record that gradients are switched off, as functions do that run a part of the model again later."""
        self.suspended_grad = self.suspended_grad or not args[0]
        return func(*args, **kwargs)

    def on_differentiating(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Stop a model that takes gradients of weights that are frozen.

        A call without `inputs` during the pullback differentiates what a function of the model ran again, without weights.
        """
        inputs = args[1] if func is torch.autograd.grad and len(args) > 1 else kwargs.get("inputs")
        if self.frozen and not (self.pulling and (inputs is None or not _holds_any_frozen(inputs))):
            self.stop_differentiating()
        return func(*args, **kwargs)

    def stop_differentiating(self) -> None:
        """Abort the pass, which is then repeated with trainable weights."""
        self.differentiated = True
        raise WeightsDifferentiated

    def _rows(self, read: Read, compute: Callable[[], Any]) -> Any:
        """Return the rows that the model goes on with; None for indexing that is no lookup in a table."""
        if read.sliced and (
            read.indices.numel() != self.watch.batch.shape[1] or self._path(read.table) == UNNAMED_TABLE
        ):
            return None
        if is_transformed() and not (has_values(read.table) and has_values(read.indices)):
            if read.indexing:
                return None
            raise UnsupportedError(
                "the model looks up rows inside torch.vmap or another transform of torch.func, where the values of tensors "
                "cannot be read. Move the lookup out of the transform, or call the model without it by call=..."
            )
        indices, path = indices_of(read), self._path(read.table)
        unnamed = read.indexing and path == UNNAMED_TABLE
        if (unnamed or self.pulling) and (layout := layout_of(indices, self.watch.batch.ids)) is None and unnamed:
            return None
        if self.pulling:
            if path in self._requested:
                raise UnsupportedError(run_again(f"the lookup in {path!r}"))
            return self.at.lookup(None, read.table, compute, word=layout is not None)
        shape = read.table.shape
        key = self.watch.see(path, indices, shape[0], shape[1], self._padding(read), sliced=read.sliced)
        self._scale(read)
        self._expect_numbers(read, path, requested=key is not None)
        if key is not None:
            self._requested.add(path)
        rows = self.at.lookup(key, read.table, compute, word=self.watch.lookups[-1].layout is not None)
        self.watch.record_output(rows)
        return rows

    def _report_selection(self, func: Any, selection: Selection) -> None:
        """Report that the ids select entries of an array of the model, or of whole numbers, in a way that is no lookup."""
        array, indices, axis, repeated = selection
        size = self.watch.batch.ids.size
        count = indices.numel()
        if self.pulling or not (count == size or (repeated and count and count % size == 0)):
            return
        if array.numel() == array.shape[axis] or (is_transformed() and not has_values(indices)):
            return
        path = self._paths.holder(array)
        if path is None and (array.is_floating_point() or repeated):
            return  # activations, such as logits of which those of the ids are taken
        numbers = indices.detach().cpu().numpy()
        numbers = np.where(numbers < 0, numbers + array.shape[axis], numbers)
        dtype = dtype_name(array.dtype)
        self.watch.see_other(_name(func), path or UNNAMED_TABLE, numbers, array.shape, dtype, axis=axis)

    def _report_product(self, func: Any, rows: Any, matrix: Any, axis: int) -> None:
        """Report that one-hot rows of the ids are multiplied by a matrix of the model."""
        ids, count = self.watch.batch.ids, rows.shape[-1] if rows.dim() else 0
        if rows.requires_grad or matrix.dim() != 2 or matrix.shape[axis] != count or rows.numel() != ids.size * count:
            return
        if is_transformed() and not has_values(rows):
            return
        indices = ones_of(rows, int(ids.item(0)))
        if indices is not None:
            path, dtype = self._paths.holder(matrix) or UNNAMED_TABLE, dtype_name(matrix.dtype)
            self.watch.see_other(_name(func), path, indices, matrix.shape, dtype, axis=axis, way="product")

    def _plain_bag(self, read: Read, compute: Callable[[], Any]) -> Any:
        path = self._path(read.table)
        if (
            self.watch.see(path, indices_of(read), read.table.shape[0], read.table.shape[1], self._padding(read))
            is not None
        ):
            raise UnsupportedError(
                f"the model sums the rows of {path!r} by nn.EmbeddingBag, so that your backward pass has no gradient at each "
                "position. Use nn.Embedding and a sum after it, or embgrad.gradients, which splits the bag"
            )
        return compute()

    def _path(self, table: Any) -> str:
        return self._paths.of(table) or UNNAMED_TABLE

    def _padding(self, read: Read) -> int | None:
        return self._paths.padding(read.table) if read.padding is None else read.padding

    @staticmethod
    def _expect_numbers(read: Read, path: str, *, requested: bool) -> None:
        if requested and not read.table.is_floating_point():
            raise UnsupportedError(
                f"the table {path!r} holds {read.table.dtype}, and gradients exist only for real floating-point tables. "
                "Use a model whose table is neither quantised nor complex"
            )
        if requested and read.table.is_meta:
            raise UnsupportedError(
                f"the table {path!r} is on the device 'meta', which holds no values. Give the model its weights (to_empty, then "
                "load_state_dict)"
            )

    def _scale(self, read: Read) -> None:
        """Scale rows as `max_norm` does, reversibly and without a new version of the table, which a graph may have saved."""
        if read.max_norm is not None and not self.at.plain:
            table, rows = read.table.data, read.indices.unique()
            self._scaled.append((table, rows, table[rows]))
            torch.embedding_renorm_(table, read.indices.contiguous(), read.max_norm, read.norm_type)


def _replace(at: PointHandler, key: str, tensor: Any) -> Any:
    """Return the tensor with which the model continues at a point of a product with a weight of no module."""
    return at.tensor(key, tensor, aliased=split_name(key).side == INPUT)


def _holds_any_frozen(inputs: Any) -> bool:
    """Return whether `inputs` of a gradient may contain a frozen weight; assume so for an iterator."""
    if isinstance(inputs, torch.Tensor):
        return not inputs.requires_grad
    if isinstance(inputs, torch.autograd.graph.GradientEdge):
        weight = getattr(inputs.node, "variable", None)
        return weight is not None and not weight.requires_grad
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    return not isinstance(inputs, (list, tuple)) or any(map(_holds_any_frozen, inputs))


def _name(func: Any) -> str:
    """Return a function's name for a message."""
    return str(getattr(func, "__qualname__", None) or func)


def _bag(rows: Any, indices: Any, vocab: int, kwargs: Mapping[str, Any]) -> Any:
    """Return the bag of rows that have been looked up, computed by PyTorch as a bag in a table of these rows."""
    padding = kwargs.get("padding_idx")
    table = rows.reshape(-1, rows.shape[-1])
    numbers = torch.arange(table.shape[0], device=table.device).reshape(indices.shape)
    if padding is not None:  # padding reads an extra row at the end
        numbers = numbers.masked_fill(indices == padding % vocab, table.shape[0])
        padding, table = table.shape[0], torch.cat([table, table.new_zeros(1, table.shape[1])])
    options = {"sparse": False, "scale_grad_by_freq": False}  # they concern the table's gradient, which is not taken
    return functional.embedding_bag(numbers, table, **{**kwargs, **options, "padding_idx": padding})


#: PyTorch's products of floating activations with quantised matrices, which round the activations.
_QUANTISED: Final = (torch.ops.quantized.linear_dynamic, torch.ops.quantized.linear_relu_dynamic)

#: The products of two matrices, one of which may hold one-hot rows.
PAIRED: Final = (
    *(torch.matmul, torch.mm, torch.sparse.mm),
    *(torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__),
)

#: The functions that the mode handles. All others run unchanged.
HANDLERS: Final[Mapping[Any, Callable[[LookupMode, Any, Any, Mapping[str, Any]], Any]]] = {
    **{func: functools.partial(LookupMode.on_lookup, reader=reader) for func, reader in READERS.items()},
    functional.embedding_bag: LookupMode.on_bag,
    torch.embedding_bag: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag.default: LookupMode.on_closed_bag,
    torch.ops.aten.embedding_bag.padding_idx: LookupMode.on_closed_bag,
    torch.ops.higher_order.cond: LookupMode.on_choice,
    functional.linear: LookupMode.on_linear,
    torch.Tensor.to: LookupMode.on_cast,
    **dict.fromkeys(PAIRED, LookupMode.on_product),
    torch.einsum: LookupMode.on_einsum,
    **dict.fromkeys(_QUANTISED, LookupMode.on_quantised_linear),
    torch._C._set_grad_enabled: LookupMode.on_grad_mode,
    **dict.fromkeys(DIFFERENTIATING, LookupMode.on_differentiating),
}

#: The functions whose products with weights of no module are points.
WEIGHING: Final = frozenset({functional.linear, torch.einsum, *PAIRED} - {torch.sparse.mm})

#: The functions that multiply matrices.
PRODUCTS: Final = frozenset(
    {
        *(functional.linear, functional.conv1d, functional.scaled_dot_product_attention),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum),
        *(torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mm, torch.Tensor.bmm),
    }
)

#: The functions that the mode does not run as they are.
_WATCHED: Final = PRODUCTS | HANDLERS.keys()

#: The dtypes of half precision.
HALF: Final = frozenset({torch.bfloat16, torch.float16})

#: The functions that look up rows, for a compiler that traces into the mode: it supports no dict of functions.
_LOOKING_UP: Final = frozenset({*READERS, functional.embedding_bag, torch.embedding_bag})
