"""What the engine is told of its instance; `haclient_fake_server.config` adds what shells need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["EngineSettings", "LogTopic", "SowTopic"]


@dataclass(frozen=True, slots=True)
class LogTopic:
    """Topics to record in the journal (TL2).

    Attributes:
        pattern: A topic, or a regular expression as in protocol 3.14.
        message_type: Only topics of this type; empty for all types.
    """

    pattern: str
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class SowTopic:
    """A topic with a state of the world (SW1).

    Attributes:
        name: The topic, literally.
        keys: Paths of its key fields, `("/id",)`; empty when the publisher gives the key.
        message_type: The message type of its records.
    """

    name: str
    keys: tuple[str, ...] = ()
    message_type: str = "json"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that the engine decides by.

    Attributes:
        name: The instance name: part of the ids of messages published without a sequence (ID3).
        users: Passwords by user; `None` turns authentication off.
        log_topics: What the journal records; nothing at all when empty (TL2).
        sow_topics: Topics with a state of the world.
        ack_interval_s: How long persisted acks are collected unless the logon says otherwise (AK2).
        version: The server version of the logon ack.
    """

    name: str = "broker"
    users: Mapping[str, str] | None = None
    log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),)
    sow_topics: tuple[SowTopic, ...] = ()
    ack_interval_s: float = 1.0
    version: str = "5.3.5.0.reference"
