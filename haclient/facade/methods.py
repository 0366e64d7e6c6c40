"""What `haclient.blocking` and `haclient.aio` share: methods, properties, words and callbacks.

A method of a facade is one line, made from the method of the trio client. It has that method's
name, docstring and signature, and calls it by name, so that an override of the trio client is
called too. Callbacks of the application are the one kind of argument that must not pass as it is:
the trio client would call them in its own thread.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, update_wrapper, wraps
from inspect import Parameter, signature
from types import FunctionType
from typing import (
    Concatenate,
    Final,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

from typing_extensions import override

from haclient.client import BaseClient
from haclient.facade.thread import Bridge, TrioThread
from haclient.live_records import LiveRecords

_C = TypeVar("_C", bound=type)
_F = TypeVar("_F", bound=Callable[..., object])
_H = TypeVar("_H", bound="FacadeClient[TrioThread]")
_Inner = TypeVar("_Inner")
_O = TypeVar("_O", bound="Opens")
_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_T = TypeVar("_T")
_Thread = TypeVar("_Thread", bound=TrioThread)
_Thread_co = TypeVar("_Thread_co", bound=TrioThread, covariant=True)

CALLED_IN_CLIENT_THREAD: Final = frozenset({"key", "on_resubscribe_failure", "wire_tap"})
"""Callbacks that the client needs at once: they run in its thread, and must be quick."""

_OBJECTS_OF_CLIENT: Final = frozenset({"on_publish_gap", "on_rejected_frame"})  # words
_HANDLERS: Final = "handlers"  # a table of callbacks
_OPTIONS_OF_HANDLERS: Final = "queues"  # a table of keyword arguments, callbacks among them
_AWAITED: Final = re.compile(r"Coroutine\[object, None, (.+)\]")


class Bridged(Protocol):
    """What has methods or properties of an object of the trio client."""

    @property
    def __bridge__(self) -> Bridge[object, TrioThread]:
        """That object, and its thread."""
        ...


# -- callbacks among the arguments ---------------------------------------------------------


def is_callback(name: str) -> bool:
    """Whether an argument of this name is a function of the application, called with events."""
    if name in CALLED_IN_CLIENT_THREAD or name in _OBJECTS_OF_CLIENT:
        return False
    return name in {"handler", "listener"} or name.startswith("on_") or name.endswith("_handler")


def _wrapped(name: str, value: object, wrap: Callable[[object], object]) -> object:
    """An argument, with each of its callbacks wrapped."""
    if name == _HANDLERS and isinstance(value, Mapping):
        handlers = cast("Mapping[object, object]", value)
        return {key: wrap(handler) for key, handler in handlers.items()}
    if name == _OPTIONS_OF_HANDLERS and isinstance(value, Mapping):
        options = cast("Mapping[object, Mapping[str, object]]", value)
        return {key: wrapped_options(each, wrap) for key, each in options.items()}
    return wrap(value) if is_callback(name) else value


def wrapped_options(
    options: Mapping[str, object], wrap: Callable[[object], object]
) -> dict[str, object]:
    """Keyword arguments in which each callback is wrapped."""
    return {name: _wrapped(name, each, wrap) for name, each in options.items()}


class Method(Generic[_R_co]):
    """A method of the trio client, called with the arguments that a facade has got.

    Args:
        method: The method.

    Attributes:
        name: Its name.
        has_callbacks: Whether there may be callbacks among its arguments.
    """

    def __init__(self, method: Callable[..., _R_co]) -> None:
        self.name = method.__name__
        _, *parameters = signature(method).parameters.values()
        self._names = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]
        self.has_callbacks = any(
            is_callback(each.name) or each.name == _HANDLERS or each.kind is Parameter.VAR_KEYWORD
            for each in parameters
        )

    def bound(
        self,
        bridge: Bridge[object, TrioThread],
        arguments: tuple[object, ...],
        options: Mapping[str, object],
    ) -> Callable[[], _R_co]:
        """The call of the method of one object, to be made in its thread."""
        function: Callable[..., _R_co] = getattr(bridge.inner, self.name)
        if self.has_callbacks:
            wrap = bridge.thread.wrap
            named = zip(self._names, arguments, strict=False)
            rest = arguments[len(self._names) :]
            arguments = (*(_wrapped(name, each, wrap) for name, each in named), *rest)
            options = wrapped_options(options, wrap)
        return partial(function, *arguments, **options)


# -- methods and properties ------------------------------------------------------------------


def like(original: Callable[..., object]) -> Callable[[_F], _F]:
    """Give a function the name, the docstring and the signature of a method of the trio client."""

    def copy_to(facade: _F) -> _F:
        update_wrapper(facade, original)
        shown = signature(original)
        awaited = _AWAITED.fullmatch(str(shown.return_annotation))
        if awaited is not None:  # a plain function that returns a coroutine
            shown = shown.replace(return_annotation=awaited[1])
        facade.__signature__ = shown  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]  # what `inspect.signature` looks for
        return facade

    return copy_to


def with_words(words: Mapping[str, str]) -> Callable[[_C], _C]:
    """Replace a few words of the docstrings in a class, such as `async with` by `with`."""

    def translate(kind: _C) -> _C:
        for each in vars(kind).values():
            if isinstance(each, FunctionType | Reads | Factory):
                each.__doc__ = translated(each.__doc__, words)
        return kind

    return translate


def translated(text: str | None, words: Mapping[str, str]) -> str:
    """A docstring of the trio client in the words of a facade."""
    text = text or ""
    for theirs, ours in words.items():
        text = text.replace(theirs, ours)
    return text


def plain(
    method: Callable[Concatenate[Never, _P], _T], *, anytime: bool = False
) -> Callable[Concatenate[Bridged, _P], _T]:
    """The form of a method that does not wait: it runs in the client's thread.

    Args:
        method: The method.
        anytime: Whether it may be called before and after the run of the client.
    """
    inner = Method(method)

    @like(method)
    def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        bridge = self.__bridge__
        run = bridge.read if anytime else bridge.thread.now
        return run(inner.bound(bridge, arguments, options), inner.name)

    return call


class Reads(Generic[_T]):
    """A property of the trio client, read in the client's thread while that runs.

    Args:
        kind: The class of the trio client that has the property, and its docstring.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = getattr(self._kind, name).__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Bridged, owner: type) -> _T: ...
    def __get__(self, instance: Bridged | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        bridge = instance.__bridge__
        return cast("_T", bridge.read(partial(getattr, bridge.inner, self._name), self._name))

    def __set__(self, instance: Bridged, value: Never) -> None:
        raise AttributeError(f"{self._name} cannot be set")


# -- clients ---------------------------------------------------------------------------------


class FacadeClient(Generic[_Thread_co]):
    """What the clients of both facades have in common."""

    __bridge__: Bridge[BaseClient, _Thread_co]

    def __del__(self) -> None:
        if hasattr(self, "__bridge__"):  # making it may have failed
            self.__bridge__.thread.drop()

    @override
    def __reduce__(self) -> Never:
        self.__bridge__.inner.__reduce__()

    @override
    def __repr__(self) -> str:
        thread = self.__bridge__.thread
        state = "open" if thread.is_running else "not open"
        return f"<{type(self).__module__}.{type(self).__qualname__} {thread.name!r}, {state}>"


def _made(
    kind: Callable[[str], _Thread],
    make: Callable[..., _Inner],
    arguments: tuple[object, ...],
    options: dict[str, object],
) -> Bridge[_Inner, _Thread]:
    """Make a trio client, for a thread of this kind, which wraps its callbacks."""
    thread = kind(str(arguments[0] if arguments else options.get("name", "")))
    return Bridge(make(*arguments, **wrapped_options(options, thread.wrap)), thread)


def makes(
    kind: Callable[[str], _Thread], make: Callable[_P, BaseClient]
) -> Callable[[Callable[..., None]], Callable[Concatenate[FacadeClient[_Thread], _P], None]]:
    """Let a constructor make a trio client, with the arguments of that."""

    def decorate(
        _: Callable[..., None],
    ) -> Callable[Concatenate[FacadeClient[_Thread], _P], None]:
        @like(make.__init__)
        def init(self: FacadeClient[_Thread], /, *arguments: _P.args, **options: _P.kwargs) -> None:
            self.__bridge__ = _made(kind, make, arguments, options)

        return init

    return decorate


class Factory(Generic[_P]):
    """A class method that makes a client as one of the trio client does."""

    def __init__(self, kind: Callable[[str], TrioThread], make: Callable[_P, BaseClient]) -> None:
        self._kind = kind
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, instance: object, owner: type[_H]) -> Callable[_P, _H]:
        @wraps(self._make)
        def make(*arguments: _P.args, **options: _P.kwargs) -> _H:
            client = owner.__new__(owner)
            client.__bridge__ = _made(self._kind, self._make, arguments, options)
            return client

        return make


# -- coroutine functions of trio, for the client's thread -------------------------------------


class Subscribing:
    """A call that begins a subscription, which its caller may never get to know.

    Args:
        client: The trio client.
        begin: The call, which returns the id of the subscription.
    """

    def __init__(self, client: object, begin: Callable[[], Awaitable[str]]) -> None:
        self._client = cast("BaseClient", client)
        self._begin = begin
        self._undo: Callable[[str], Awaitable[None]] | None = None

    async def begin(self) -> str:
        """Make the call."""
        self._undo = self._client._subscriber.undo()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        return await self._begin()

    async def undo(self, sub_id: str) -> None:
        """Take back what it has begun."""
        assert self._undo is not None  # noqa: S101  # it is complete
        await self._undo(sub_id)


class Openable(Protocol):
    """A stream or records of the trio client."""

    async def open(self) -> object:
        """Send the command, and wait for the answer."""

    async def aclose(self) -> None:
        """Unsubscribe."""

    async def __aenter__(self) -> object: ...


class Opens(Protocol):
    """A stream or records of a facade."""

    @property
    def __bridge__(self) -> Bridge[Openable, TrioThread]:
        """The stream or records of the trio client."""
        ...


async def open_inner(facade: _O, *, is_entered: bool = False) -> _O:
    """Open a stream, or records; at the start of a block unless it is open."""
    inner = facade.__bridge__.inner
    await (inner.__aenter__() if is_entered else inner.open())
    return facade


async def close_inner(facade: Opens) -> None:
    """Close a stream, or records."""
    await facade.__bridge__.inner.aclose()


async def made_of(begin: Callable[[], Awaitable[_T]], make: Callable[[_T], _Inner]) -> _Inner:
    """Make an object of a facade of what a call of the trio client returns."""
    return make(await begin())


async def next_change_arrived(records: LiveRecords[_T], thread: TrioThread) -> bool:
    """Wait for a change; return false at the end of the records."""
    if await records.wait_change():
        return True
    await thread.check_end(was_cut=True)  # records are never complete
    return False
