"""The configuration of the engine; `haclient_fake_server.config` adds what the shells need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from haclient.errors import UsageError
from haclient.protocol.uri import Uri


@dataclass(frozen=True, slots=True)
class LogTopic:
    """Topics to record in the journal.

    Attributes:
        pattern: A topic, or a regular expression (see `patterns`).
        message_type: Only topics of this type; empty for all types.
    """

    pattern: str
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class SowTopic:
    """A topic with a state of the world.

    Attributes:
        name: The topic, literally.
        keys: Paths of its key fields, `("/id",)`; empty when the publisher gives the key.
        message_type: The message type of its records.
    """

    name: str
    keys: tuple[str, ...] = ()
    message_type: str = "json"


@dataclass(frozen=True, slots=True)
class ReplicateTo:
    """A replication destination: another instance that receives everything this one logs.

    Attributes:
        uri: Where it listens for clients, `tcp://[USER:PASSWORD@]HOST:PORT`.
        mode: `sync` holds persisted acks back until the destination has acknowledged, `async` does
            not.
        downgrade_after_s: When a record has waited for the destination for this many seconds, it
            counts as asynchronous until it has caught up; `None` for never.
        heartbeat_s: Heartbeat interval in seconds. After two and a half silent intervals the
            destination is considered dead, and dialled again.

    Raises:
        UsageError: The address, the mode or a time is malformed.
    """

    uri: str
    mode: Literal["sync", "async"] = "sync"
    downgrade_after_s: float | None = None
    heartbeat_s: float = 3.0

    def __post_init__(self) -> None:
        """Check the values."""
        address = self.address
        if self.mode not in {"sync", "async"}:
            raise UsageError(f"replicate to {address}: mode {self.mode!r}, not sync or async")
        for name, value in (
            ("downgrade_after_s", self.downgrade_after_s),
            ("heartbeat_s", self.heartbeat_s),
        ):
            if value is not None and not value > 0:
                raise UsageError(f"replicate to {address}: {name}={value}, wanted seconds")

    @property
    def parsed(self) -> Uri:
        """The address, taken apart."""
        return Uri.parse(self.uri if "/amps" in self.uri else f"{self.uri.rstrip('/')}/amps")

    @property
    def address(self) -> str:
        """How logs and the methods of the server name the destination, without user or password."""
        uri = self.parsed
        host = f"[{uri.host}]" if ":" in uri.host else uri.host
        return f"{uri.scheme}://{host}:{uri.port}"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The configuration of the engine.

    Attributes:
        name: The instance name: part of the ids of messages published without a sequence.
        users: Passwords by user; `None` turns authentication off.
        log_topics: The topics that the journal records; none when empty.
        sow_topics: Topics with a state of the world.
        ack_interval_s: How long persisted acks are collected unless the logon says otherwise.
        version: The server version of the logon ack.
        replicate_to: Where it sends its log.
    """

    name: str = "broker"
    users: Mapping[str, str] | None = None
    log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),)
    sow_topics: tuple[SowTopic, ...] = ()
    ack_interval_s: float = 1.0
    version: str = "5.3.5.0.reference"
    replicate_to: tuple[ReplicateTo, ...] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        for topic in self.sow_topics:
            if topic.name.startswith("/HACLIENT/"):
                raise UsageError(
                    f"sow topic {topic.name!r}: names under /HACLIENT/ are the broker's own, "
                    "give it another one"
                )
        addresses = [to.address for to in self.replicate_to]
        if len(set(addresses)) < len(addresses):
            raise UsageError(f"an instance is named twice to replicate to: {addresses}")
        if addresses and not self.log_topics:
            raise UsageError("replication sends the log, and no topic is logged")
