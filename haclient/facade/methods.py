"""What `haclient.blocking` and `haclient.aio` share: names, words, signatures and callbacks.

A method of a facade is one line, made from the method of the trio client. It has that method's
name, docstring and signature, and calls it by name, so that an override of the trio client is
called too. Callbacks of the application are the one kind of argument that must not pass as it is:
the trio client would call them in its own thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Final, Generic, Never, Protocol, Self, TypeVar, cast, overload

from haclient.client import BaseClient
from haclient.facade.thread import TrioThread

F = TypeVar("F", bound=Callable[..., object])
_Inner = TypeVar("_Inner")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_T = TypeVar("_T")

CALLED_IN_CLIENT_THREAD: Final = frozenset({"key", "on_resubscribe_failure", "wire_tap"})
"""Callbacks that the client needs at once: they run in its thread, and must be quick."""

_OBJECTS_OF_CLIENT: Final = frozenset({"on_publish_gap", "on_rejected_frame"})  # words
_HANDLERS: Final = "handlers"  # a table of callbacks
_OPTIONS_OF_HANDLERS: Final = "queues"  # a table of keyword arguments, callbacks among them
_AWAITED: Final = re.compile(r"Coroutine\[object, None, (.+)\]")


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


class CallbackArguments:
    """Finds the callbacks among the arguments of one method.

    Args:
        method: The method of the trio client.
    """

    def __init__(self, method: Callable[..., object]) -> None:
        _, *parameters = signature(method).parameters.values()
        self._names = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]
        self.exist = any(
            is_callback(each.name) or each.name == _HANDLERS or each.kind is Parameter.VAR_KEYWORD
            for each in parameters
        )

    def wrapped(
        self,
        wrap: Callable[[object], object],
        arguments: tuple[object, ...],
        options: Mapping[str, object],
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments of a call, in which each callback is wrapped."""
        return (
            tuple(
                _wrapped(name, each, wrap)
                for name, each in zip(self._names, arguments, strict=False)
            )
            + arguments[len(self._names) :],
            wrapped_options(options, wrap),
        )


def described(facade: F, original: Callable[..., object], words: Mapping[str, str]) -> F:
    """Give a method the words and the signature of the trio client's.

    Args:
        facade: The method.
        original: That of the trio client.
        words: What to say instead of a few of its words, such as `with` for `async with`.

    Returns:
        The method.
    """
    facade.__doc__ = translated(original.__doc__, words)
    shown = signature(original)
    awaited = _AWAITED.fullmatch(str(shown.return_annotation))
    if awaited is not None:  # a plain function that returns a coroutine
        shown = shown.replace(return_annotation=awaited[1])
    facade.__signature__ = shown  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess]  # what `inspect.signature` looks for
    return facade


def translated(text: str | None, words: Mapping[str, str]) -> str:
    """A docstring of the trio client in the words of a facade."""
    text = text or ""
    for theirs, ours in words.items():
        text = text.replace(theirs, ours)
    return text


class Reader(Protocol[_Inner_co]):
    """Reads properties of an object of the trio client, in the thread that this belongs to."""

    def read(self, read: Callable[[_Inner_co], _T], what: str) -> _T:
        """Call `read` with the object, for the property `what`."""
        ...


class ClientBridge(Protocol):
    """The trio client behind a client of a facade, and its thread: `__bridge__` of that client."""

    @property
    def inner(self) -> BaseClient:
        """The trio client."""
        ...

    @property
    def thread(self) -> TrioThread:
        """Its thread."""
        ...

    def now(self, function: Callable[[], _T], what: str) -> _T:
        """Run a plain function in that thread; return or raise what it does."""
        ...


class Facade(Protocol):
    """A client of `haclient.blocking` or `haclient.aio`."""

    @property
    def __bridge__(self) -> ClientBridge:
        """The trio client and its thread."""
        ...


class HasReader(Protocol):
    """What has properties of the trio client."""

    @property
    def __bridge__(self) -> object:
        """Reads them: a `Reader` of the class that has the property."""
        ...


class FacadeProperty(Generic[_Inner, _T]):
    """A property of the trio client, read in the client's thread while that runs.

    Args:
        read: Reads it.
        kind: The class of the trio client that has the property, and its docstring.
        words: What to say instead of a few of its words.
    """

    def __init__(
        self, read: Callable[[_Inner], _T], kind: type[_Inner], words: Mapping[str, str]
    ) -> None:
        self._read = read
        self._kind = kind
        self._words = words
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = translated(getattr(self._kind, name).__doc__, self._words)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: HasReader, owner: type) -> _T: ...
    def __get__(self, instance: HasReader | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        reader = cast("Reader[_Inner]", instance.__bridge__)
        return reader.read(self._read, self._name)

    def __set__(self, instance: HasReader, value: Never) -> None:
        raise AttributeError(f"{self._name} cannot be set")
