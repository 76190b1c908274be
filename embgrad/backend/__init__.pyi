"""The names of `embgrad.backend` and their types: `__init__.py` imports each when it is first used."""

from embgrad.backend.cotangents import (
    Answer,
    Cotangents,
    Tensors,
    answer,
    answer_objective,
    compute_dtype,
    native_answer,
    whole_cotangents,
)
from embgrad.backend.graph_scopes import Crossings, Entry, Scope, entering, leaving, users_of
from embgrad.backend.model_pass import ModelPass, Pullback
from embgrad.backend.objective_callback import BatchObjective
from embgrad.backend.own_mask import unused_inputs
from embgrad.backend.parameters import ParameterValues, TableRest, table_rests
from embgrad.backend.point_changes import PointChanges, additions
from embgrad.backend.prefix import Prefix
from embgrad.backend.protocol import (
    ABILITIES,
    Backend,
    Call,
    Change,
    Listener,
    NativeObjective,
    PassListener,
    Perturber,
    Point,
    PointValues,
    Request,
    Run,
    Weight,
)
from embgrad.backend.registry import list_backends, refresh_backends
from embgrad.backend.replay import Retries, wrap_functions
from embgrad.backend.responses import Callback, Respond, Response
from embgrad.backend.trace_cache import TraceCache, UnfitError, UntraceableError
from embgrad.common.lazy import defer
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.descent import Reached
from embgrad.model_points.points import INPUT, OUTPUT, PRODUCT, UNNAMED_TABLE, WORD, Lookup, Way, layout_of, split_name
from embgrad.model_points.recorder import PassRecorder
from embgrad.objectives.outputs import choose_output, name_outputs

__all__ = [
    "ABILITIES",
    "INPUT",
    "OUTPUT",
    "PRODUCT",
    "UNNAMED_TABLE",
    "WORD",
    "Answer",
    "Backend",
    "BatchObjective",
    "Call",
    "Callback",
    "Change",
    "Cotangents",
    "Crossings",
    "Entry",
    "Listener",
    "Lookup",
    "ModelPass",
    "NativeObjective",
    "ParameterValues",
    "PassListener",
    "PassRecorder",
    "Perturber",
    "Point",
    "PointChanges",
    "PointValues",
    "Prefix",
    "Pullback",
    "Reached",
    "Request",
    "Respond",
    "Response",
    "Retries",
    "Run",
    "Scope",
    "TableRest",
    "Tensors",
    "TokenBatch",
    "TraceCache",
    "UnfitError",
    "UntraceableError",
    "Way",
    "Weight",
    "additions",
    "answer",
    "answer_objective",
    "choose_output",
    "compute_dtype",
    "defer",
    "entering",
    "layout_of",
    "leaving",
    "list_backends",
    "name_outputs",
    "native_answer",
    "refresh_backends",
    "split_name",
    "table_rests",
    "unused_inputs",
    "users_of",
    "whole_cotangents",
    "wrap_functions",
]
