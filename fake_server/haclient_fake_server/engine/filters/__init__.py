"""Content filters, the order of queries, and the documents that both look at."""

from __future__ import annotations

from haclient_fake_server.engine.filters.compiler import (
    Filter,
    Scalar,
    compile_expression,
    compile_filter,
)
from haclient_fake_server.engine.filters.document import Document, Path, Step
from haclient_fake_server.engine.filters.ordering import OrderBy, OrderByError, parse_order_by
from haclient_fake_server.engine.filters.parser import FilterError, parse_path

__all__ = [
    "Document",
    "Filter",
    "FilterError",
    "OrderBy",
    "OrderByError",
    "Path",
    "Scalar",
    "Step",
    "compile_expression",
    "compile_filter",
    "parse_order_by",
    "parse_path",
]
