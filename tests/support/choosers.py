"""What a server chooser does when every attempt fails."""

from __future__ import annotations

from haclient.errors import DisconnectedError
from haclient.servers.chooser import ServerChooser

__all__ = ["ERROR", "A", "B", "C", "tried"]

A, B, C = (f"tcp://{host}:9007/amps/json" for host in "abc")
ERROR = DisconnectedError("connection refused")


def tried(chooser: ServerChooser, times: int) -> str:
    """The hosts of so many attempts that all fail; a dot where there is no server."""
    hosts = ""
    for _ in range(times):
        uri = chooser.current_uri()
        hosts += uri[6] if uri else "."
        if uri:
            chooser.report_failure(ERROR, {"uri": uri})
    return hosts
