"""The configuration of a broker: the settings of the engine, its files and its connections."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from haclient.errors import UsageError
from haclient.protocol.framing import MAX_PUBLISH_BYTES
from haclient_fake_server.admin import is_of_this_machine, parse_admin
from haclient_fake_server.engine.patterns import PatternError, compile_search, topic_problem
from haclient_fake_server.engine.settings import (
    MAX_MESSAGE_TYPE,
    EngineSettings,
    Entitlement,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
    check_queues,
)
from haclient_fake_server.journal.parquet import COMPRESSIONS, check_pyarrow

__all__ = [
    "BrokerConfig",
    "Entitlement",
    "FsyncPolicy",
    "LogTopic",
    "QueueTopic",
    "ReplicateTo",
    "SowTopic",
    "TlsFiles",
    "entitlement_argument",
    "parse_entitlement",
    "parse_log_topic",
    "parse_queue",
    "parse_replicate_to",
    "parse_sow_topic",
    "queue_argument",
    "read_users",
    "sow_argument",
]


_LISTS: Final[dict[str, type]] = {
    "listen": str,
    "log_topics": LogTopic,
    "sow_topics": SowTopic,
    "replicate_to": ReplicateTo,
    "queues": QueueTopic,
    "message_types": str,
    "entitlements": Entitlement,
}
_BYTES: Final = {
    "segment_bytes": 1024,
    "high_water_bytes": 1,
    "low_water_bytes": 1,
    "slow_client_bytes": 1,
    "offline_bytes": 1,
    "max_offline_bytes": 1,
    "query_step_bytes": 1,
    "max_unsent_bytes": 16,
    "max_frame_bytes": 1,
}
_SECONDS: Final = (
    "ack_interval_s",
    "replication_ack_interval_s",
    "flush_interval_s",
    "dial_timeout_s",
    "redial_s",
    "redial_max_s",
)


NEVER_S: Final = float("inf")
"""The age of segments for an action that is not taken."""


class FsyncPolicy(enum.StrEnum):
    """When the journal is synced to the disk itself, beyond the operating system's page cache."""

    NONE = "none"
    """Never: what was acknowledged survives a killed process, not a loss of power."""
    INTERVAL = "interval"
    """Every `flush_interval_s` seconds, in a thread; acks do not wait for it."""
    BATCH = "batch"
    """After each batch, before its acks: a loss of power takes nothing that was acknowledged. It
    costs an fsync for each batch, about 4 ms on an ordinary disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files for `tcps` addresses, in PEM; they are read when the broker starts.

    Attributes:
        cert: The certificate of the broker, and those between it and its authority.
        key: Its key; `None` if that is in `cert`, too.
        client_ca: The authorities whose clients may connect; `None` asks for no certificate.
    """

    cert: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker instance. Times are seconds, sizes bytes.

    Attributes:
        name: The instance name; part of the ids of messages published without a sequence.
        listen: Addresses to listen on, `tcp://HOST:PORT`, `tcps://HOST:PORT` or `unix:///PATH`;
            port 0 takes a free one.
        tls: The certificate for `tcps` addresses.
        data_dir: Directory of the journal; `None` keeps it in memory, until the broker ends.
        users: Passwords by user; `None` turns authentication off.
        entitlements: What users may do with which topics; with none, each may do everything.
        log_topics: The topics that the journal records; none when empty.
        sow_topics: Topics with a state of the world.
        ack_interval_s: How long persisted acks are collected, unless a logon asks for another time.
            The bookmark subscriptions of one interval are sent about 4000 a second at most: each of
            20 000 gets one every 5 seconds.
        replication_ack_interval_s: How long the acks to other instances, whose destination this one
            is, are collected; persisted acks of their publishers wait for so long, too.
        flush_interval_s: Time between two syncs of policy `interval`.
        fsync: When the journal is synced to the disk.
        parquet: Whether each segment that is sealed is also written to `data_dir/parquet`, by a
            process of its own; needs pyarrow. See `haclient_fake_server.journal.parquet`.
        parquet_compression: Of these files: `zstd` or `none`.
        segment_bytes: Size of a journal file; a block that is larger makes its file larger.
        preallocated_files: How many journal files are allocated, the one that is written included.
            The next ones are allocated once the first one is full.
        archive_dir: Where archived segments of the journal are, from which they are replayed, too.
        archive_after_s: The age at which segments are moved to `archive_dir`; infinity for never.
            The age of a segment is that of its last record.
        compress_after_s: The age at which they are compressed; infinity for never.
        remove_after_s: The age at which they are removed, unless somebody needs them; infinity for
            never.
        high_water_bytes: Unsent bytes of a connection above which its bookmark subscriptions read
            the log instead of receiving live messages.
        low_water_bytes: Unsent bytes below which replay continues.
        offline_bytes: Unsent bytes of a connection above which they wait in a file in `data_dir`,
            if that is given, until all of them were sent.
        slow_client_bytes: Unsent bytes, also in that file, above which a connection is cut as a
            slow client.
        query_step_bytes: How much a query or delete of records looks at before others are served,
            in bytes of records.
        conflation_time: In what the intervals of `conflation` are measured while a subscription is
            replayed: the time of the `replay`, or that of the `messages`.
        max_unsent_bytes: Unsent bytes of all connections together, in memory, above which those of
            the one with the most go to a file, or it is cut as a slow client. Messages
            that wait behind the answers of queries have the same limit, above which the connection
            with the most is cut.
        max_offline_bytes: Unsent bytes of all connections together, in files, above which the one
            with the most is cut as a slow client.
        max_frame_bytes: A larger frame closes its connection, and a delta publish that would make a
            larger record is refused. The default leaves room for the headers that a delivery adds
            to those of the publish.
        version: Server version in the logon ack.
        replicate_to: Replication destinations, which receive everything that is logged. Each
            instance needs a name of its own.
        dial_timeout_s: How long connecting to a destination may take.
        redial_s: Wait after the first failure to connect; each further failure doubles it.
        redial_max_s: The longest such wait.
        queues: The message queues.
        message_types: Message types that clients may log on with, besides those of AMPS
            (`json`, `fix`, `nvfix`, `xml`, `msgpack`, `bson`, `bflat`, `struct`, `binary`,
            `protobuf`, `composite-*`) and those of the topics above.
        admin: Where the admin interface listens, `HOST:PORT`; empty for none. Port 0 takes a free
            one. Where others than this machine reach it, it asks for the password of one of the
            `users`, which are needed then.

    Raises:
        UsageError: A value is of the wrong kind, or out of range.
    """

    name: str = "broker"
    listen: tuple[str, ...] = ("tcp://127.0.0.1:0",)
    data_dir: Path | None = None
    users: Mapping[str, str] | None = None
    entitlements: tuple[Entitlement, ...] = ()
    log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),)
    sow_topics: tuple[SowTopic, ...] = ()
    ack_interval_s: float = 1.0
    replication_ack_interval_s: float = 0.0
    flush_interval_s: float = 0.1
    fsync: FsyncPolicy = FsyncPolicy.NONE
    parquet: bool = False
    parquet_compression: str = "zstd"
    segment_bytes: int = 64 * 2**20
    preallocated_files: int = 2
    archive_dir: Path | None = None
    archive_after_s: float = NEVER_S
    compress_after_s: float = NEVER_S
    remove_after_s: float = NEVER_S
    high_water_bytes: int = 2 * 2**20
    low_water_bytes: int = 512 * 1024
    offline_bytes: int = 16 * 2**20
    slow_client_bytes: int = 256 * 2**20
    query_step_bytes: int = 512 * 1024
    conflation_time: Literal["replay", "messages"] = "replay"
    max_unsent_bytes: int = 2**30
    max_offline_bytes: int = 4 * 2**30
    max_frame_bytes: int = MAX_PUBLISH_BYTES
    version: str = "5.3.5.0.reference"
    replicate_to: tuple[ReplicateTo, ...] = ()
    dial_timeout_s: float = 5.0
    redial_s: float = 0.05
    redial_max_s: float = 2.0
    queues: tuple[QueueTopic, ...] = ()
    message_types: tuple[str, ...] = ()
    admin: str = ""
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        """Check the values, before anything is opened.

        Raises:
            UsageError: A value is of the wrong kind, or out of range.
        """
        checks: tuple[Callable[[BrokerConfig], str], ...] = (
            *(partial(_check_list, name, kind) for name, kind in _LISTS.items()),
            *(partial(_check_bytes, name, lowest) for name, lowest in _BYTES.items()),
            *(partial(_check_seconds, name) for name in _SECONDS),
            _check_preallocated,
            _check_names,
            _check_maintenance,
            _check_users,
            _check_parquet,
            _check_queues,
            _check_message_types,
            _check_admin,
            _check_tls,
        )
        for check in checks:
            wrong = check(self)
            if wrong:
                raise UsageError(f"broker {self.name!r}: {wrong}")
        # A plain "batch" is no member of the enum, so `is` would never find it.
        object.__setattr__(self, "fsync", FsyncPolicy(self.fsync))
        self.engine_settings()  # for its checks: a mistake comes before an address is taken

    def engine_settings(self) -> EngineSettings:
        """The part of the configuration that the engine needs."""
        return EngineSettings(
            name=self.name,
            users=self.users,
            entitlements=self.entitlements,
            log_topics=self.log_topics,
            sow_topics=self.sow_topics,
            conflation_time=self.conflation_time,
            ack_interval_s=self.ack_interval_s,
            replication_ack_interval_s=self.replication_ack_interval_s,
            version=self.version,
            replicate_to=self.replicate_to,
            queues=self.queues,
            max_message_bytes=self.max_frame_bytes,
            message_types=self.message_types,
            query_step_bytes=self.query_step_bytes,
            max_held_bytes=self.slow_client_bytes,
            max_held_together_bytes=self.max_unsent_bytes,
        )


def _check_list(name: str, kind: type, config: object) -> str:
    found: object = getattr(config, name)
    if isinstance(found, tuple):
        wrong = [item for item in cast("tuple[object, ...]", found) if not isinstance(item, kind)]
        if not wrong:
            return ""
        found = wrong[0]  # its type only: an address may have a password in it
    return f"{name} has a {type(found).__name__}: wanted a tuple of {kind.__name__}"


def _check_bytes(name: str, lowest: int, config: object) -> str:
    found: object = getattr(config, name)
    if isinstance(found, int) and found >= lowest:
        return ""
    return f"{name}={found!r}: wanted {lowest} bytes or more"


def _check_preallocated(config: BrokerConfig) -> str:
    found = cast("object", config.preallocated_files)
    if isinstance(found, int) and found >= 1:
        return ""
    return f"preallocated_files={found!r}: wanted 1 or more, the one that is written included"


def _check_seconds(name: str, config: object) -> str:
    found: object = getattr(config, name)
    lowest = "0" if name.endswith("ack_interval_s") else "more than 0"
    if isinstance(found, int | float) and 0 <= found < float("inf") and (found or lowest == "0"):
        return ""
    return f"{name}={found!r}: wanted {lowest} seconds" + (" or more" if lowest == "0" else "")


def _check_names(config: BrokerConfig) -> str:
    name, data_dir, fsync = cast("tuple[object, ...]", (config.name, config.data_dir, config.fsync))
    if not isinstance(name, str) or not name:
        return "wanted a name that is not empty"
    if not isinstance(data_dir, Path | None):
        return f"data_dir={data_dir!r}: wanted a pathlib.Path, or None"
    if fsync not in [*FsyncPolicy]:
        return f"fsync={fsync!r}: wanted one of {', '.join(FsyncPolicy)}"
    topics = [(topic.message_type, topic.name) for topic in config.sow_topics]
    if not all(name for _, name in topics) or len({*topics}) < len(topics):
        return f"sow_topics {[name for _, name in topics]}: wanted names, each once"
    return ""


def _check_maintenance(config: BrokerConfig) -> str:
    archive = cast("object", config.archive_dir)
    if not isinstance(archive, Path | None):
        return f"archive_dir={archive!r}: wanted a pathlib.Path, or None"
    for name in ("archive_after_s", "compress_after_s", "remove_after_s"):
        found: object = getattr(config, name)
        if not isinstance(found, int | float) or not found > 0:
            return f"{name}={found!r}: wanted more than 0 seconds"
        if found < NEVER_S and config.data_dir is None:
            return f"{name}={found!r}: wanted a data_dir, found no journal on disk"
    if archive is None:
        if config.archive_after_s < NEVER_S:
            return "archive_after_s: wanted an archive_dir"
    elif config.data_dir is None or archive == config.data_dir:
        return f"archive_dir={archive}: wanted a data_dir, and another directory"
    return ""


def _check_users(config: BrokerConfig) -> str:
    users = cast("object", config.users)
    if users is None:
        return ""
    if isinstance(users, Mapping):
        pairs = cast("Mapping[object, object]", users).items()
        if all(isinstance(each, str) for pair in pairs for each in pair):
            return ""
    return "users: wanted a mapping from user to password, both str, or None"


def _check_parquet(config: BrokerConfig) -> str:
    found = cast("object", config.parquet)
    if not isinstance(found, bool):
        return f"parquet={found!r}: wanted True or False"
    if config.parquet_compression not in COMPRESSIONS:
        return f"parquet_compression={config.parquet_compression!r}: wanted zstd or none"
    if not found:
        return ""
    if config.data_dir is None or not config.log_topics:
        return "parquet=True: wanted a data_dir and topics to log, found no journal on disk"
    try:
        check_pyarrow()
    except UsageError as error:
        return str(error)
    return ""


def _check_queues(config: BrokerConfig) -> str:
    try:
        check_queues(config.queues, config.sow_topics, config.log_topics)
    except UsageError as error:
        return str(error)
    return ""


def _check_message_types(config: BrokerConfig) -> str:
    for name in config.message_types:
        # A URI names it as the last part of its path.
        if not name or len(name) > MAX_MESSAGE_TYPE or "/" in name or topic_problem(name):
            return (
                f"message type {name[:40]!r}: wanted 1 to {MAX_MESSAGE_TYPE} characters, no slash "
                "and no control character"
            )
    return ""


def _check_admin(config: BrokerConfig) -> str:
    found = cast("object", config.admin)
    if not isinstance(found, str):
        return f"admin={found!r}: wanted HOST:PORT, or nothing"
    try:
        host = parse_admin(found)[0] if found else "localhost"
    except UsageError as error:
        return str(error)
    if not is_of_this_machine(host) and config.users is None:
        return (
            f"admin={found!r}: others reach it: wanted an address of this machine alone, such as "
            "127.0.0.1:8085, or users (--user-file), whose passwords it asks for"
        )
    return ""


def _check_tls(config: BrokerConfig) -> str:
    return _wrong_tls(config.listen, has_certificate=config.tls is not None)


def _wrong_tls(listen: Sequence[str], *, has_certificate: bool) -> str:
    wants = [uri for uri in listen if uri.startswith("tcps:")]
    if wants and not has_certificate:
        return f"to listen on {wants[0]} a certificate is needed (tls_cert)"
    if has_certificate and not wants:
        return "there is a certificate, and no address that uses it: listen on tcps://HOST:PORT"
    return ""


def tls_files(
    listen: Sequence[str], cert: Path | None, key: Path | None, client_ca: Path | None
) -> TlsFiles | None:
    """The files that a command was given, if any.

    Args:
        listen: The addresses that they are for.
        cert: See `TlsFiles`.
        key: The same.
        client_ca: The same.

    Raises:
        UsageError: There is a certificate and no address that uses it, or the other way round.
    """
    if cert is None and (key is not None or client_ca is not None):
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert")
    if wrong := _wrong_tls(listen, has_certificate=cert is not None):
        raise UsageError(wrong)
    return None if cert is None else TlsFiles(cert=cert, key=key, client_ca=client_ca)


def parse_entitlement(text: str) -> Entitlement:
    """`USER:ACCESS:TOPIC[:FILTER]`, as on a command line.

    Raises:
        UsageError: It is not of that form.
    """
    user, _, rest = text.partition(":")
    access, _, rest = rest.partition(":")
    topic, _, content = rest.partition(":")
    try:
        return Entitlement(user, access, topic, content)
    except UsageError as error:
        wanted = "USER:read|publish|all|replicate:TOPIC[:FILTER], such as ann:read:orders"
        raise UsageError(f"--entitle {text}: wanted {wanted}: {error}") from error


def entitlement_argument(entitlement: Entitlement) -> str:
    """The inverse of `parse_entitlement`."""
    content = f":{entitlement.filter}" if entitlement.filter else ""
    return f"{entitlement.user}:{entitlement.access}:{entitlement.topic}{content}"


def parse_log_topic(text: str) -> LogTopic:
    """A topic or pattern, as on a command line.

    Raises:
        UsageError: It is not a regular expression, or one that RE2 cannot carry out.
    """
    try:
        compile_search(text)
    except PatternError as error:
        raise UsageError(f"--log-topic {text}: {error}") from error
    return LogTopic(text)


def parse_sow_topic(text: str, *, allow_user_keys: bool = False) -> SowTopic:
    """A topic with a state of the world, as on a command line.

    `TOPIC:/key[,/key][,history][,pattern][,file_backed][,expiration=SECONDS]`.

    Args:
        text: The argument.
        allow_user_keys: Whether `TOPIC:`, a topic whose publishers name the keys, is accepted.

    Raises:
        UsageError: It is not of that form.
    """
    topic, _, keys = text.rpartition(":")
    parts = tuple(part.strip() for part in keys.split(",") if keys)
    paths = tuple(part for part in parts if part.startswith("/"))
    options = {  # by their names; one that takes no value and has one is unknown
        "expiration" if part.startswith("expiration=") else part: part
        for part in parts
        if not part.startswith("/")
    }
    history = options.pop("history", None) == "history"
    is_pattern = options.pop("pattern", None) == "pattern"
    file_backed = options.pop("file_backed", None) == "file_backed"
    lifetime = options.pop("expiration", None)
    has_keys = paths or allow_user_keys
    if not topic or not has_keys or options or not all(len(path) > 1 for path in paths):
        raise UsageError(
            f"--sow {text}: expected TOPIC:/key[,/key][,history][,pattern]"
            "[,file_backed][,expiration=SECONDS], such as orders:/id"
        )
    try:
        expiration_s = None if lifetime is None else float(lifetime.partition("=")[2])
    except ValueError as error:
        raise UsageError(f"--sow {text}: {lifetime}: wanted expiration=SECONDS") from error
    return SowTopic(
        topic,
        keys=paths,
        history=history,
        expiration_s=expiration_s,
        is_pattern=is_pattern,
        file_backed=file_backed,
    )


def read_users(path: Path) -> dict[str, str]:
    """The users and passwords of a file with lines `user:password`; `#` starts a comment line.

    Raises:
        UsageError: A line has no colon, no user, or names a user again. It names the line, never
            what it contains.
    """
    users: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--user-file {path}: it is not a text file in UTF-8") from error
    except OSError as error:
        raise UsageError(f"--user-file {path}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not colon or not user:
            raise UsageError(f"{path}: line {number} is not of the form user:password")
        if user in users:
            raise UsageError(f"{path}: line {number} names a user for the second time")
        users[user] = password
    return users


_SECONDS_TEXT: Final = re.compile(r"\d{1,9}(\.\d{1,6})?")


def parse_replicate_to(text: str) -> ReplicateTo:
    """`URI[,sync|async][,downgrade=SECONDS]`, as on a command line; by default it is synchronous.

    Raises:
        UsageError: It is not of that form.
    """
    uri, *options = text.split(",")
    mode: Literal["sync", "async"] = "sync"
    downgrade_after_s: float | None = None
    for option in options:
        name, _, value = option.partition("=")
        if option in {"sync", "async"}:
            mode = "async" if option == "async" else "sync"
        elif name == "downgrade" and _SECONDS_TEXT.fullmatch(value):
            downgrade_after_s = float(value)
        else:
            raise UsageError(
                f"--replicate-to: {option!r} after the address is not sync, async or "
                "downgrade=SECONDS"
            )
    return ReplicateTo(uri, mode, downgrade_after_s)


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(text)
    return text == "true"


_QUEUE_OPTIONS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "max_backlog": ("max_per_subscription_backlog", int),
    "queue_backlog": ("max_backlog", int),
    "lease": ("lease_s", float),
    "semantics": ("semantics", str),
    "delivery": ("delivery", str),
    "leasing": ("leasing", str),
    "max_deliveries": ("max_deliveries", int),
    "max_cancels": ("max_cancels", int),
    "expiration": ("expiration_s", float),
    "priority": ("priority", str),
    "barrier": ("barrier", str),
    "dead_letter": ("dead_letter", str),
    "recovery_point": ("recovery_point", str),
    "file_backed": ("file_backed", _boolean),
}
"""The options of `--queue`: the attribute of `QueueTopic` that each sets, and its type."""

_WANTED: Final[dict[object, str]] = {
    int: "a whole number",
    float: "a number",
    _boolean: "true or false",
}


def parse_queue(text: str) -> QueueTopic:
    """`NAME[:TOPIC][,option=value]...`, as on a command line.

    Raises:
        UsageError: It is not of that form, or a value is wrong.
    """
    names, *parts = text.split(",")
    name, colon, topic = names.partition(":")
    if "=" in name:  # no comma before the first option, or no name
        raise UsageError(
            f"--queue {text}: wanted NAME[:TOPIC] first, found {names!r}: a comma precedes each "
            "option"
        )
    if colon and not topic:
        raise UsageError(f"--queue {text}: wanted a topic after the colon, found none")
    values = _queue_options(text, parts)
    if topic:
        values["topics"] = (topic,)
    try:
        return QueueTopic(name=name, **cast("dict[str, Any]", values))
    except UsageError as error:
        message = str(error)
        for option, (attribute, _) in _QUEUE_OPTIONS.items():
            # The user has typed the option and has never heard of the attribute.
            if message.startswith(f"queue {name!r}: {attribute}="):
                message = message.replace(f": {attribute}=", f": {option}=", 1)
                break
        raise UsageError(f"--queue {text}: {message}") from error


def queue_argument(queue: QueueTopic) -> str:
    """A queue as an argument of the command line, for `parse_queue`.

    Args:
        queue: The queue. Attributes that have no option are lost.
    """
    name = f"{queue.name}:{queue.topics[0]}" if queue.topics else queue.name
    plain = QueueTopic(name=queue.name)
    options = {
        option: getattr(queue, attribute)
        for option, (attribute, _) in _QUEUE_OPTIONS.items()
        if getattr(queue, attribute) != getattr(plain, attribute)
    }
    words = (
        f"{option}={str(value).lower() if isinstance(value, bool) else value}"
        for option, value in options.items()
    )
    return ",".join((name, *words))


def sow_argument(topic: SowTopic) -> str:
    """A topic with a state of the world as an argument of the command line.

    Args:
        topic: The topic; its message type is left out.
    """
    flags = {
        "history": topic.history,
        "pattern": topic.is_pattern,
        "file_backed": topic.file_backed,
    }
    parts = [*topic.keys, *(name for name, is_set in flags.items() if is_set)]
    if topic.expiration_s is not None:
        parts.append(f"expiration={topic.expiration_s!r}")
    return f"{topic.name}:{','.join(parts)}"


def _queue_options(text: str, parts: Sequence[str]) -> dict[str, object]:
    """The attributes of `QueueTopic` that the options of `--queue` set.

    Args:
        text: The whole argument, for errors.
        parts: `option=value`, for each option.

    Raises:
        UsageError: An option is unknown, given twice, or has no value.
    """
    values: dict[str, object] = {}
    for part in parts:
        option, has_value, value = part.partition("=")
        if option not in _QUEUE_OPTIONS:
            known = ", ".join(_QUEUE_OPTIONS)
            raise UsageError(f"--queue {text}: unknown option {option!r}; the options: {known}")
        attribute, kind = _QUEUE_OPTIONS[option]
        if kind is _boolean and not has_value:
            value = "true"
        if not value:
            raise UsageError(f"--queue {text}: {option}: wanted {option}=VALUE")
        if attribute in values:
            raise UsageError(f"--queue {text}: {option} is given twice")
        try:
            values[attribute] = kind(value)
        except ValueError as error:
            wanted = _WANTED[kind]
            raise UsageError(f"--queue {text}: {option}={value}: wanted {wanted}") from error
    return values
