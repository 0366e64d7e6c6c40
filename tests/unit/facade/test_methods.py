"""The names, words and callbacks that both facades take from the trio client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import get_args, get_type_hints
from unittest.mock import create_autospec

import pytest
from typing_extensions import override

import haclient
from haclient import Client, HAClient, MessageStream, aio, blocking
from haclient.facade.methods import (
    CALLED_IN_CLIENT_THREAD,
    Method,
    Reads,
    is_callback,
    translated,
    wrapped_options,
)
from haclient.facade.thread import Bridge
from haclient.facade.thread_bridge import BlockingThread
from haclient.options import HAOptions
from haclient.workers.queue_handlers import QueueHandlerOptions

OWN = {"open", "batches", "with_timeout", "aclose"}  # of a stream: they return the facade's
TRIO_ONLY = {"working"}  # for `haclient.workers`, whose pools are tasks of trio
RENAMED: dict[ModuleType, dict[str, str]] = {blocking: {"aclose": "close"}, aio: {}}
PAIRS = [
    pytest.param(module, trio_kind, facade, id=f"{facade.__module__}.{facade.__name__}")
    for module, pairs in {
        blocking: {
            Client: blocking.Client,
            HAClient: blocking.HAClient,
            MessageStream: blocking.MessageStream,
        },
        aio: {Client: aio.Client, HAClient: aio.HAClient, MessageStream: aio.MessageStream},
    }.items()
    for trio_kind, facade in pairs.items()
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.row("CC35")
@pytest.mark.parametrize(("module", "trio_kind", "facade"), PAIRS)
def test_each_method_of_the_trio_client_has_its_facade(
    module: ModuleType, trio_kind: type, facade: type
) -> None:
    wanted = {RENAMED[module].get(name, name) for name in public(trio_kind) - TRIO_ONLY}
    missing = sorted(wanted - public(facade))
    assert not missing, (
        f"{facade.__module__}.{facade.__name__} lacks {', '.join(missing)}: add one line for each, "
        "such as `publish = _call(TrioClient.publish)` or "
        "`name = Reads[str](TrioClient)`, in haclient/aio.py"
    )


@pytest.mark.row("CC35")
@pytest.mark.parametrize(("module", "trio_kind", "facade"), PAIRS)
def test_signatures_and_words_are_those_of_the_trio_client(
    module: ModuleType, trio_kind: type, facade: type
) -> None:
    compared = 0
    for name in (public(trio_kind) & public(facade)) - OWN:
        theirs, ours = getattr(trio_kind, name), getattr(facade, name)
        assert ours.__doc__ == translated(theirs.__doc__, module.WORDS), name
        if callable(theirs):
            assert _parameters(ours) == _parameters(theirs), name
            if module is aio:
                assert inspect.iscoroutinefunction(ours) == _is_awaited(theirs), name
            compared += 1
    assert compared


@pytest.mark.parametrize(
    "kind",
    [Client, HAClient, MessageStream, aio.Client, aio.HAClient, aio.MessageStream],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
def test_a_mock_of_a_client_is_awaited_as_the_client_is(kind: type) -> None:
    """Run the coroutines, since a mock says of each of its methods that it is a coroutine."""
    mock = create_autospec(kind, instance=True)
    awaited = []
    for name in public(kind):
        method = getattr(kind, name)
        if not callable(method):
            continue
        result = call_with_anything(method, getattr(mock, name))
        assert inspect.iscoroutine(result) == _is_awaited(method), name
        if inspect.iscoroutine(result):
            awaited.append(name)
            with pytest.raises(StopIteration):
                result.send(None)
            getattr(mock, name).assert_awaited_once()
    assert set(awaited) & {"publish", "open"}


def call_with_anything(method: Callable[..., object], mock: Callable[..., object]) -> object:
    """Call a mock with the arguments that the method needs."""
    needed = [
        each
        for each in inspect.signature(method).parameters.values()
        if each.default is each.empty
        and each.name != "self"
        and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    return mock(
        *("x" for each in needed if each.kind is not each.KEYWORD_ONLY),
        **{each.name: "x" for each in needed if each.kind is each.KEYWORD_ONLY},
    )


def _is_awaited(function: Callable[..., object]) -> bool:
    """Whether it is a coroutine function, or a plain one that returns a coroutine."""
    returned = str(inspect.signature(function).return_annotation)
    return inspect.iscoroutinefunction(function) or returned.startswith("Coroutine[")


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def test_the_signature_shows_what_a_blocking_call_returns() -> None:
    assert inspect.signature(blocking.Client.publish).return_annotation == "int"
    assert "async with" not in str(blocking.Client.stream.__doc__)
    assert "with client.stream" in str(blocking.Client.stream.__doc__)


@pytest.mark.parametrize("options", [HAOptions, QueueHandlerOptions])
def test_each_callable_option_is_known_as_a_callback_or_as_one_of_the_client_thread(
    options: type,
) -> None:
    functions = {name for name, hint in get_type_hints(options).items() if "Callable[" in str(hint)}
    assert functions
    unknown = {name for name in functions if not is_callback(name)} - CALLED_IN_CLIENT_THREAD
    assert unknown == set()


@pytest.mark.parametrize("name", ["topic", "on_publish_gap", "key"])
def test_other_arguments_pass_as_they_are(name: str) -> None:
    assert wrapped_options({name: 1}, lambda _: "wrapped") == {name: 1}


class Wrapping(BlockingThread):
    """A thread that says which arguments it was given as callbacks."""

    @override
    def wrap(self, function: object) -> object:
        return ("wrapped", function)


def test_callbacks_are_found_by_position_and_by_name() -> None:
    bridge = Bridge(haclient.Client("a"), Wrapping("a"))
    found = Method(haclient.Client.execute_async)
    by_position = found.bound(bridge, ("command", print), {})
    by_name = found.bound(bridge, ("command",), {"handler": print})
    assert isinstance(by_position, partial)
    assert isinstance(by_name, partial)
    assert by_position.args == ("command", ("wrapped", print))
    assert by_name.keywords == {"handler": ("wrapped", print)}
    assert not Method(haclient.Client.publish).has_callbacks


@pytest.mark.parametrize("facade", [aio, blocking], ids=["aio", "blocking"])
def test_properties_have_the_types_of_the_trio_client(facade: ModuleType) -> None:
    compared = 0
    for kind in (facade.BaseClient, facade.MessageStream, facade.LiveRecords):
        for name, each in vars(kind).items():
            if isinstance(each, Reads):
                original = getattr(each._kind, name)
                assert typed(each) == get_type_hints(original.fget)["return"], name
                compared += 1
    assert compared > 10


def typed(reads: Reads[object]) -> object:
    """The type that a property of a facade was declared with."""
    return get_args(reads.__orig_class__)[0]  # type: ignore[attr-defined]  # of each instance


@pytest.mark.parametrize("module", [blocking, aio])
def test_a_client_without_a_name_is_refused_as_python_does(module: ModuleType) -> None:
    for make in (module.Client, module.HAClient, module.HAClient.memory_backed):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
            make()
