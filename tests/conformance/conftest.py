"""The server whose wire is examined: the bundled broker, or the one that `AMPS_TEST_URI` names.

`AMPS_TEST_URI=tcp://[user:password@]host:port/amps/json pytest tests/conformance` examines another
server. What it has to have, all of message type `json`; a variable gives another name:

| variable | default | |
|---|---|---|
| `AMPS_TEST_LOGGED` | `conformance-log` | the beginning of topics in the transaction log |
| `AMPS_TEST_UNLOGGED` | `conformance-plain` | the same for topics that are in no log |
| `AMPS_TEST_SOW` | `conformance-sow` | a logged topic with a state of the world of key `/id` |
| `AMPS_TEST_HISTORY` | `conformance-history` | the same, with history |
| `AMPS_TEST_USER_KEYS` | `conformance-keyed` | one whose publishers give the keys |
| `AMPS_TEST_QUEUE` | `conformance-queue` | a queue: leases of 60 s, 10 messages a subscription |
| `AMPS_TEST_LEASE_QUEUE` | `conformance-lease` | the same with leases of 1 s |
| `AMPS_TEST_ONCE_QUEUE` | `conformance-once` | a queue of semantics at-most-once |
| `AMPS_TEST_EXPIRING` | `conformance-expiring` | as `AMPS_TEST_SOW`; its records live for an hour |
| `AMPS_TEST_TLS_URI` | | `tcps://` of the same server |
| `AMPS_TEST_USER_URI` | | `tcp://user:password@` of a user who may do everything |
| `AMPS_TEST_READER_URI` | | there, of one who may read `AMPS_TEST_OPEN` and no more |
| `AMPS_TEST_OPEN` | `conformance-open` | the beginning of logged topics |
| `AMPS_TEST_OPEN_QUEUE` | `conformance-open-queue` | one of them: a queue there |

The topics of the state of the world are configured in the order of this table.
What another server has not is a skip. The topics of a state of the world and the queues may hold
what other tests have left there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from conformance.wire import Json, Wire, unique
from haclient_fake_server.testing.processes import BrokerProcess
from support.certificates import make_certificates

NAMES: Final = {
    "AMPS_TEST_LOGGED": "conformance-log",
    "AMPS_TEST_UNLOGGED": "conformance-plain",
    "AMPS_TEST_SOW": "conformance-sow",
    "AMPS_TEST_HISTORY": "conformance-history",
    "AMPS_TEST_USER_KEYS": "conformance-keyed",
    "AMPS_TEST_QUEUE": "conformance-queue",
    "AMPS_TEST_LEASE_QUEUE": "conformance-lease",
    "AMPS_TEST_ONCE_QUEUE": "conformance-once",
    "AMPS_TEST_EXPIRING": "conformance-expiring",
    "AMPS_TEST_OPEN": "conformance-open",
    "AMPS_TEST_OPEN_QUEUE": "conformance-open-queue",
}
EXTERNAL: Final = os.environ.get("AMPS_TEST_URI", "")


def name_of(variable: str) -> str:
    return os.environ.get(variable, NAMES[variable])


@pytest.fixture(scope="session")
def uri() -> Iterator[str]:
    """The address of the server."""
    if EXTERNAL:
        yield EXTERNAL
        return
    options = (
        *("--log-topic", f"^{name_of('AMPS_TEST_LOGGED')}"),
        *("--log-topic", "^conformance-(sow|history|keyed|queue|lease|once|expiring)"),
        *("--sow", f"{name_of('AMPS_TEST_SOW')}:/id"),
        *("--sow", f"{name_of('AMPS_TEST_HISTORY')}:/id,history"),
        *("--sow", f"{name_of('AMPS_TEST_USER_KEYS')}:"),
        *("--sow", f"{name_of('AMPS_TEST_EXPIRING')}:/id,expiration=3600"),
        *("--queue", f"{name_of('AMPS_TEST_QUEUE')},max_backlog=10,lease=60"),
        *("--queue", f"{name_of('AMPS_TEST_LEASE_QUEUE')},max_backlog=10,lease=1"),
        *("--queue", f"{name_of('AMPS_TEST_ONCE_QUEUE')},max_backlog=10,semantics=at-most-once"),
    )
    # In memory: what is on the wire does not depend on the disk.
    with BrokerProcess(*options) as broker:
        yield broker.uri


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses with TLS (`tls`), and those of users: of everything (`user`), or a `reader`."""
    if EXTERNAL:
        yield {
            "tls": os.environ.get("AMPS_TEST_TLS_URI", ""),
            "user": os.environ.get("AMPS_TEST_USER_URI", ""),
            "reader": os.environ.get("AMPS_TEST_READER_URI", ""),
        }
        return
    directory = tmp_path_factory.mktemp("conformance")
    users = directory / "users"
    users.write_text("joe:secret\nann:other\n", encoding="utf-8")
    users.chmod(0o600)
    certificate = make_certificates(directory / "certificates").server
    options = (
        *("--user-file", str(users), "--tls-cert", str(certificate)),
        *("--entitle", "joe:all:.*", "--entitle", f"ann:read:^{name_of('AMPS_TEST_OPEN')}"),
        *("--log-topic", f"^{name_of('AMPS_TEST_OPEN')}"),
        *("--queue", f"{name_of('AMPS_TEST_OPEN_QUEUE')},max_backlog=10,lease=60"),
    )
    with BrokerProcess(*options, listen="tcps://127.0.0.1:0") as broker:
        guarded, reader = (
            broker.uri.replace("://", f"://{user}@") for user in ("joe:secret", "ann:other")
        )
        yield {"tls": guarded, "user": guarded, "reader": reader}


@pytest.fixture
def tls_uri(guarded: dict[str, str]) -> str:
    return guarded["tls"] or pytest.skip("not applicable: AMPS_TEST_TLS_URI is not set")


@pytest.fixture
def user_uri(guarded: dict[str, str]) -> str:
    return guarded["user"] or pytest.skip("not applicable: AMPS_TEST_USER_URI is not set")


@pytest.fixture
def reader(guarded: dict[str, str]) -> Iterator[Wire]:
    """A client that may read `AMPS_TEST_OPEN`, and no more."""
    uri = guarded["reader"] or pytest.skip("not applicable: AMPS_TEST_READER_URI is not set")
    with Wire(uri) as wire:
        yield wire


@pytest.fixture
def owner(user_uri: str) -> Iterator[Wire]:
    """A client of the same server that may do everything."""
    with Wire(user_uri) as wire:
        yield wire


@pytest.fixture
def connect(uri: str) -> Iterator[Callable[..., Wire]]:
    """Opens connections, which are closed at the end of the test."""
    opened: list[Wire] = []

    def opener(name: str | None = "", **more: Json) -> Wire:
        opened.append(Wire(uri, name=name, **more))
        return opened[-1]

    yield opener
    for wire in opened:
        wire.close()


@pytest.fixture
def wire(connect: Callable[..., Wire]) -> Wire:
    """A client that has logged on."""
    return connect()


@pytest.fixture
def logged() -> str:
    """A topic of this test alone that is in the transaction log."""
    return _topic("AMPS_TEST_LOGGED", wanted="success")


@pytest.fixture
def unlogged() -> str:
    """A topic of this test alone that is in no log."""
    return _topic("AMPS_TEST_UNLOGGED", wanted="failure")


@pytest.fixture
def plain() -> str:
    """A topic of this test alone; whether it is logged makes no difference."""
    return unique(name_of("AMPS_TEST_UNLOGGED"))


def _topic(variable: str, *, wanted: str) -> str:
    """A new topic; a bookmark subscription shows whether the server logs it."""
    name = unique(name_of(variable))
    if EXTERNAL:
        with Wire(EXTERNAL) as probe:
            if probe.ask("subscribe", t=name, bm="0")["status"] != wanted:
                pytest.skip(f"not applicable: {variable} names topics of the other kind")
    return name


def _existing(variable: str) -> str:
    """The topic that a variable names; another server need not have it."""
    name = name_of(variable)
    if EXTERNAL:
        with Wire(EXTERNAL) as probe:  # whose records nobody reads
            if probe.ask("sow", t=name, opts="non_regex_topic")["status"] != "success":
                pytest.skip(f"not applicable: the server has no {name} ({variable})")
    return name


@pytest.fixture
def sow() -> str:
    """A topic with a state of the world of key `/id`."""
    return _existing("AMPS_TEST_SOW")


@pytest.fixture
def history() -> str:
    """A topic with a state of the world of key `/id` that keeps its history."""
    return _existing("AMPS_TEST_HISTORY")


@pytest.fixture
def expiring() -> str:
    """A topic whose records live for an hour, unless their publisher says something else."""
    return _existing("AMPS_TEST_EXPIRING")


@pytest.fixture
def keyed() -> str:
    """A topic with one whose publishers give the keys."""
    return _existing("AMPS_TEST_USER_KEYS")


def _empty_queue(wire: Wire, variable: str) -> str:
    name = _existing(variable)
    wire.do("sow_delete", t=name, filter="1=1", a="processed,completed")
    return name


@pytest.fixture
def queue(wire: Wire) -> str:
    """An empty queue of semantics at-least-once, with long leases."""
    return _empty_queue(wire, "AMPS_TEST_QUEUE")


@pytest.fixture
def lease_queue(wire: Wire) -> str:
    """An empty queue with leases of a second."""
    return _empty_queue(wire, "AMPS_TEST_LEASE_QUEUE")


@pytest.fixture
def once_queue(wire: Wire) -> str:
    """An empty queue of semantics at-most-once."""
    return _empty_queue(wire, "AMPS_TEST_ONCE_QUEUE")


@pytest.fixture
def run() -> str:
    """A text of this test alone, to tell its records from those of others."""
    return unique("run")
