from __future__ import annotations

from support.peer import server

__all__ = ["server"]
