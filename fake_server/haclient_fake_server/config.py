"""How a broker is configured: the engine's settings and what the shells need (design 8)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from haclient.protocol.framing import MAX_FRAME_BYTES
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, SowTopic

__all__ = ["BrokerConfig", "FsyncPolicy", "LogTopic", "SowTopic"]


class FsyncPolicy(enum.StrEnum):
    """When the journal is forced to the disk itself, beyond the operating system's cache."""

    NONE = "none"
    """Never: what was acknowledged survives a killed process, not a loss of power."""
    INTERVAL = "interval"
    """Every `flush_interval_s`, in a thread; acks do not wait for it."""
    BATCH = "batch"
    """After each batch, before its acks: nothing acknowledged is ever lost, at 4 ms a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker instance. Times are seconds, sizes bytes.

    Attributes:
        name: The instance name; part of the ids of messages published without a sequence (ID3).
        listen: Where to listen, `tcp://HOST:PORT`; port 0 takes a free one.
        data_dir: Directory of the journal; `None` keeps it in memory, for as long as the broker.
        users: Passwords by user; `None` turns authentication off.
        log_topics: What the journal records; an empty tuple: nothing (TL2).
        sow_topics: Topics with a state of the world (SW1).
        ack_interval_s: How long persisted acks are collected (AK2).
        flush_interval_s: Longest time between two fsyncs of policy `interval` (TL6).
        fsync: When the journal is forced to the disk.
        segment_bytes: Size of a journal file (TL5); a larger block gets a file of its own size.
        high_water_bytes: Unsent bytes of a connection above which its bookmark subscriptions read
            the log instead of being sent what is published.
        low_water_bytes: Unsent bytes below which replay goes on.
        slow_client_bytes: Unsent bytes above which a connection is cut as a slow client.
        max_frame_bytes: Larger frames are refused, and their connection closed. The default leaves
            room for the headers that a delivery has and a publish has not.
        version: What the logon ack says of the server.
    """

    name: str = "broker"
    listen: tuple[str, ...] = ("tcp://127.0.0.1:0",)
    data_dir: Path | None = None
    users: Mapping[str, str] | None = None
    log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),)
    sow_topics: tuple[SowTopic, ...] = ()
    ack_interval_s: float = 1.0
    flush_interval_s: float = 0.1
    fsync: FsyncPolicy = FsyncPolicy.NONE
    segment_bytes: int = 64 * 2**20
    high_water_bytes: int = 2 * 2**20
    low_water_bytes: int = 512 * 1024
    slow_client_bytes: int = 256 * 2**20
    max_frame_bytes: int = MAX_FRAME_BYTES - 2**20
    version: str = "5.3.5.0.reference"

    def engine_settings(self) -> EngineSettings:
        """The part that the engine decides by."""
        return EngineSettings(
            name=self.name,
            users=self.users,
            log_topics=self.log_topics,
            sow_topics=self.sow_topics,
            ack_interval_s=self.ack_interval_s,
            version=self.version,
        )
