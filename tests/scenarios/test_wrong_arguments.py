"""Arguments of wrong types and values: each call of the public API works, or raises at once.

A value that cannot be is an `HAClientError` that says so; a wrong type may also be an error of
Python, whose traceback names the argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
import trio

from haclient import (
    Client,
    Command,
    DeadLetter,
    DefaultServerChooser,
    ExponentialDelayStrategy,
    FailureCountServerChooser,
    FileSubscriptionManager,
    FixedDelayStrategy,
    HAClient,
    HealthAwareServerChooser,
    Options,
    PriorityServerChooser,
    RandomServerChooser,
    SpreadDelayStrategy,
    TokenAuthenticator,
    Uri,
)
from haclient.client import BaseClient
from haclient.errors import HAClientError, UsageError
from haclient.observability.stall_detector import StallDetector
from haclient.options import ClientOptions, HAOptions
from haclient.stores import (
    AuditLog,
    FilePublishStore,
    HybridPublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    PrunePolicy,
    RingBookmarkStore,
    RingPublishStore,
)
from haclient.streams import MessageStream
from haclient_fake_server.testing.cluster import Cluster
from support.clock import in_virtual_time

WRONG_TYPE: Final = TypeError, AttributeError, ValueError
VALUES: Final[tuple[object, ...]] = (
    *(None, 0, -1, True, 5, 1.5, float("nan"), float("inf")),
    *("", "x", b"", b"x", [], {}, object(), str, print),
)
# No name: the virtual clock would pass over the time in which a thread looks it up.
URI: Final = "tcp://127.0.0.1:1/amps/json"


def parameters(function: Callable[..., object]) -> list[str]:
    """The names of its arguments, without those of `**options`."""
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind in keyword and each.name != "self"]


def calls(
    function: Callable[..., object], given: dict[str, object], names: list[str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The call with each value for each argument."""
    for name in names:
        for value in VALUES:
            yield f"{name}={value!r}", partial(function, **{**given, name: value})


def _client(**options: object) -> object:
    return Client(**{"name": "c", **options})  # type: ignore[arg-type]  # on purpose


def _ha_client(**options: object) -> object:
    return HAClient(**{"name": "c", "servers": [URI], **options})  # type: ignore[arg-type]  # on purpose


def _command(**fields: object) -> object:
    command = Command(**fields)  # type: ignore[arg-type]  # on purpose
    command.validate()
    return command.to_fields(), command.body, repr(command)


_CLIENT: Final = ["name", "publish_store", "bookmark_store", *ClientOptions.__annotations__]
_Made = tuple[Callable[..., object], dict[str, object]]
_MADE: Final[list[_Made]] = [
    (DeadLetter, {"topic": "t"}),
    (DefaultServerChooser, {}),
    (ExponentialDelayStrategy, {}),
    (FailureCountServerChooser, {}),
    (FileSubscriptionManager, {"path": "subscriptions"}),
    (FixedDelayStrategy, {}),
    (HealthAwareServerChooser, {"admin": {URI: "http://localhost:1"}}),
    (HybridPublishStore, {"path": "hybrid"}),
    (LoggedBookmarkStore, {"path": "logged"}),
    (FilePublishStore, {"path": "file"}),
    (MemoryBookmarkStore, {}),
    (MemoryPublishStore, {}),
    (Options, {}),
    (Options.parse, {}),
    (PriorityServerChooser, {}),
    (PrunePolicy, {}),
    (RandomServerChooser, {}),
    (RingBookmarkStore, {"path": "ring"}),
    (RingPublishStore, {"path": None, "capacity_bytes": 2**20}),
    (SpreadDelayStrategy, {}),
    (StallDetector, {}),
    (TokenAuthenticator, {"token": str}),
    (Uri.parse, {}),
    (AuditLog, {"path": "audit"}),
    (DefaultServerChooser().add, {"uri": URI}),
    (RandomServerChooser().add, {"uri": URI}),
    (DefaultServerChooser([URI]).remove, {"uri": URI}),
]
_CONSTRUCTORS: Final[list[tuple[Callable[..., object], dict[str, object], list[str]]]] = [
    (_client, {}, [*_CLIENT, "authenticator"]),
    (_ha_client, {}, [*_CLIENT, *HAOptions.__annotations__]),
    (_command, {"command": "sow", "topic": "t"}, parameters(Command)),
    (_command, {"command": "publish", "topic": "t"}, parameters(Command)),
    (_command, {"command": "subscribe", "topic": "t"}, parameters(Command)),
    *((make, given, parameters(make)) for make, given in _MADE),
]


@pytest.mark.parametrize(
    ("make", "given", "names"),
    _CONSTRUCTORS,
    ids=[
        f"{make.__qualname__.strip('_')}-{given.get('command', '')}"
        for make, given, _ in _CONSTRUCTORS
    ],
)
def test_no_value_of_an_argument_makes_a_constructor_fail_without_a_reason(
    make: Callable[..., object],
    given: dict[str, object],
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = []
    for number, (what, call) in enumerate(calls(make, given, names)):
        (tmp_path / f"{number}").mkdir()
        monkeypatch.chdir(tmp_path / f"{number}")
        try:
            made = call()
        except HAClientError as error:
            if "\n" in str(error):
                wrong.append(f"{what}: {error}")
        except WRONG_TYPE:
            pass
        except Exception as error:  # each is what is tested for
            wrong.append(f"{what}: {error!r}")
        else:
            with suppress(AttributeError):
                made.close()  # type: ignore[attr-defined]  # of the stores
    assert not wrong, "\n".join(wrong)


_HANDLED: Final = {"topic": "t", "handler": print}
_METHODS: Final[dict[str, dict[str, object]]] = {
    "logon": {},
    "subscribe": _HANDLED,
    "sow_and_subscribe": _HANDLED,
    "bookmark_subscribe": {**_HANDLED, "sub_id": "s"},
    "queue_subscribe": _HANDLED,
    "stream": {"topic": "t"},
    "sow": {"topic": "t"},
    "sow_and_stream": {"topic": "t"},
    "bookmark_stream": {"topic": "t", "sub_id": "s"},
    "queue_stream": {"topic": "t"},
    "publish": {"topic": "t", "data": b""},
    "publish_nowait": {"topic": "t", "data": b""},
    "publish_many": {"topic": "t", "bodies": [b""]},
    "publish_persisted": {"topic": "t", "data": b""},
    "publish_json": {"topic": "t", "value": 1},
    "publish_flush": {},
    "wait_persisted": {"sequence": 1},
    "flush": {},
    "flush_acks": {},
    "ack": {"topic": "t", "bookmarks": "1|1|"},
    "ack_matching": {"topic": "t", "filter": "1=1"},
    "sow_delete": {"topic": "t", "filter": "1=1"},
    "pause": {"sub_ids": "s"},
    "resume": {"sub_ids": "s"},
    "replace": {"sub_id": "s", "filter": ""},
    "unsubscribe": {"sub_ids": "s"},
    "execute": {"command": Command("flush", ack_type="processed")},
    "execute_async": {"command": Command("flush"), "handler": print},
    "move_to": {"uri": URI},
    "set_heartbeat": {"heartbeat": 5.0},
    "restore_subscriptions": {"handlers": {}},
    "add_event_listener": {"listener": print},
    "explain_recovery": {"sub_id": "s"},
}


async def _outcome(call: Callable[[], object]) -> None:
    """Make a call, wait for it, and open what it returns."""
    result = call()
    if inspect.isawaitable(result):
        result = await cast("Awaitable[object]", result)
    if isinstance(result, MessageStream):
        async with result:
            pass


@in_virtual_time
@pytest.mark.parametrize("kind", [Client, HAClient])
@pytest.mark.parametrize("name", list(_METHODS))
async def test_no_value_of_an_argument_makes_a_method_hang_or_fail_without_a_reason(
    kind: type[BaseClient], name: str, amps_memory_broker: Cluster
) -> None:
    if not hasattr(kind, name):
        return
    wrong = []
    uri = amps_memory_broker.uris[0]
    options: dict[str, object] = {"servers": [uri]} if kind is HAClient else {}
    if kind is HAClient:
        options["publish_store"] = MemoryPublishStore()
    async with kind("c", **options) as client:  # type: ignore[arg-type]  # of two kinds
        if isinstance(client, Client):
            await client.connect(uri)
            await client.logon()
        method = getattr(client, name)
        for what, call in calls(method, _METHODS[name], parameters(method)):
            with trio.move_on_after(3600) as scope:
                try:
                    await _outcome(call)
                except HAClientError as error:
                    if "\n" in str(error):
                        wrong.append(f"{what}: {error}")
                except WRONG_TYPE:
                    pass
                except Exception as error:  # each is what is tested for
                    wrong.append(f"{what}: {error!r}")
            if scope.cancelled_caught:
                wrong.append(f"{what}: waits")
    assert not wrong, "\n".join(wrong)


@in_virtual_time
@pytest.mark.parametrize("uri", [None, 5, URI.encode(), [URI]])
async def test_a_client_connects_to_a_text(uri: object) -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="a connection string is text such as tcp://"):
            await client.connect(uri)  # type: ignore[arg-type]  # on purpose


@in_virtual_time
async def test_the_timeout_of_a_command_is_checked_like_that_of_a_method(
    amps_memory_broker: Cluster,
) -> None:
    async with HAClient("c", servers=amps_memory_broker.uris) as client:
        for timeout in ("x", -1, True):
            command = Command("sow", topic="t", timeout=timeout)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(UsageError, match="timeout is a number of seconds, zero or above"):
                await client.execute(command)


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("on_event", 5, "on_event is a function or None, not 5"),
        ("on_failed_write", "x", "on_failed_write is a function or None, not 'x'"),
        ("wire_tap", 1, "wire_tap is a function or None, not 1"),
        ("connect_timeout", None, "connect_timeout is a number of seconds, above 0, not None"),
        (
            "preflight_headers",
            {"X-Token": 5},
            "preflight_headers: names and values are text, not int",
        ),
        ("heartbeat", "x", "heartbeat is a finite number of seconds, 0.001 or above, not 'x'"),
        ("servers", "tcp://u:secret@a:1/amps", "servers is a list of connection strings"),
    ],
)
def test_an_argument_that_would_fail_later_is_refused_at_once(
    argument: str, value: object, wanted: str
) -> None:
    given = {"servers": [URI]}
    with pytest.raises(UsageError) as refused:
        HAClient(**{"name": "c", **given, argument: value})  # type: ignore[arg-type]  # on purpose
    assert str(refused.value).startswith(wanted)
    assert "secret" not in str(refused.value)


@in_virtual_time
async def test_a_handler_that_cannot_be_called_is_refused_before_the_command_is_sent(
    amps_memory_broker: Cluster,
) -> None:
    async with HAClient("c", servers=amps_memory_broker.uris) as client:
        for handler in (None, 5, "print"):
            with pytest.raises(UsageError, match="handler is a function, not"):
                await client.subscribe("t", handler=handler)  # type: ignore[arg-type]  # on purpose
        assert client.metrics.subscriptions == ()
