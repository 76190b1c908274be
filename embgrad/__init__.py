"""Gradients of an objective with respect to a text model's embeddings, as NumPy, from one call, in any framework.

PYTEST_DONT_REWRITE: without this mark pytest would warn if this package is imported before pytest loads its plugins.

Each name is imported when it is first used, so that `import embgrad` takes little time. Type checkers and editors read the same
names in `__init__.pyi`.
"""

from embgrad.common.lazy import attach as _attach

#: The public names by the modules, below this package, in which they are defined.
_NAMES = {
    "attribution.attribute": ["attribute"],
    "attribution.attribute_pairs": ["attribute_pairs"],
    "attribution.attribute_tokens": ["attribute_tokens"],
    "comparison.bisect": ["bisect"],
    "comparison.compare": ["compare"],
    "comparison.dump": ["dump"],
    "comparison.golden": ["golden"],
    "comparison.port": ["check_port"],
    "engine.capture": ["capture"],
    "engine.evaluate": ["evaluate"],
    "engine.gradients": ["gradients", "points"],
    "engine.memory": ["memory"],
    "engine.perturbed": ["perturbed"],
    "errors": ["EmbgradError", "EmbgradWarning"],
    "inputs.batch": ["TokenBatch"],
    "inputs.encode": ["encode"],
    "objectives.distances": ["BinaryCrossEntropy", "CosineSimilarity", "SquaredError"],
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
    "results.io": ["load", "save"],
    "streaming.stream": ["Labelled", "PerBatch", "open_stream", "stream"],
    "token_search.search": ["search"],
    "token_search.substitutions": ["substitutions"],
    "version": ["__version__"],
}
#: The namespaces of the other public names, which are attributes of `embgrad` itself too, but are listed there alone.
_NAMESPACES = ["backend", "errors", "methods", "metrics", "results", "tables", "zoo"]

#: The rooms that can be used as `embgrad.room` without an import of their own.
_ROOMS = [
    "attribution",
    "checkpoints",
    "cli",
    "common",
    "comparison",
    "engine",
    "inputs",
    "keras",
    "model_points",
    "objectives",
    "report",
    "streaming",
    "testing",
    "token_search",
    "toolkit",
    "version",
]

__getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _NAMESPACES, _ROOMS)
