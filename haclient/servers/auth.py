"""Authenticators: the credentials that a client logs on with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Protocol, TypeAlias, cast

from typing_extensions import override

from haclient.errors import DisconnectedError, HAClientError, UsageError

__all__ = ["Authenticator", "DefaultAuthenticator", "TokenAuthenticator", "TokenSource"]

TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
"""Returns a token, or is a coroutine function that does."""


class Authenticator(Protocol):
    """Turns the user and password of the URI into the credentials that are sent.

    The three calls come in this order for each logon: `authenticate` once, `retry` each time the
    server asks for other credentials, `completed` once it is satisfied. Passwords and tokens that
    pass through here are never logged.
    """

    @abstractmethod
    async def authenticate(self, user: str, password: str) -> str:
        """Choose the credentials of the first logon frame.

        Args:
            user: The user of the URI; empty without one.
            password: The password of the URI; empty without one.

        Returns:
            The password or token to send.
        """

    @abstractmethod
    async def retry(self, user: str, password: str) -> str:
        """Choose other credentials after the server has asked for them.

        Args:
            user: The user that the server sent back, else the one that was sent.
            password: The password or challenge that the server sent back, else the URI's.

        Returns:
            The password or token to send next.
        """

    @abstractmethod
    def completed(self, user: str, password: str, reason: str) -> None:
        """Note that the server has accepted the logon.

        Args:
            user: The user that was sent.
            password: The password or token that was sent.
            reason: The server's informative text; often empty.
        """


class DefaultAuthenticator(Authenticator):
    """Sends the password of the URI unchanged."""

    @override
    async def authenticate(self, user: str, password: str) -> str:
        return password

    @override
    async def retry(self, user: str, password: str) -> str:
        return password

    @override
    def completed(self, user: str, password: str, reason: str) -> None:
        return


class TokenAuthenticator(DefaultAuthenticator):
    """Sends a token that a callback gives, such as one of OAuth or a JSON Web Token.

    The callback is asked before each logon, so that a token which has expired while a connection
    lasted is never sent again. A callback that raises ends that attempt with `DisconnectedError`:
    an `HAClient` tries again after its delay, since a token service comes back.

    ::

        async def token() -> str:
            return (await http.post(TOKEN_URL)).json()["access_token"]

        chooser = DefaultServerChooser()
        chooser.add("tcps://desk@orders-1:9007/amps/json", TokenAuthenticator(token))
        HAClient("orders", server_chooser=chooser)

    Args:
        token: Gives the token; a plain function must not block, a coroutine function may wait.
            Limit its wait: the client does not.
        refresh: Gives another token when the server has refused one and asks again; `token` is
            asked once more by default. For callbacks that keep a token until it expires.
    """

    def __init__(self, token: TokenSource, *, refresh: TokenSource | None = None) -> None:
        self._token = token
        self._refresh = refresh or token

    @override
    async def authenticate(self, user: str, password: str) -> str:
        return await _ask(self._token)

    @override
    async def retry(self, user: str, password: str) -> str:
        return await _ask(self._refresh)


async def _ask(source: TokenSource) -> str:
    """A token of a callback of the application.

    Raises:
        DisconnectedError: The callback raised; its text is left out, since it may have a secret.
        UsageError: What it gave is no token.
    """
    try:
        result = source()
        token = cast("object", await result if isawaitable(result) else result)
    except HAClientError:
        raise
    except Exception as error:  # of any kind: it is the application's
        raise DisconnectedError(
            f"no token to log on with: the callback raised {type(error).__name__}"
        ) from error
    if isinstance(token, str) and token:
        return token
    found = "an empty one" if isinstance(token, str) else type(token).__name__
    raise UsageError(f"a TokenAuthenticator's callback returns a token as text, not {found}")
