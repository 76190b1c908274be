"""The private names on which the backend relies are there, and do what it relies on; a failure names PyTorch's version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules_of_torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import checkpoint

from tests.frameworks.torch.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names


def test_the_list_is_complete() -> None:
    assert sorted(PRIVATE_NAMES) == sorted(private_names("embgrad_torch"))


class Noting(TorchFunctionMode):  # type: ignore[misc]
    """Notes the functions that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noted.append(func)
        return func(*args, **(kwargs or {}))


def _switching_functions() -> bool:
    with Noting() as mode, torch._C.DisableTorchFunction():
        torch.zeros(1).sin()
        with torch._C._EnableTorchFunction():
            torch.zeros(1).cos()
    return [one.__name__ for one in mode.noted if one.__name__ in ("sin", "cos")] == ["cos"]


def _gradient_modes() -> bool:
    with Noting() as mode:
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(True)
    return torch._C._set_grad_enabled in mode.noted and torch.is_grad_enabled()


def _hooks() -> bool:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *given: None)
    module.register_forward_pre_hook(lambda *given: None)
    module.register_full_backward_hook(lambda *given: None)
    module.register_full_backward_pre_hook(lambda *given: None)
    held = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return [len(one) for one in held] == [1, 1, 1, 1]


def _global_hooks() -> bool:
    before = bool(modules_of_torch._has_any_global_hook())
    handle = modules_of_torch.register_module_forward_hook(lambda *given: None)
    during = bool(modules_of_torch._has_any_global_hook())
    handle.remove()
    return during and not before


def _holders() -> bool:
    module = nn.BatchNorm1d(2)
    outer = nn.Sequential(module)
    return (
        module._parameters["weight"] is module.weight
        and module._buffers["running_mean"] is module.running_mean
        and outer._modules["0"] is module
    )


def _views() -> bool:
    tensor = torch.zeros(3)
    return tensor[1:]._is_view() and tensor[1:]._base is tensor and not tensor._is_view()


def _versions() -> bool:
    tensor = torch.zeros(3)
    before = tensor._version
    tensor.add_(1)
    written = tensor._version
    with torch.autograd._unsafe_preserve_version_counter(tensor):
        tensor.add_(1)
    return before < written == tensor._version


def _graphs() -> bool:
    leaf, recorded = torch.ones(2, requires_grad=True), []
    first = leaf * 2
    second = first * 2
    second.register_hook(lambda gradient: recorded.append(torch._C._current_graph_task_id()))
    run = torch.autograd.Variable._execution_engine.run_backward
    apart = torch.ones(2, requires_grad=True)
    result = run(
        (second,), (torch.ones(2),), False, False, (leaf, apart), allow_unreachable=True, accumulate_grad=False
    )
    is_right = (
        result[1] is None
        and result[0].tolist() == [4.0, 4.0]
        and recorded[0] != -1 == torch._C._current_graph_task_id()
    )
    return is_right and first.grad_fn._sequence_nr() < second.grad_fn._sequence_nr()


def _at_the_end_of_a_pass() -> bool:
    leaf, recorded = torch.ones(2, requires_grad=True), []
    engine = torch.autograd.Variable._execution_engine
    product = leaf * 2
    product.register_hook(lambda gradient: engine.queue_callback(lambda: recorded.append(leaf.grad is not None)))
    product.sum().backward()
    return recorded == [True]


def _hooks_of_leaves() -> bool:
    leaf, recorded = torch.ones(2, requires_grad=True), []
    leaf.register_post_accumulate_grad_hook(lambda tensor: recorded.append(1))
    kept = dict(leaf._post_accumulate_grad_hooks)
    leaf._post_accumulate_grad_hooks.clear()
    leaf.sum().backward()
    leaf._post_accumulate_grad_hooks.update(kept)
    leaf.sum().backward()
    return recorded == [1]


def _modes() -> bool:
    first, second = Noting(), Noting()
    with first, second:
        stacked = _get_current_function_mode_stack() == [first, second]
        popped = _pop_mode()
        alone = _get_current_function_mode_stack() == [first]
        _push_mode(popped)
        return stacked and alone and _get_current_function_mode_stack() == [first, second]


def _parametrized() -> bool:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with parametrize.cached():
        kept = module.weight is module.weight and parametrize._cache_enabled and parametrize._cache
    return bool(kept) and not parametrize._cache_enabled and parametrize._cache == {}


def _compiled() -> bool:
    module, in_place = nn.Linear(2, 2), nn.Linear(2, 2)
    whole = torch.compile(module, backend="eager")
    in_place.compile(backend="eager")
    function = torch.compile(lambda value: value, backend="eager")
    return (
        whole._orig_mod is module
        and bool(in_place._compiled_call_impl)
        and hasattr(function, "_torchdynamo_orig_callable")
    )


def _compilers() -> bool:
    from torch import _dynamo
    from torch._C._dynamo import eval_frame
    from torch._dynamo.eval_frame import _callback_from_stance

    settings = torch._functorch.config
    with settings.patch({"donated_buffer": False}):
        set_so = settings.donated_buffer is False
    return (
        callable(_dynamo.lookup_backend("inductor"))
        and set_so
        and callable(_callback_from_stance)
        and eval_frame.get_eval_frame_callback() is None
    )


def _transforms() -> bool:
    levels: list[Any] = []
    torch.vmap(lambda row: levels.append(torch._C._functorch.maybe_current_level()) or row)(torch.zeros(2, 2))
    return levels[0] is not None and torch._C._functorch.maybe_current_level() is None


def _exported() -> bool:
    class Named(nn.Module):
        def forward(self, one: Any, *, two: Any) -> Any:
            return one + two

    program = torch.export.export(Named(), (torch.zeros(2),), {"two": torch.zeros(2)}).module()
    form = program.graph._codegen.pytree_info.in_spec
    args, kwargs = torch.utils._pytree.tree_unflatten([None] * form.num_leaves, form)
    return args == (None,) and kwargs == {"two": None}


CANARIES: dict[tuple[str, ...], Callable[[], bool]] = {
    ("_C", "_EnableTorchFunction"): _switching_functions,
    ("_set_grad_enabled",): _gradient_modes,
    ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"): _hooks,
    ("_has_any_global_hook",): _global_hooks,
    ("_parameters", "_buffers", "_modules"): _holders,
    ("_is_view", "_base"): _views,
    ("_version", "_unsafe_preserve_version_counter"): _versions,
    ("_execution_engine", "_current_graph_task_id", "_sequence_nr"): _graphs,
    ("_execution_engine.queue_callback",): _at_the_end_of_a_pass,
    ("_post_accumulate_grad_hooks",): _hooks_of_leaves,
    ("_get_current_function_mode_stack", "_pop_mode", "_push_mode"): _modes,
    ("_cache", "_cache_enabled"): _parametrized,
    ("_orig_mod", "_compiled_call_impl", "_torchdynamo_orig_callable"): _compiled,
    ("_dynamo", "_callback_from_stance", "torch._C._dynamo.eval_frame"): _compilers,
    ("_functorch",): _transforms,
    ("_codegen", "_pytree"): _exported,
    ("_checkpoint_without_reentrant_generator",): lambda: hasattr(
        checkpoint, "_checkpoint_without_reentrant_generator"
    ),
}


@pytest.mark.parametrize("names", CANARIES, ids=", ".join)
def test_a_private_name_does_what_the_backend_relies_on(names: tuple[str, ...]) -> None:
    message = f"PyTorch {torch.__version__} has changed {', '.join(names)}: see tests/frameworks/torch/private_names.py"
    try:
        kept = CANARIES[names]()
    except (AttributeError, ImportError, TypeError) as error:
        pytest.fail(f"{message} ({error})")
    assert kept, message


def test_every_name_has_a_canary() -> None:
    assert {*PRIVATE_NAMES} - {"_getframe"} <= {name for names in CANARIES for name in names}
