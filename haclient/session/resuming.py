"""What a subscription that resumes says to the server (protocol 7.3, design 5). Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from haclient.protocol.options import Options
from haclient.protocol.version import version_number

__all__ = ["Refusals", "resuming_options"]

_KNOWS_BOOKMARK_NOT_FOUND: Final = 5_030_500  # servers from 5.3.5 on (protocol 7.3)


def resuming_options(options: str, *, bookmark: str, version: str, again: bool) -> str:
    """The options of a subscribe that goes on where a store says.

    A server that knows none of the bookmarks would begin at the end of its log, which is a silent
    gap; where it can be told so it begins at the start, and the store filters what is known.

    Args:
        options: As the application gave them.
        bookmark: What is asked for; empty for a subscription without one.
        version: The server's, as it writes it.
        again: Whether it was entered before; on a new connection there is nothing to replace.
    """
    parsed = Options.parse(options)
    knows = version_number(version) >= _KNOWS_BOOKMARK_NOT_FOUND
    not_found = parsed.bookmark_not_found or ("epoch" if bookmark and knows else None)
    return str(replace(parsed, replace=parsed.replace and not again, bookmark_not_found=not_found))


class Refusals:
    """Which servers have refused which subscriptions since the client was live last (SM8)."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def add(self, sub_id: str, uri: str) -> bool:
        """A server refused it; whether the same one has refused it before, so all were asked."""
        again = (sub_id, uri) in self._seen
        self._seen.add((sub_id, uri))
        return again

    def clear(self) -> None:
        """Live: the next loss begins anew."""
        self._seen.clear()
