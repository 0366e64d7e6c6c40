"""Authenticators: the credentials that a client logs on with."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from typing_extensions import override

__all__ = ["Authenticator", "DefaultAuthenticator"]


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
