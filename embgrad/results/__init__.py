"""Results: what the calls return. Each class is imported when it is first used; type checkers read `__init__.pyi`."""

from embgrad.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(
    __name__,
    {
        "common.metrics": ["Figures"],
        "comparison.bisection_records": ["Bisection"],
        "comparison.findings": ["Finding"],
        "comparison.golden": ["Golden"],
        "comparison.result": ["Comparison", "Comparisons"],
        "engine.capture": ["Tap"],
        "engine.padding_report": ["PaddingReport"],
        "engine.parameter_gradients": ["ParameterGradients"],
        "engine.table_gradients": ["TableGradients"],
        "model_points.points": ["Point"],
        "results.attribution": ["Attribution", "Attributions"],
        "results.certificate": ["Certificate", "Slope"],
        "results.faithfulness": ["Faithfulness"],
        "results.gradients": ["EmbeddingGradients", "Word"],
        "results.influence": ["Influence"],
        "results.memory": ["Memory"],
        "results.pair_attribution": ["PairAttribution"],
        "results.port_records": ["Cause", "PortPoint", "PortWeights", "SettingDifference", "WeightPair"],
        "results.port_report": ["PortReport"],
        "results.row_sparse": ["RowSparse"],
        "results.search": ["Search"],
        "results.spans": ["Span"],
        "results.substitutions": ["Substitution", "Substitutions"],
        "results.token_attribution": ["TokenAttribution"],
        "display.lines": ["TokenMatrix"],
        "streaming.stream": ["Stream", "StreamFolder"],
    },
)
