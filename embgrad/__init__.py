"""Gradients of an objective with respect to a text model's embeddings, as NumPy, from one call, in any framework.

PYTEST_DONT_REWRITE: without this mark pytest would warn if this package is imported before pytest loads its plugins.

Each name is imported when it is first used, so that `import embgrad` takes little time. Type checkers and editors read the same
names in `__init__.pyi`.
"""

import importlib as _importlib

from embgrad.version import __version__  # noqa: F401  it is in `__all__`

#: The public names by the modules, below this package, in which they are defined.
_NAMES = {
    "attribution.attribute": ["attribute"],
    "attribution.attribute_tokens": ["attribute_tokens"],
    "attribution.discretized": ["DiscretizedIntegratedGradients"],
    "attribution.faithfulness": ["faithfulness"],
    "attribution.gradient_methods": ["InputXGradient", "Saliency", "SmoothGrad"],
    "attribution.infidelity": ["infidelity"],
    "attribution.path_methods": ["GradientShap", "IntegratedGradients", "SequentialIntegratedGradients"],
    "attribution.perturbation_methods": ["KernelShap", "Lime", "Occlusion"],
    "attribution.sensitivity": ["sensitivity"],
    "backend.protocol": ["Backend", "Listener", "ParameterValues", "PointValues", "Request", "Run", "TableRest"],
    "backend.registry": ["list_backends", "refresh_backends"],
    "checkpoints.load_bert": ["load_bert"],
    "common.metrics": ["Figures"],
    "comparison.bisect": ["Bisection", "bisect"],
    "comparison.compare": ["compare"],
    "comparison.diagnosis.findings": ["Finding"],
    "comparison.golden": ["Golden", "golden"],
    "comparison.result": ["Comparison", "Comparisons"],
    "engine.capture": ["Tap", "capture"],
    "engine.embedding_table": ["embedding_table"],
    "engine.evaluate": ["evaluate"],
    "engine.gradients": ["gradients", "points"],
    "engine.memory": ["memory"],
    "engine.padding_report": ["PaddingReport", "padding_report"],
    "engine.parameter_gradients": ["ParameterGradients", "parameter_gradients"],
    "engine.perturbed": ["perturbed"],
    "engine.table_gradients": ["TableGradients", "table_gradients"],
    "errors": [
        "AmbiguousPointError",
        "BackendError",
        "BatchError",
        "CertificationError",
        "EmbgradError",
        "EmbgradWarning",
        "FileFormatError",
        "GoldenError",
        "NoGradientError",
        "ObjectiveError",
        "OutputError",
        "PointError",
        "PointNotReachedError",
        "UnknownPointError",
        "UnsupportedError",
    ],
    "forward.points": ["Point"],
    "inputs.batch": ["TokenBatch"],
    "inputs.encode": ["encode"],
    "objectives.log_probability": ["LogProbability"],
    "objectives.native": ["NativeObjective"],
    "objectives.objectives": [
        "CrossEntropy",
        "Logit",
        "Margin",
        "Objective",
        "Probability",
        "Projection",
        "Scalar",
        "Sum",
    ],
    "results.attribution": ["Attribution", "Attributions"],
    "results.certificate": ["Certificate", "Slope"],
    "results.faithfulness": ["Faithfulness"],
    "results.gradients": ["EmbeddingGradients", "Word"],
    "results.io": ["load", "save"],
    "results.memory": ["Memory"],
    "results.row_sparse": ["RowSparse"],
    "results.search": ["Search"],
    "results.spans": ["Span"],
    "results.substitutions": ["Substitution", "Substitutions"],
    "results.table_norms": ["clipped_table", "table_norms", "table_products"],
    "results.token_attribution": ["TokenAttribution"],
    "results.token_matrix": ["TokenMatrix"],
    "streaming.saliencies": ["Saliencies"],
    "streaming.stream": ["Labelled", "PerBatch", "Stream", "StreamFolder", "open_stream", "stream"],
    "token_search.gcg": ["GCG"],
    "token_search.hotflip": ["HotFlip"],
    "token_search.pez": ["PEZ"],
    "token_search.search": ["search"],
    "token_search.substitutions": ["substitutions"],
    "token_search.universal_trigger": ["UniversalTrigger"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

#: The rooms that can be used as `embgrad.room` without an import of their own.
_ROOMS = [
    "attribution",
    "backend",
    "checkpoints",
    "common",
    "comparison",
    "engine",
    "errors",
    "forward",
    "inputs",
    "objectives",
    "report",
    "results",
    "streaming",
    "token_search",
    "version",
]

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> object:
    """Import a public name, or a room, when it is first used."""
    if name in _MODULES:
        value = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return _importlib.import_module(f"{__name__}.{name}")
    package = _importlib.import_module(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=package)


def __dir__() -> list[str]:
    """Return all names, used or not."""
    return sorted({*globals(), *__all__, *_ROOMS})
