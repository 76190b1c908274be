"""The private names of PyTorch and Python that the backend uses, each with the reason."""

from __future__ import annotations

from typing import Final

__all__ = ["PRIVATE_NAMES"]

PRIVATE_NAMES: Final[dict[str, str]] = {
    "_C": "Switches of PyTorch's core, named below, and DisableTorchFunction, which its documentation does not list.",
    "_EnableTorchFunction": "No public switch turns function modes on again inside DisableTorchFunction.",
    "_backward_hooks": "There is no public question whether a tensor has hooks on its gradients.",
    "_base": "No public attribute tells of which tensor another is a view.",
    "_buffers": "named_buffers leaves out what is None and takes several times as long; a buffer is put back under its own name.",
    "_cache": "parametrize.cached keeps weights, with their graphs, for as long as the user's block runs.",
    "_cache_enabled": "There is no public question whether parametrize.cached is in force.",
    "_callback_from_stance": "No public event tells that a compiled function is called.",
    "_checkpoint_hook": "`checkpoint` is often imported by its name; this is what both its ways enter to save less.",
    "_codegen": "An exported graph's `forward` does not say which arguments it takes by name alone.",
    "_compiled_call_impl": "Module.compile leaves no public sign on the module.",
    "_current_graph_task_id": "There is no public question whether a backward pass runs, and which.",
    "_execution_engine": "autograd.grad refuses outputs without a way to the inputs, and has no callback at the end of a pass.",
    "_forward_hooks": "There is no public question whether a module has hooks.",
    "_forward_pre_hooks": "There is no public question whether a module has hooks.",
    "_functorch": "There is no public question whether a transform of torch.func runs.",
    "_get_current_function_mode_stack": "There is no public question which function modes are active.",
    "_is_view": "There is no public question whether a tensor is a view.",
    "_modules": "named_children leaves out a child's further names, and takes several times as long.",
    "_orig_mod": "What torch.compile made of a module has no public way to it.",
    "_parameters": "named_parameters leaves out what is None and takes several times as long.",
    "_pop_mode": "A mode under another one on the stack cannot be left by public means.",
    "_post_accumulate_grad_hooks": "There is no public way to set the hooks of a leaf aside for a while.",
    "_push_mode": "A mode under another one on the stack cannot be left by public means.",
    "_pytree": "PyTorch's nests have no public functions before torch.utils.pytree.",
    "_sequence_nr": "No public attribute tells which of two nodes of a graph is older.",
    "_set_grad_enabled": "The public switch is a function that the user's modes are asked about; this is the one that it calls.",
    "_torchdynamo_orig_callable": "A compiled function has no public sign.",
    "_unsafe_preserve_version_counter": "No public way puts numbers back without a graph taking its tensors for overwritten.",
    "_version": "No public attribute tells whether a tensor was written to.",
    "torch._C._dynamo.eval_frame": "No public question tells that Python runs inside a function that could not be compiled.",
}
