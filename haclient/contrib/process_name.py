"""Names for the clients of a service that runs as many equal processes."""

from __future__ import annotations

import os
import socket


def process_name(prefix: str) -> str:
    """A name that no other process has; it has the host, since containers share process ids."""
    return f"{prefix}-{socket.gethostname()}-{os.getpid()}"
