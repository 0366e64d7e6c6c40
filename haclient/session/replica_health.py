"""What servers say of each other's replication, and which of them a client must not use.

A server that was downgraded to asynchronous replication, or is far behind, lacks messages that were
acknowledged. Only the server that sends them knows; and when it is needed most, it cannot be asked
any more. So its last word counts, until it says something else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from haclient.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class DestinationReport:
    """What one server says of a destination of its replication.

    Attributes:
        name: The instance name of the destination; empty while it was never reached.
        address: `HOST:PORT`, as the reporting server knows it.
        is_downgraded: Whether it is configured as synchronous, and acknowledgements do not wait
            for it.
        is_sync: Whether acknowledgements wait for it.
        messages_behind: How many messages it has not acknowledged.
        messages_missing: How many it will never get, because the reporting server no longer has
            them.
    """

    name: str
    address: str
    is_downgraded: bool
    is_sync: bool
    messages_behind: int
    messages_missing: int


def parse_replication(body: bytes) -> tuple[str, tuple[DestinationReport, ...]]:
    """The name of an instance and its destinations, from `/amps/instance/replication.json`.

    Raises:
        ProtocolError: It is something else.
    """
    try:
        instance: dict[str, Any] = json.loads(body)["amps"]["instance"]
        reports = tuple(
            DestinationReport(
                str(each["name"]),
                str(each["address"]).rpartition("//")[2],
                each["configured_type"] == "sync" and each["replication_type"] == "async",
                each["replication_type"] == "sync",
                int(each["messages_behind"]),
                int(each.get("messages_missing", 0)),
            )
            for each in instance["replication"]
        )
        return str(instance["name"]), reports
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(
            f"the admin interface did not answer with the state of replication: {error!r}"
        ) from error


class ReplicaHealth:
    """The last word of each server on the others.

    Args:
        max_behind: How many messages a destination that nobody waits for may be behind; `None` for
            any number.
    """

    def __init__(self, max_behind: int | None = None) -> None:
        self._max_behind = max_behind
        self._names: dict[str, str] = {}  # by address of the server
        self._reports: dict[str, tuple[str, tuple[DestinationReport, ...]]] = {}

    def note(self, address: str, name: str, reports: Sequence[DestinationReport]) -> None:
        """Note what a server says, instead of what it said before.

        Args:
            address: `HOST:PORT` of the server, as clients know it.
            name: Its instance name.
            reports: Its destinations.
        """
        self._names[address] = name
        self._reports[address] = name, tuple(reports)

    def refusal_reason(self, address: str) -> str | None:
        """Why a client must not use a server; `None` when it may.

        Args:
            address: `HOST:PORT`, as clients know it.
        """
        name = self._names.get(address)
        for source, (source_name, reports) in self._reports.items():
            for each in reports:
                is_meant = each.name == name if name and each.name else each.address == address
                if source == address or not is_meant:
                    continue
                behind = f"{each.messages_behind} messages behind"
                if each.messages_missing:
                    return f"for {source_name} it lacks {each.messages_missing} messages for good"
                if each.is_downgraded:
                    return f"{source_name} has downgraded it, {behind}"
                limit = self._max_behind
                if limit is not None and not each.is_sync and each.messages_behind > limit:
                    return f"for {source_name} it is {behind}, the limit is {limit}"
        return None
