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
    from haclient.pyspark.jobs.audit import Subscription, audit
    from haclient.pyspark.jobs.audit_logs import read_deliveries, read_publishes
    from haclient.pyspark.jobs.fleet import fleet
    from haclient.pyspark.jobs.history import between, export, replay, sow_as_of
    from haclient.pyspark.jobs.journals import read_export
    from haclient.pyspark.jobs.latency import add_latency
    from haclient.pyspark.jobs.queue_audit import AuditedQueue, audit_queues
    from haclient.pyspark.jobs.reconcile import reconcile
    from haclient.pyspark.jobs.reports import write_report
    from haclient.pyspark.jobs.verdict import Audit
    from haclient.pyspark.journal.frames import read_journal
    from haclient.pyspark.json_bodies import parse_json
    from haclient.pyspark.sink.publish import publish_frame, publish_stream

__all__ = [
    "Audit",
    "AuditedQueue",
    "Subscription",
    "add_latency",
    "audit",
    "audit_queues",
    "between",
    "check_installation",
    "export",
    "fleet",
    "parse_json",
    "publish_frame",
    "publish_stream",
    "read_deliveries",
    "read_export",
    "read_journal",
    "read_publishes",
    "reconcile",
    "register",
    "replay",
    "sow_as_of",
    "write_report",
]

_HOMES = {
    "environment": ("check_installation", "register"),
    "jobs.audit": ("Subscription", "audit"),
    "jobs.audit_logs": ("read_deliveries", "read_publishes"),
    "jobs.fleet": ("fleet",),
    "jobs.history": ("between", "export", "replay", "sow_as_of"),
    "jobs.journals": ("read_export",),
    "jobs.latency": ("add_latency",),
    "jobs.queue_audit": ("AuditedQueue", "audit_queues"),
    "jobs.reconcile": ("reconcile",),
    "jobs.reports": ("write_report",),
    "jobs.verdict": ("Audit",),
    "journal.frames": ("read_journal",),
    "json_bodies": ("parse_json",),
    "sink.publish": ("publish_frame", "publish_stream"),
}
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_HOME_OF[name])
    except ImportError:
        # A program imports all of them before it calls `register`: say here which package is old.
        import_module(_HOME_OF["register"]).check_packages()
        raise
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
