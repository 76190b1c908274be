"""Tools for authors of backends: arrays, nests of values, state, locks, the arguments of a call. Import from here."""

from embgrad.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(
    __name__,
    {
        "common.arrays": ["copy_owned", "take_owned", "to_numpy", "whole_numbers"],
        "common.lru": ["LRUCache"],
        "common.memory_meter": ["MemoryMeter"],
        "common.pytree": ["PLAIN", "copy_nest", "every", "first", "is_nest", "map_nest", "with_first"],
        "common.tolerance": ["coarsest"],
        "toolkit.arguments": ["integer_arguments", "named_arguments"],
        "toolkit.code": ["attributes_of", "content_of", "globals_of", "is_installed", "members_of"],
        "toolkit.locks": ["held", "locks_of", "model_lock", "process_lock"],
        "toolkit.module_calls": [
            "CallRecorder",
            "ModuleCalls",
            "RecordedCall",
            "call_recorded",
            "split_last_factor",
        ],
        "toolkit.object_state": ["ObjectState", "contains"],
        "toolkit.patching": ["Interception"],
        "toolkit.recorded_changes": ["is_recorded", "may_be_state", "record_change", "record_kept"],
        "toolkit.rng": ["SharedGenerator", "draw_states", "is_generator", "preserve_generators", "states_of"],
        "toolkit.signature": [
            "CallPlan",
            "NAMES",
            "as_parts",
            "expect_single",
            "parameters_of",
            "plan_call",
            "plan_mapping",
        ],
    },
)
