"""Reads a configuration file in the form of AMPS: the part of it that this broker carries out.

`read_config` maps the elements of the file to `BrokerConfig`. An element that is not in the tables
below, or whose value cannot be carried out, is refused with the file and the line, so that nothing
is ignored. The names of transports and destinations are labels and have no effect.

A document type is refused before anything in it is read: it could define entities that expand to
any size, or that name other files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import quote
from xml.parsers import expat

from haclient.errors import HAClientError, UsageError, printable
from haclient.protocol.options import parse_interval, parse_size
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, TlsFiles
from haclient_fake_server.engine.settings import (
    MESSAGE_TYPES,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
)
from haclient_fake_server.listener import check_reachable

MAX_FILE_BYTES: Final = 2**20
"""A longer file is refused."""

MAX_DEPTH: Final = 16
"""Elements within each other."""

SAMPLE: Final = """\
<AMPSConfig>
  <Name>east</Name>
  <Admin>
    <InetAddr>localhost:8085</InetAddr>
  </Admin>
  <Transports>
    <Transport>
      <Name>any</Name>
      <Type>tcp</Type>
      <InetAddr>localhost:9007</InetAddr>
      <Protocol>amps</Protocol>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>./east</JournalDirectory>
    <JournalArchiveDirectory>./east-archive</JournalArchiveDirectory>
    <JournalSize>64MB</JournalSize>
    <PreallocatedJournalFiles>2</PreallocatedJournalFiles>
    <FlushInterval>100ms</FlushInterval>
    <Topic>
      <Name>.*</Name>
      <MessageType>json</MessageType>
    </Topic>
  </TransactionLog>
  <SOW>
    <Topic>
      <Name>prices</Name>
      <MessageType>json</MessageType>
      <Key>/symbol</Key>
    </Topic>
    <Queue>
      <Name>jobs</Name>
      <MessageType>json</MessageType>
      <LeasePeriod>30s</LeasePeriod>
      <MaxPerSubscriptionBacklog>10</MaxPerSubscriptionBacklog>
    </Queue>
  </SOW>
  <Replication>
    <Destination>
      <Name>west</Name>
      <SyncType>sync</SyncType>
      <Transport>
        <Type>amps-replication</Type>
        <InetAddr>localhost:9008</InetAddr>
      </Transport>
    </Destination>
  </Replication>
  <Actions>
    <Action>
      <On>
        <Module>amps-action-on-schedule</Module>
        <Options>
          <Every>10s</Every>
        </Options>
      </On>
      <Do>
        <Module>amps-action-do-downgrade-replication</Module>
        <Options>
          <Age>30s</Age>
        </Options>
      </Do>
    </Action>
    <Action>
      <On>
        <Module>amps-action-on-schedule</Module>
      </On>
      <Do>
        <Module>amps-action-do-archive-journal</Module>
        <Options>
          <Age>1d</Age>
        </Options>
      </Do>
    </Action>
    <Action>
      <On>
        <Module>amps-action-on-schedule</Module>
      </On>
      <Do>
        <Module>amps-action-do-compress-journal</Module>
        <Options>
          <Age>7d</Age>
        </Options>
      </Do>
    </Action>
    <Action>
      <On>
        <Module>amps-action-on-schedule</Module>
      </On>
      <Do>
        <Module>amps-action-do-remove-journal</Module>
        <Options>
          <Age>30d</Age>
        </Options>
      </Do>
    </Action>
    <Action>
      <On>
        <Module>amps-action-on-sow-expire-message</Module>
        <Options>
          <Topic>jobs</Topic>
          <MessageType>json</MessageType>
        </Options>
      </On>
      <Do>
        <Module>amps-action-do-publish-message</Module>
        <Options>
          <Topic>failed-jobs</Topic>
          <MessageType>json</MessageType>
          <Data>{{AMPS_DATA}}</Data>
        </Options>
      </Do>
    </Action>
  </Actions>
</AMPSConfig>
"""
"""A file with every section that is carried out."""

_Made = TypeVar("_Made")


@dataclass(slots=True)
class _Element:
    """One element of the file, with what it contains."""

    file: Path
    name: str
    line: int
    text: str = ""
    children: list[_Element] = field(default_factory=list["_Element"])

    def refusal(self, what: str) -> UsageError:
        return UsageError(f"{self.file}:{self.line}: <{printable(self.name)[:80]}>: {what}")


_Text: TypeAlias = dict[str, str]
_Fields: TypeAlias = Mapping[str, tuple[str, Callable[[str], object]]]
"""By the name of an element, the attribute that it sets, and how its text is read."""


def read_config(path: Path, *, users: Mapping[str, str] | None = None) -> BrokerConfig:
    """Read a configuration file.

    Args:
        path: The file. Relative directories in it count from the working directory.
        users: Passwords by user, which the file does not have.

    Raises:
        UsageError: It cannot be read, or has something that this broker does not carry out.
    """
    root = _parse(path)
    if root.name != "AMPSConfig":
        raise root.refusal("wanted <AMPSConfig>")
    sections: dict[str, Callable[[_Element], dict[str, object]]] = {
        "Admin": _admin,
        "Transports": _transports,
        "TransactionLog": _transaction_log,
        "SOW": _sow,
        "Replication": _replication,
        "Actions": _actions,
    }
    fields: _Fields = {
        "Name": ("name", str),
        "MessageMemoryLimit": ("max_unsent_bytes", parse_size),
        "MessageDiskLimit": ("max_offline_bytes", parse_size),
    }
    values, found = _contents(root, fields, sections)
    values.setdefault("log_topics", ())  # as there: what is not in a log is not recorded
    for name, read in sections.items():
        for section in found[name][1:]:
            raise section.refusal("given twice")
        for section in found[name]:
            values |= read(section)
    _add_dead_letters(values)
    downgrade_after_s = cast("float | None", values.pop("downgrade_after_s", None))
    to = cast("tuple[ReplicateTo, ...]", values.pop("replicate_to", ()))
    values["replicate_to"] = tuple(
        replace(each, downgrade_after_s=downgrade_after_s if each.mode == "sync" else None)
        for each in to
    )
    try:
        config = BrokerConfig(**cast("dict[str, Any]", values), users=users)
        check_reachable(config.listen)
    except HAClientError as error:  # also a malformed pattern or expression
        raise UsageError(f"{path}: {error}") from error
    return config


# --- XML -----------------------------------------------------------------------------------------


def _parse(path: Path) -> _Element:
    """The root element of a file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: wanted at most {MAX_FILE_BYTES} bytes")
    parser = expat.ParserCreate()
    document = _Element(path, "", 0)
    open_elements = [document]

    def start(name: str, attributes: Mapping[str, str]) -> None:
        element = _Element(path, name, parser.CurrentLineNumber)
        if attributes:
            raise element.refusal("attributes are not supported")
        if len(open_elements) > MAX_DEPTH:
            raise element.refusal(f"more than {MAX_DEPTH} elements within each other")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def add_text(text: str) -> None:
        open_elements[-1].text += text

    def refuse(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise UsageError(f"{path}:{line}: a document type, and so entities, are not supported")

    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise UsageError(f"{path}:{error.lineno}: this is not XML: {reason}") from error
    except (LookupError, TypeError, ValueError) as error:  # of the declared encoding
        raise UsageError(f"{path}: its encoding cannot be read: {error}") from error
    return document.children[0]


def _contents(
    element: _Element, fields: _Fields, groups: Collection[str] = ()
) -> tuple[dict[str, object], dict[str, list[_Element]]]:
    """The values of the simple elements, by attribute, and the other elements, by name."""
    values: dict[str, object] = {}
    found: dict[str, list[_Element]] = {name: [] for name in groups}
    if element.text.strip():
        raise element.refusal("wanted elements, found text")
    for child in element.children:
        if child.name in found:
            found[child.name].append(child)
        elif child.name in fields:
            attribute, read = fields[child.name]
            if attribute in values:
                raise child.refusal("given twice")
            values[attribute] = _value(child, read)
        else:
            known = ", ".join((*fields, *groups))
            what = f"not supported; <{element.name}> may have: {known}"
            raise child.refusal(what)
    return values, found


def _value(element: _Element, read: Callable[[str], object]) -> object:
    text = element.text.strip()
    if element.children or not text:
        raise element.refusal("wanted a text")
    if "${" in text:
        raise element.refusal("variables are not replaced")
    try:
        return read(text)
    except UsageError as error:
        raise element.refusal(str(error)) from error
    except ValueError as error:
        raise element.refusal(f"{text[:80]!r}: wanted a whole number") from error


def _make(element: _Element, make: Callable[..., _Made], values: dict[str, object]) -> _Made:
    if not values.get("name", True) or ("name" not in values and make is not ReplicateTo):
        raise element.refusal("needs a <Name>")
    try:
        return make(**values)
    except HAClientError as error:
        raise element.refusal(str(error)) from error


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text[:80]!r}: wanted {' or '.join(words)}")
        return text

    return read


def _boolean(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _address(text: str) -> str:
    """`HOST:PORT`; a port alone is that of all interfaces."""
    return f"0.0.0.0:{text}" if text.isdecimal() else text  # as the file says


# --- sections ------------------------------------------------------------------------------------


def _admin(element: _Element) -> dict[str, object]:
    return _contents(element, {"InetAddr": ("admin", _address)})[0]


_TRANSPORT: Final[_Fields] = {
    "Name": ("name", str),
    "Type": ("type", _one_of("tcp", "tcps", "unix", "amps-replication")),
    "InetAddr": ("address", _address),
    "FileSystemPath": ("path", str),
    "Protocol": ("protocol", _one_of("amps")),
    "MessageType": ("message_type", str),
    "Certificate": ("cert", Path),
    "PrivateKey": ("key", Path),
    "CACertificate": ("client_ca", Path),
    "AckConflationInterval": ("ack_interval_s", parse_interval),
}


def _transports(element: _Element) -> dict[str, object]:
    _, found = _contents(element, {}, ("Transport",))
    listen: list[str] = []
    types: list[str] = []
    certificates: list[TlsFiles] = []
    intervals: set[float] = set()
    for transport in found["Transport"]:
        values, _ = _contents(transport, _TRANSPORT)
        kind, address, path = values.get("type", "tcp"), values.get("address"), values.get("path")
        if (address is None) == (path is None) or (kind == "unix") != (path is not None):
            raise transport.refusal("wanted an <InetAddr>, or a <FileSystemPath> of type unix")
        scheme = "tcps" if kind == "tcps" else "tcp"
        listen.append(
            f"{scheme}://{address}"
            if path is None
            else f"unix://{quote(str(Path(str(path)).absolute()))}"
        )
        if "message_type" in values and values["message_type"] not in MESSAGE_TYPES:
            types.append(str(values["message_type"]))
        if "ack_interval_s" in values:
            intervals.add(cast("float", values["ack_interval_s"]))
            if kind != "amps-replication" or len(intervals) > 1:
                wanted = "is for type amps-replication, and the same for all of them"
                raise transport.refusal(f"an <AckConflationInterval> {wanted}")
        files = {name: values[name] for name in ("cert", "key", "client_ca") if name in values}
        if ("cert" in files) != (kind == "tcps") or (files and "cert" not in files):
            raise transport.refusal("a <Certificate> is for type tcps, which needs one")
        if files:
            certificates.append(TlsFiles(**cast("dict[str, Any]", files)))
            if certificates[0] != certificates[-1]:
                raise transport.refusal("wanted the same certificate for all transports")
    if not listen:
        raise element.refusal("wanted a <Transport>")
    return {
        "listen": tuple(listen),
        "message_types": tuple(dict.fromkeys(types)),
        "tls": certificates[0] if certificates else None,
        "replication_ack_interval_s": max(intervals, default=0.0),
    }


def _transaction_log(element: _Element) -> dict[str, object]:
    fields: _Fields = {
        "JournalDirectory": ("data_dir", Path),
        "JournalArchiveDirectory": ("archive_dir", Path),
        "JournalSize": ("segment_bytes", parse_size),
        "PreallocatedJournalFiles": ("preallocated_files", int),
        "FlushInterval": ("flush_interval_s", parse_interval),
    }
    values, found = _contents(element, fields, ("Topic",))
    if "data_dir" not in values:
        raise element.refusal("needs a <JournalDirectory>")
    if "flush_interval_s" in values:
        values["fsync"] = FsyncPolicy.INTERVAL
    fields = {**_TOPIC, "Filter": ("filter", str)}
    topics = [(each, *_contents(each, fields)) for each in found["Topic"]]
    values["log_topics"] = tuple(_make(each, _log_topic, topic) for each, topic, _ in topics)
    return values


def _log_topic(name: str, **more: str) -> LogTopic:
    return LogTopic(name, **more)


_TOPIC: Final[_Fields] = {"Name": ("name", str), "MessageType": ("message_type", str)}

_QUEUE: Final[_Fields] = {
    **_TOPIC,
    "DefaultPublishTarget": ("default_publish_target", str),
    "Semantics": ("semantics", _one_of("at-least-once", "at-most-once")),
    "LeasePeriod": ("lease_s", parse_interval),
    "Leasing": ("leasing", _one_of("sublet", "strict")),
    "MaxBacklog": ("max_backlog", int),
    "MaxPerSubscriptionBacklog": ("max_per_subscription_backlog", int),
    "FairnessModel": ("delivery", _one_of("fast", "round-robin", "proportional")),
    "MaxDeliveries": ("max_deliveries", int),
    "MaxCancels": ("max_cancels", int),
    "Expiration": ("expiration_s", parse_interval),
    "Priority": ("priority", str),
    "BarrierExpression": ("barrier", str),
    "RecoveryPoint": ("recovery_point", str),
    "FileBackedMetadata": ("file_backed", _boolean),
}


def _lifetime(text: str) -> float | None:
    """How long a record lives: by its publisher alone if that is just enabled."""
    words = {"disabled": None, "enabled": 0.0}
    return words[text] if text in words else parse_interval(text)


def _sow(element: _Element) -> dict[str, object]:
    _, found = _contents(element, {}, ("Topic", "Queue"))
    topics: list[SowTopic] = []
    for each in found["Topic"]:
        fields = {**_TOPIC, "Expiration": ("expiration_s", _lifetime)}
        values, more = _contents(each, fields, ("Key",))
        values["keys"] = tuple(str(_value(key, str)) for key in more["Key"])
        topics.append(_make(each, SowTopic, values))
    queues: list[QueueTopic] = []
    for each in found["Queue"]:
        values, more = _contents(each, _QUEUE, ("UnderlyingTopic",))
        values["topics"] = tuple(str(_value(topic, str)) for topic in more["UnderlyingTopic"])
        queues.append(_make(each, QueueTopic, values))
    return {"sow_topics": tuple(topics), "queues": tuple(queues)}


def _replication(element: _Element) -> dict[str, object]:
    _, found = _contents(element, {}, ("Destination",))
    return {"replicate_to": tuple(map(_destination, found["Destination"]))}


def _destination(element: _Element) -> ReplicateTo:
    fields: _Fields = {"Name": ("name", str), "SyncType": ("mode", _one_of("sync", "async"))}
    values, found = _contents(element, fields, ("Transport", "Topic"))
    for topic in found["Topic"]:
        if _contents(topic, _TOPIC)[0].get("name") != ".*":
            raise topic.refusal("everything that is logged is replicated: wanted <Name>.*</Name>")
    if len(found["Transport"]) != 1:
        raise element.refusal("wanted one <Transport>")
    fields = {
        "Name": ("name", str),
        "Type": ("type", _one_of("amps-replication")),
        "InetAddr": ("address", _address),
    }
    transport, _ = _contents(found["Transport"][0], fields)
    if "address" not in transport:
        raise found["Transport"][0].refusal("needs an <InetAddr>")
    uri, mode = f"tcp://{transport['address']}", values.get("mode", "sync")
    return _make(element, ReplicateTo, {"uri": uri, "mode": mode})


_ACTIONS: Final = {
    "amps-action-do-downgrade-replication": "downgrade_after_s",
    "amps-action-do-archive-journal": "archive_after_s",
    "amps-action-do-compress-journal": "compress_after_s",
    "amps-action-do-remove-journal": "remove_after_s",
}
"""What is done at an age, and the attribute that has it."""


_SCHEDULE: Final = "amps-action-on-schedule"
_EXPIRE: Final = "amps-action-on-sow-expire-message"
_PUBLISHED: Final = "{{AMPS_DATA}}"
"""What is published when a message of a queue expires: the message."""
_OF_AGE: Final[_Fields] = {"Age": ("age", parse_interval)}
_OF_TOPIC: Final[_Fields] = {"Topic": ("name", str), "MessageType": ("message_type", str)}
_TRIGGERS: Final[dict[str, _Fields]] = {
    _SCHEDULE: {"Every": ("every", parse_interval)},
    _EXPIRE: _OF_TOPIC,
}


def _actions(element: _Element) -> dict[str, object]:
    """What is done on a schedule, each with an age, and when messages of queues expire."""
    _, found = _contents(element, {}, ("Action",))
    values: dict[str, object] = {}
    expiring: list[tuple[_Element, dict[str, object], dict[str, object]]] = []
    for action in found["Action"]:
        _, parts = _contents(action, {}, ("On", "Do"))
        if [len(each) for each in parts.values()] != [1, 1]:
            raise action.refusal("wanted one <On> and one <Do>")
        ((on,), (do,)) = parts.values()
        trigger, queue = _module(on, _TRIGGERS)
        if trigger == _EXPIRE:
            fields = {**_OF_TOPIC, "Data": ("data", _one_of(_PUBLISHED))}
            _, published = _module(do, {"amps-action-do-publish-message": fields})
            expiring.append((action, queue, published))
            continue
        module, options = _module(do, dict.fromkeys(_ACTIONS, _OF_AGE))
        if "age" not in options or _ACTIONS[module] in values:
            raise action.refusal("wanted each action once, with an <Age>")
        values[_ACTIONS[module]] = options["age"]
    return {**values, "expiring": expiring}


def _add_dead_letters(values: dict[str, object]) -> None:
    """Give queues the topics to which actions publish their expired messages."""
    queues = list(cast("tuple[QueueTopic, ...]", values.get("queues", ())))
    known = {(each.name, each.message_type): number for number, each in enumerate(queues)}
    expiring = values.pop("expiring", ())
    for action, queue, published in cast("tuple[tuple[_Element, _Text, _Text], ...]", expiring):
        message_type = queue.get("message_type", "json")
        number = known.pop((queue.get("name", ""), message_type), None)
        if number is None:
            raise action.refusal("wanted the <Topic> and the <MessageType> of a queue, once")
        if not {"name", "data"} <= published.keys():
            raise action.refusal(f"wanted a <Topic>, and the <Data> {_PUBLISHED}")
        if published.get("message_type", "json") != message_type:
            raise action.refusal("wanted the <MessageType> of the queue")
        try:
            queues[number] = replace(queues[number], dead_letter=published.get("name", ""))
        except UsageError as error:
            raise action.refusal(str(error)) from error
    values["queues"] = tuple(queues)


def _module(element: _Element, modules: Mapping[str, _Fields]) -> tuple[str, dict[str, object]]:
    """The name of a module, one of these, and its options."""
    fields: _Fields = {"Module": ("module", _one_of(*modules))}
    values, found = _contents(element, fields, ("Options",))
    if not values:
        raise element.refusal("needs a <Module>")
    module = str(values["module"])
    options: dict[str, object] = {}
    for each in found["Options"]:
        options |= _contents(each, modules[module])[0]
    return module, options
