"""The private names of MXNet 1.9 that the Gluon backend uses, each with the reason."""

from __future__ import annotations

from typing import Final

__all__ = ["PRIVATE_NAMES"]

PRIVATE_NAMES: Final[dict[str, str]] = {
    # Blocks
    "_children": "No public method gives a block's children with their names; `apply` gives them without.",
    "_reg_params": "The parameters that a block holds as attributes; `collect_params` spells them by prefixes, not attributes.",
    "_collect_params_with_prefix": "The names in a parameters' file, which recurrent layers and gluonnlp's attention spell.",
    "_call_cached_op": "The method by which every hybridised block and SymbolBlock runs its graph, so the place to intercept it.",
    "_cached_graph": "A block's inputs and symbol; `export` writes them to files, with the parameters.",
    "_cached_op": "Says whether a hybridised block has its graph already, and identifies it.",
    "_cached_op_args": "The order of a graph's inputs and parameters, and the parameters that a device's backend added.",
    "_in_format": "How the arguments were nested when the graph was made; a call of another nesting must fail as Gluon's.",
    "_out_format": "How the outputs of a graph are nested.",
    "_flatten": "Gluon's own reading of nested arguments, with which the formats are written.",
    "_regroup": "Gluon's own writing of nested outputs, by the formats.",
    # Parameters and arrays
    "_data": "A parameter's arrays: `data()` may apply dropout (gluonnlp), and `list_data()` refuses row-sparse ones.",
    "_finish_deferred_init": "Gives a parameter its array once its shape is known, as a block's own `forward` does.",
    # Operators
    "_LIB": "The library's C functions for an operator's handle and for the address of an array's values.",
    "_imperative_invoke": "The function in which every operator of mx.nd and mx.np ends, so the place to intercept it.",
    "_is_np_op": "Says whether an operator returns arrays of mx.np.",
    # Names of operators, as MXNet registers them and writes them into exported files
    "_contrib_BatchNormWithReLU": "An operator with a wrong gradient, which is cured or refused.",
    "_contrib_SparseEmbedding": "An operator that is a lookup.",
    "_contrib_SyncBatchNorm": "An operator whose gradient goes by the mode of the pullback, which is cured.",
    "_image_flip_": "Begins the names of operators with a wrong gradient, which are refused.",
    "_np_atleast_": "Begins the names of operators with the gradient zero, which are refused.",
    "_np_max": "An operator that gives the whole gradient to each of equal entries, which is cured.",
    "_np_min": "An operator that gives the whole gradient to each of equal entries, which is cured.",
    "_npi_": "Begins the names of mx.np's operators, some of which are cured, refused, or draw random numbers.",
    "_random_": "Begins the names of operators that draw random numbers.",
    "_sample_": "Begins the names of operators that draw random numbers.",
    "_like": "Ends the names of operators that draw random numbers.",
    "_shuffle": "An operator that draws random numbers.",
    "_zeros": "The operator that takes the place of the next one.",
    "_zeros_without_dtype": "An operator of exported graphs whose dtype MXNet infers before it runs them.",
    # Parts of names, no API
    "_": "Stands between the parts of the names that Gluon gives to nodes and parameters.",
    "_fwd": "Ends the name of the operator of one of Gluon's layers in a graph.",
}
