"""Apache Spark reads from and writes to AMPS, through PySpark.

`register(spark)` checks the environment of a session and makes its data sources known. It needs the
extra: `pip install 'haclient[pyspark]'`, and Java 17 or later.

Names are loaded when they are first used: importing this package imports neither pyspark nor
pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from haclient.pyspark.environment import check_installation, register
    from haclient.pyspark.sink import publish_frame, publish_stream

__all__ = ["check_installation", "publish_frame", "publish_stream", "register"]

_HOMES = {
    "check_installation": "haclient.pyspark.environment",
    "publish_frame": "haclient.pyspark.sink",
    "publish_stream": "haclient.pyspark.sink",
    "register": "haclient.pyspark.environment",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'haclient.pyspark' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
