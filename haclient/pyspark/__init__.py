"""Apache Spark reads from and writes to AMPS, through PySpark.

`register(spark)` checks the environment of a session and makes its data sources known. It needs the
extra: `pip install 'haclient[pyspark]'`, and Java 17 or later.

Names are loaded when they are first used: importing this package imports neither pyspark nor
pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_NAMES = {
    "haclient.pyspark.environment": "check_installation register",
    "haclient.pyspark.jobs.audit": "Subscription audit",
    "haclient.pyspark.jobs.audit_logs": "read_deliveries read_publishes",
    "haclient.pyspark.jobs.fleet": "fleet",
    "haclient.pyspark.jobs.history": "between export replay sow_as_of",
    "haclient.pyspark.jobs.journals": "read_export",
    "haclient.pyspark.jobs.latency": "add_latency",
    "haclient.pyspark.jobs.queue_audit": "AuditedQueue audit_queues",
    "haclient.pyspark.jobs.reconcile": "reconcile",
    "haclient.pyspark.jobs.reports": "write_report",
    "haclient.pyspark.jobs.verdict": "Audit",
    "haclient.pyspark.journal.frames": "read_journal",
    "haclient.pyspark.json_bodies": "parse_json",
    "haclient.pyspark.sink.publish": "publish_frame publish_stream",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    return sorted(_HOMES)


if TYPE_CHECKING:
    from haclient.pyspark.environment import check_installation as check_installation
    from haclient.pyspark.environment import register as register
    from haclient.pyspark.jobs.audit import Subscription as Subscription
    from haclient.pyspark.jobs.audit import audit as audit
    from haclient.pyspark.jobs.audit_logs import read_deliveries as read_deliveries
    from haclient.pyspark.jobs.audit_logs import read_publishes as read_publishes
    from haclient.pyspark.jobs.fleet import fleet as fleet
    from haclient.pyspark.jobs.history import between as between
    from haclient.pyspark.jobs.history import export as export
    from haclient.pyspark.jobs.history import replay as replay
    from haclient.pyspark.jobs.history import sow_as_of as sow_as_of
    from haclient.pyspark.jobs.journals import read_export as read_export
    from haclient.pyspark.jobs.latency import add_latency as add_latency
    from haclient.pyspark.jobs.queue_audit import AuditedQueue as AuditedQueue
    from haclient.pyspark.jobs.queue_audit import audit_queues as audit_queues
    from haclient.pyspark.jobs.reconcile import reconcile as reconcile
    from haclient.pyspark.jobs.reports import write_report as write_report
    from haclient.pyspark.jobs.verdict import Audit as Audit
    from haclient.pyspark.journal.frames import read_journal as read_journal
    from haclient.pyspark.json_bodies import parse_json as parse_json
    from haclient.pyspark.sink.publish import publish_frame as publish_frame
    from haclient.pyspark.sink.publish import publish_stream as publish_stream
else:  # type checkers would take every misspelled name for one that it loads
    __all__ = sorted(_HOMES)  # noqa: PLE0605  # it is a list

    def __getattr__(name: str) -> object:
        """Load a public name from its module."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(_HOMES[name])
        except ImportError:
            # A program imports all of them before it calls `register`: say which package is old.
            import_module(_HOMES["register"]).check_packages()
            raise
        value: object = getattr(module, name)
        globals()[name] = value
        return value
