"""Names for the clients of a service that runs as many equal processes."""

from __future__ import annotations

import os
import socket


def process_name(prefix: str) -> str:
    """A name that no other process has: in containers the process ids are equal, too."""
    return f"{prefix}-{socket.gethostname()}-{os.getpid()}"
