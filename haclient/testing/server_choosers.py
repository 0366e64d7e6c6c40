"""Whether a server chooser keeps what the client relies on.

No server is asked: the suite plays the client, and reports what a client would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeVar

from haclient.errors import ConnectionRefused, UsageError
from haclient.protocol.uri import Uri
from haclient.servers.chooser import AsyncServerChooser, ConnectionInfo, ServerChooser
from haclient.testing.comparison import expect

__all__ = ["check_server_chooser"]

_ATTEMPTS: Final = 100

_Chooser = ServerChooser | AsyncServerChooser
_T = TypeVar("_T")


async def check_server_chooser(make: Callable[[], ServerChooser | AsyncServerChooser]) -> None:
    """Run the whole suite.

    A chooser may name its servers in any order, and may end the client, so neither is checked.

    Args:
        make: Returns a new chooser with at least one server at each call.

    Raises:
        AssertionError: A check failed; the text has the expected and the actual value.
    """
    for check in (_names_a_server, _takes_failures, _takes_successes):
        await check(make())


async def _names_a_server(chooser: _Chooser) -> None:
    if await _target(chooser) is None:
        raise AssertionError("the first current_uri(): wanted a server, found none")
    _check_error(chooser, ())


async def _takes_failures(chooser: _Chooser) -> None:
    passwords = set[str]()
    for _ in range(_ATTEMPTS):
        uri = await _target(chooser)
        if uri is None:  # it ends the client, and has to say why
            break
        passwords.add(uri.password)
        chooser.report_failure(ConnectionRefused(f"cannot connect to {uri.safe}"), _info(uri))
        _check_error(chooser, passwords)


async def _takes_successes(chooser: _Chooser) -> None:
    for attempt in range(_ATTEMPTS):
        uri = await _target(chooser)
        if uri is None:
            break
        chooser.report_success(_info(uri))
        if attempt % 2:  # the connection was lost at once; else it lasted, and nothing tells it
            chooser.report_failure(ConnectionRefused(f"{uri.safe} was lost"), _info(uri))
        _check_error(chooser, {uri.password})


def _info(uri: Uri) -> ConnectionInfo:
    return {"uri": uri.safe, "client_name": "conformance", "server_version": ""}


async def _target(chooser: _Chooser) -> Uri | None:
    """The server of the next attempt, with an authenticator; `None` if there is none."""
    text = await _answer(chooser.current_uri())
    again = await _answer(chooser.current_uri())
    if again != text:  # which may have passwords
        raise AssertionError(
            "current_uri() without a report since the last call: wanted the same server, found "
            "another one"
        )
    if not text:
        if not chooser.error():
            raise AssertionError("error() without a server: wanted a reason, found none")
        return None
    try:
        uri = Uri.parse(text)
    except UsageError as error:
        raise AssertionError(f"current_uri(): wanted a connection string: {error}") from error
    authenticator = await _answer(chooser.current_authenticator())
    missing = [
        name
        for name in ("authenticate", "retry", "completed")
        if not callable(getattr(authenticator, name, None))
    ]
    expect(missing, [], "methods that current_authenticator() lacks")
    return uri


async def _answer(answer: _T | Awaitable[_T]) -> _T:
    if not isawaitable(answer):
        return answer
    return await answer


def _check_error(chooser: _Chooser, passwords: set[str] | tuple[()]) -> None:
    text = chooser.error()
    expect(len(text.splitlines()) <= 1, True, "whether error() is one line")
    has_password = any(password and password in text for password in passwords)
    expect(has_password, False, "whether error() has a password")
