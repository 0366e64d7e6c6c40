"""Faults as data (design 8; rows FI1, FI4).

What can go wrong is said by frozen values, and carried out by whoever has the connections: a
`FaultProxy` for real sockets, a `MemoryWire` for `mem://` addresses, a `Cluster` for all of its
connections and brokers. The same list of faults therefore runs against sockets, against processes
and in virtual time::

    await cluster.apply(Cut(how="silence", at_byte=1000), Partition("east", "west", one_way=True))

Each fault has a text form, one JSON object, for scripts that are kept or printed beside a seed:
`to_json(Kill("east"))` is `{"fault":"kill","name":"east"}`, and `from_json` reads it again.

Directions are seen from who dialled: `up` is what the dialler sends, `down` what comes back. The
name of everybody who is not a broker is `CLIENT`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Final, Literal, TypeAlias

import msgspec

from haclient.errors import UsageError

__all__ = [
    "BOTH",
    "CLIENT",
    "Cut",
    "Direction",
    "Fault",
    "Heal",
    "How",
    "Kill",
    "LinkFault",
    "Partition",
    "Refuse",
    "Restart",
    "Slow",
    "from_json",
    "to_json",
]

Direction: TypeAlias = Literal["up", "down"]
"""Which way bytes travel: `up` from who dialled, `down` to who dialled."""

How: TypeAlias = Literal["reset", "end", "silence"]
"""How a connection is lost: an error at once (RST), an orderly end (FIN), or nothing at all, as
behind a router that died: both ends believe in it, and what they send disappears (half-open)."""

CLIENT: Final = "client"
"""The name of everybody who dials and is not a broker of the cluster."""

BOTH: Final[tuple[Direction, Direction]] = ("up", "down")
"""Both ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Lose a connection, now or at a chosen place (FI1).

    Without a place every open connection is lost at once. With one, the first connection that gets
    there is lost, whether it is open now or comes later; what came before is not counted.

    Attributes:
        how: How it is lost.
        direction: Whose bytes and frames are counted.
        at_byte: After so many bytes.
        in_frame: In the middle of this frame; the first one is 1.
        before_ack: Before the first ack of this type (`processed`, `persisted` ...); `*` for any.
        after_ack: Right after it.
        source: Only connections dialled by this broker, or by clients; empty for all.
        target: Only connections to this broker; empty for all.

    Raises:
        UsageError: There is more than one place, or it cannot be.
    """

    how: How = "reset"
    direction: Direction = "down"
    at_byte: int | None = None
    in_frame: int | None = None
    before_ack: str = ""
    after_ack: str = ""
    source: str = CLIENT
    target: str = ""

    def __post_init__(self) -> None:
        """Refuse nonsense."""
        places = [self.at_byte is not None, self.in_frame is not None]
        places += [bool(self.before_ack), bool(self.after_ack)]
        if sum(places) > 1:
            raise UsageError(
                "a cut has one place: at_byte, in_frame, before_ack or after_ack, or none for now"
            )
        if self.at_byte is not None and self.at_byte < 0:
            raise UsageError(f"a cut after {self.at_byte} bytes: wanted 0 or more")
        if self.in_frame is not None and self.in_frame < 1:
            raise UsageError(f"a cut in frame {self.in_frame}: the first frame is 1")
        if (self.before_ack or self.after_ack) and self.direction != "down":
            raise UsageError("a cut at an ack: acks come down, direction is 'up'")

    @property
    def is_now(self) -> bool:
        """Whether it has no place to wait for."""
        somewhere = self.before_ack or self.after_ack
        return self.at_byte is None and self.in_frame is None and not somewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Make connections slow, those that are open and those to come; `Slow()` ends it.

    Attributes:
        latency_s: How long every byte travels, each way.
        piece_bytes: The most that arrives at a time, so that frames come in pieces.
        source: As in `Cut`.
        target: As in `Cut`.

    Raises:
        UsageError: A number cannot be.
    """

    latency_s: float = 0.0
    piece_bytes: int | None = None
    source: str = CLIENT
    target: str = ""

    def __post_init__(self) -> None:
        """Refuse nonsense."""
        if not 0 <= self.latency_s < float("inf"):
            raise UsageError(f"latency_s={self.latency_s}: wanted seconds, 0 or more")
        if self.piece_bytes is not None and self.piece_bytes < 1:
            raise UsageError(f"piece_bytes={self.piece_bytes}: wanted 1 or more, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse new connections, until `Heal`; those that are open stay.

    Attributes:
        source: As in `Cut`.
        target: As in `Cut`.
    """

    source: str = CLIENT
    target: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """Let nothing pass between two, until `Heal` (FI4). Connections stay open and are silent.

    No new connection between the two is completed either, whichever way the traffic is blocked.

    Attributes:
        a: A broker's name, or `CLIENT`.
        b: The other's.
        one_way: Only what `a` sends is blocked; what `b` sends arrives.
        dropped: What was sent meanwhile is lost, and the connections that lost something are reset
            by `Heal`. Otherwise it is held, and arrives then, as TCP sends it again.
    """

    a: str
    b: str
    one_way: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Heal:
    """Undo everything between two, or everywhere: partitions, refusals, slowness, cuts to come.

    Connections that lost bytes are reset, as by a peer that knows nothing of them any more.

    Attributes:
        a: A broker's name, or `CLIENT`; empty for all.
        b: The other's; empty for all that `a` is connected to.
    """

    a: str = ""
    b: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """End a broker at once: SIGKILL where it is a process.

    Attributes:
        name: The broker's.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a broker again, on the same address and data; one that runs is killed first.

    Attributes:
        name: The broker's.
    """

    name: str


LinkFault: TypeAlias = Cut | Slow | Refuse
"""What can be done to the connections of one wire."""

Fault: TypeAlias = LinkFault | Partition | Heal | Kill | Restart
"""Everything that can go wrong."""

_KINDS: Final[dict[str, type[Fault]]] = {
    kind.__name__.lower(): kind for kind in (Cut, Slow, Refuse, Partition, Heal, Kill, Restart)
}


def to_json(fault: Fault) -> str:
    """A fault as one JSON object; what has its usual value is left out."""
    told: dict[str, object] = {"fault": type(fault).__name__.lower()}
    for field in fields(fault):
        value: object = getattr(fault, field.name)
        if field.default is MISSING or value != field.default:
            told[field.name] = value
    return msgspec.json.encode(told).decode()


def from_json(text: str | bytes) -> Fault:
    """Read what `to_json` wrote.

    Raises:
        UsageError: It is not the JSON of a fault.
    """
    try:
        told = msgspec.json.decode(text, type=dict[str, object])
        kind = _KINDS.get(str(told.pop("fault", "")))
        if kind is None:
            raise UsageError(f"not a fault: {text!r}; wanted one of {', '.join(_KINDS)}")
        unknown = told.keys() - {field.name for field in fields(kind)}
        if unknown:
            raise UsageError(f"{kind.__name__.lower()}: unknown {', '.join(sorted(unknown))}")
        return msgspec.convert(told, kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a fault: {text!r}: {error}") from error
