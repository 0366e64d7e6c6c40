"""Who the client says it is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from typing_extensions import override

__all__ = ["Authenticator", "DefaultAuthenticator"]


class Authenticator(Protocol):
    """Turns the user and password of the URI into what goes on the wire.

    The three calls come in this order for each logon: `authenticate` once, `retry` each time the
    server asks for other credentials, `completed` once it is satisfied. Passwords and tokens that
    pass through here are never logged.
    """

    @abstractmethod
    async def authenticate(self, user: str, password: str) -> str:
        """The password or token for the first logon frame."""

    @abstractmethod
    async def retry(self, user: str, password: str) -> str:
        """The next password or token, given the values that the server sent back."""

    @abstractmethod
    def completed(self, user: str, password: str, reason: str) -> None:
        """The server accepted; `reason` is its informative text."""


class DefaultAuthenticator(Authenticator):
    """Sends the password of the URI as it stands."""

    @override
    async def authenticate(self, user: str, password: str) -> str:
        return password

    @override
    async def retry(self, user: str, password: str) -> str:
        return password

    @override
    def completed(self, user: str, password: str, reason: str) -> None:
        return
