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
from typing import Final, TypeVar

F = TypeVar("F", bound=Callable[..., object])

CALLED_IN_CLIENT_THREAD: Final = frozenset({"key", "on_resubscribe_failure", "wire_tap"})
"""Callbacks that the client needs at once: they run in its thread, and must be quick."""

_OBJECTS_OF_CLIENT: Final = frozenset({"on_publish_gap", "on_lost_lease"})  # words, no callbacks
_AWAITED: Final = re.compile(r"Coroutine\[object, None, (.+)\]")


def is_callback(name: str) -> bool:
    """Whether an argument of this name is a function of the application, called with events."""
    if name in CALLED_IN_CLIENT_THREAD or name in _OBJECTS_OF_CLIENT:
        return False
    return name in {"handler", "listener"} or name.startswith("on_") or name.endswith("_handler")


def wrapped_options(
    options: Mapping[str, object], wrap: Callable[[object], object]
) -> dict[str, object]:
    """Keyword arguments in which each callback is wrapped."""
    return {name: wrap(each) if is_callback(name) else each for name, each in options.items()}


class CallbackArguments:
    """Finds the callbacks among the arguments of one method.

    Args:
        method: The method of the trio client.
    """

    def __init__(self, method: Callable[..., object]) -> None:
        _, *parameters = signature(method).parameters.values()
        self._names = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]
        self.exist = any(
            is_callback(each.name) or each.kind is Parameter.VAR_KEYWORD for each in parameters
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
                wrap(each) if is_callback(name) else each
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
