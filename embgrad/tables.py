"""Gradients of tables and of parameters, and what is computed of them."""

from embgrad.engine.embedding_table import embedding_table
from embgrad.engine.parameter_gradients import parameter_gradients
from embgrad.engine.table_gradients import table_gradients
from embgrad.results.table_norms import clipped_table, table_norms, table_products
from embgrad.streaming.influence import influence

__all__ = [
    "clipped_table",
    "embedding_table",
    "influence",
    "parameter_gradients",
    "table_gradients",
    "table_norms",
    "table_products",
]
