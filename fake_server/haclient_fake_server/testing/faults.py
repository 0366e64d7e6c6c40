"""Faults as data.

A fault is a frozen value. The object that owns the connections carries it out: a `FaultProxy` for
real sockets, a `MemorySwitch` for `mem://` addresses, a `Cluster` for all of its connections and
brokers. The same list of faults therefore runs against sockets, against processes and in virtual
time::

    await cluster.apply(Cut(how="silence", at_byte=1000), Partition("east", "west", one_way=True))

Each fault has a text form, one JSON object, for scripts that are stored or printed with a seed:
`to_json(Kill("east"))` is `{"fault":"kill","name":"east"}`, and `from_json` reads it again.

Directions are seen from the dialler: `up` is what the dialler sends, `down` what it receives. Every
dialler that is not a broker has the name `CLIENT`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from haclient.errors import UsageError
from haclient.protocol.commands import AckType
from haclient_fake_server.kill_points import KillPoint

__all__ = [
    "BOTH",
    "CLIENT",
    "FAULTS",
    "LINK_FAULTS",
    "Acks",
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
    "check_fault",
    "from_json",
    "to_json",
]

Direction: TypeAlias = Literal["up", "down"]
"""Which way bytes travel: `up` from the dialler, `down` to the dialler."""

How: TypeAlias = Literal["reset", "end", "silence"]
"""How a connection is lost: an error at once (RST), an orderly end (FIN), or silence, as behind a
router that died: both ends consider it open, and what they send disappears (half-open)."""

CLIENT: Final = "client"
"""The name of every dialler that is not a broker of the cluster."""

BOTH: Final[tuple[Direction, Direction]] = ("up", "down")
"""Both ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Lose a connection, now or at a chosen place.

    Without a place every open connection is lost at once. With one, the first connection that
    reaches the place is lost, whether it is open now or opened later. Bytes and frames are counted
    from the moment at which the fault is applied.

    Attributes:
        how: How it is lost.
        direction: In which direction bytes and frames are counted.
        at_byte: After this many bytes.
        in_frame: In the middle of this frame; the first one is 1.
        before_ack: Before the first ack of this type (`processed`, `persisted` ...); `*` for any.
        after_ack: Right after it.
        source: Only connections dialled by this broker, or by clients; empty for all.
        target: Only connections to this broker; empty for all.

    Raises:
        UsageError: There is more than one place, a number is out of range, or a word is unknown.
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
        """Check the values."""
        _check_word("how", self.how, get_args(How))
        _check_word("direction", self.direction, get_args(Direction))
        for name in ("before_ack", "after_ack"):
            _check_word(name, getattr(self, name), ("", "*", *AckType))
        for name in ("at_byte", "in_frame"):
            _check_whole(name, getattr(self, name))
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
        """Whether it takes effect at once, since it has no place to wait for."""
        somewhere = self.before_ack or self.after_ack
        return self.at_byte is None and self.in_frame is None and not somewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Acks:
    """Let acks disappear or arrive in another order, on open connections and later ones.

    Attributes:
        how: `drop`: they never arrive. `reorder`: each arrives after the next one of its type.
        ack: The type of ack (`processed`, `persisted` ...); `*` for any.
        count: How many, of all connections together; `None` for all until `Heal`.
        source: As in `Cut`.
        target: As in `Cut`.

    Raises:
        UsageError: A number is out of range, or a word is unknown.
    """

    how: Literal["drop", "reorder"] = "drop"
    ack: str = "*"
    count: int | None = None
    source: str = CLIENT
    target: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        _check_word("how", self.how, ("drop", "reorder"))
        _check_word("ack", self.ack, ("*", *AckType))
        _check_whole("count", self.count)
        if self.count is not None and self.count < 1:
            raise UsageError(f"count={self.count}: wanted 1 or more, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Make connections slow, open ones and later ones; `Slow()` ends it.

    Attributes:
        latency_s: How long every byte travels in each direction, in seconds.
        piece_bytes: The most bytes that arrive at a time, so that frames come in pieces.
        unread: A direction in which the receiver reads nothing: the sender finds the window closed
            (zero window) once the buffers between them are full.
        source: As in `Cut`.
        target: As in `Cut`.

    Raises:
        UsageError: A number is out of range.
    """

    latency_s: float = 0.0
    piece_bytes: int | None = None
    unread: Direction | None = None
    source: str = CLIENT
    target: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        _check_seconds("latency_s", self.latency_s)
        _check_whole("piece_bytes", self.piece_bytes)
        if self.piece_bytes is not None and self.piece_bytes < 1:
            raise UsageError(f"piece_bytes={self.piece_bytes}: wanted 1 or more, or None")
        if self.unread is not None:
            _check_word("unread", self.unread, BOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse new connections, until `Heal`; open ones stay.

    Attributes:
        source: As in `Cut`.
        target: As in `Cut`.
    """

    source: str = CLIENT
    target: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """Block all traffic between two parties until `Heal`. Connections stay open and are silent.

    No new connection between the two is completed either, whichever way the traffic is blocked.

    Attributes:
        a: A broker's name, or `CLIENT`.
        b: The other's.
        one_way: Only what `a` sends is blocked; what `b` sends arrives.
        dropped: What is sent meanwhile is lost, and `Heal` resets the connections that have lost
            something. Otherwise it is held and arrives after `Heal`, as TCP would send it again.
    """

    a: str
    b: str
    one_way: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Heal:
    """Undo all faults between two parties or everywhere.

    That is partition, refusal, slowness, armed cuts, and faults of acks. Connections that have lost
    bytes are reset, as by a peer that has restarted.

    Attributes:
        a: A broker's name, or `CLIENT`; empty for all.
        b: The other's; empty for all that `a` has connections with.
    """

    a: str = ""
    b: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """End a broker with SIGKILL, or with its task where it runs in this process.

    Without a point it ends now. With one, it kills itself when it reaches the point; that needs a
    broker that is a process.

    Attributes:
        name: The broker's.
        at: A `KillPoint`; empty for now.
        passes: How often it passes the point before that.

    Raises:
        UsageError: There is no such point, or a number is out of range.
    """

    name: str
    at: str = ""
    passes: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        _check_word("at", self.at, ("", *KillPoint))
        _check_count("passes", self.passes)
        if self.passes and not self.at:
            raise UsageError(f"passes={self.passes} of no point: wanted `at` with it")


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a broker again with the same address and data; a running one is killed first.

    Attributes:
        name: The broker's.
    """

    name: str


LinkFault: TypeAlias = Cut | Acks | Slow | Refuse
"""A fault of the connections of one wire."""

Fault: TypeAlias = LinkFault | Partition | Heal | Kill | Restart
"""Any fault."""

LINK_FAULTS: Final[tuple[type[LinkFault], ...]] = (Cut, Acks, Slow, Refuse)
"""The classes of faults of the connections of one wire."""

FAULTS: Final[tuple[type[Fault], ...]] = (*LINK_FAULTS, Partition, Heal, Kill, Restart)
"""The classes of all faults."""

_KINDS: Final[dict[str, type[Fault]]] = {kind.__name__.lower(): kind for kind in FAULTS}


def check_fault(found: object, wanted: tuple[type[Fault], ...] = FAULTS) -> None:
    """Check that a value is a fault.

    Args:
        found: The value.
        wanted: The classes of faults that are allowed.

    Raises:
        UsageError: It is not one of these.
    """
    if not isinstance(found, wanted):
        names = ", ".join(kind.__name__ for kind in wanted)
        raise UsageError(f"cannot apply {found!r}: wanted a fault, one of {names}")


def to_json(fault: Fault) -> str:
    """A fault as one JSON object; attributes with their default value are left out."""
    values: dict[str, object] = {"fault": type(fault).__name__.lower()}
    for field in fields(fault):
        value: object = getattr(fault, field.name)
        if field.default is MISSING or value != field.default:
            values[field.name] = value
    return msgspec.json.encode(values).decode()


def from_json(text: str | bytes) -> Fault:
    """Read a fault from its text form.

    Args:
        text: What `to_json` returned.

    Raises:
        UsageError: It is not the JSON of a fault.
    """
    try:
        values = msgspec.json.decode(text, type=dict[str, object])
        kind = _KINDS.get(str(values.pop("fault", "")))
        if kind is None:
            raise UsageError(f"not a fault: {text!r}; wanted one of {', '.join(_KINDS)}")
        unknown = values.keys() - {field.name for field in fields(kind)}
        if unknown:
            raise UsageError(f"{kind.__name__.lower()}: unknown {', '.join(sorted(unknown))}")
        return msgspec.convert(values, kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a fault: {text!r}: {error}") from error


def _check_word(name: str, found: object, wanted: tuple[str, ...]) -> None:
    if found not in wanted:
        words = ", ".join(repr(str(word)) for word in wanted)
        raise UsageError(f"{name}={found!r}: wanted one of {words}")


def _check_whole(name: str, found: object) -> None:
    if found is not None and not isinstance(found, int):
        raise UsageError(f"{name}={found!r}: wanted a whole number, or None")


def _check_count(name: str, found: object) -> None:
    if not isinstance(found, int) or found < 0:
        raise UsageError(f"{name}={found!r}: wanted a whole number, 0 or more")


def _check_seconds(name: str, found: object) -> None:
    if not isinstance(found, int | float) or not 0 <= found < float("inf"):
        raise UsageError(f"{name}={found!r}: wanted seconds, 0 or more")
