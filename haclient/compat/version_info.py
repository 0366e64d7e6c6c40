"""Versions of servers that can be compared, with the official name."""

from __future__ import annotations

from functools import total_ordering

from typing_extensions import override

from haclient.protocol.identity import version_number


@total_ordering
class VersionInfo:
    """A version of a server, such as that of `client.get_server_version()`.

    Versions are compared by their first four numbers, with each other and with their texts:
    `VersionInfo(client.get_server_version()) >= "5.3.4"`.

    Args:
        version: The text; what follows the numbers is ignored. Empty before the first logon, which
            is lower than any other.

    Attributes:
        number: Two digits for each of the four numbers, as `client.server_version_number` of
            `haclient`.
    """

    __slots__ = ("_version", "number")

    def __init__(self, version: str = "") -> None:
        self._version = version
        self.number = version_number(version)

    @override
    def __str__(self) -> str:
        return self._version

    @override
    def __repr__(self) -> str:
        return f"VersionInfo({self._version!r})"

    @override
    def __eq__(self, other: object) -> bool:
        number = _number_of(other)
        return NotImplemented if number is None else self.number == number

    def __lt__(self, other: VersionInfo | str) -> bool:
        number = _number_of(other)
        return NotImplemented if number is None else self.number < number

    @override
    def __hash__(self) -> int:
        return hash(self.number)


def _number_of(other: object) -> int | None:
    if isinstance(other, str):
        return version_number(other)
    return other.number if isinstance(other, VersionInfo) else None
