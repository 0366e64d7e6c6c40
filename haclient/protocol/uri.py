"""Connection strings.

::

    tcp://user:password@host:9007/amps/json?tcp_nodelay=true
    tcps://[::1]:9008/amps
    tcp://[fe80::1%25eth0]:9007/amps/json
    unix://localhost:0/amps/json?path=/run/amps.sock
    mem://broker:9007/amps/json

User and password are percent-decoded. The password is kept apart from everything that is shown:
neither `str` nor `repr` nor any error contains it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from typing_extensions import override

from haclient.errors import UsageError
from haclient_stores.checks import is_text

__all__ = ["Uri"]

_SCHEMES: Final = ("tcp", "tcps", "unix", "mem")
_LARGEST_PORT: Final = 65_535
_TRUE: Final = frozenset({"true", "1", "t", "y", "yes"})
_FALSE: Final = frozenset({"false", "0", "f", "n", "no"})
_LARGEST_NUMBER: Final = 2**31 - 1  # socket options are C integers
_MOST_DIGITS: Final = 10
_USERINFO: Final = re.compile(r"^([a-zA-Z]*://)?.*@", re.DOTALL)
_AFTER_COLON: Final = re.compile(r":(?!//|\d{1,5}(?:/|$)).*", re.DOTALL)  # no port
_TLS_ONLY: Final = ("ca", "cert", "key", "verify")


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("true or false")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError("a number")
    if int(text) > _LARGEST_NUMBER:
        raise ValueError(f"a number up to {_LARGEST_NUMBER}")
    return int(text)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("an IP address") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words))
        return text.lower()

    return read


def _name(text: str) -> str:
    if not text:
        raise ValueError("a file name")
    return text


_OPTIONS: Final[dict[str, Callable[[str], str | int]]] = {
    "bind": _address,
    "tcp_nodelay": _bool,
    "tcp_sndbuf": _number,
    "tcp_rcvbuf": _number,
    "tcp_linger": _number,
    "tcp_keepalive": _bool,
    "ip_protocol_prefer": _one_of("ipv4", "ipv6"),
    "compression": _one_of("zlib"),
    "http_preflight": _bool,
    "path": _name,
    "pretty": _bool,
    "ca": _name,
    "cert": _name,
    "key": _name,
    "verify": _bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uri:
    """The address of a server and the parameters of a connection to it.

    Attributes:
        scheme: `tcp`, `tcps` (TLS), `unix`, or `mem` (a broker in the same process).
        host: Name or address, IPv6 without brackets and with its zone (`fe80::1%eth0`); empty for
            `unix` where none was given.
        port: 1 to 65535; 0 for `unix`.
        user: Percent-decoded; sent at logon.
        password: Percent-decoded; sent at logon, shown nowhere.
        protocol: Always `amps`.
        message_type: Sent at logon; empty if the server's transport has a fixed type.
        bind: Local address of the socket.
        tcp_nodelay: TCP_NODELAY; `None` leaves the choice to the client.
        tcp_sndbuf: Send buffer in bytes.
        tcp_rcvbuf: Receive buffer in bytes.
        tcp_linger: 0 drops what is unsent when the connection is closed (SO_LINGER); with any other
            number the system sends it in the background, as without the option.
        tcp_keepalive: SO_KEEPALIVE.
        ip_protocol_prefer: `ipv4` or `ipv6`: which addresses of a name to try first.
        compression: `zlib`, or empty for none.
        http_preflight: Begin with an HTTP upgrade.
        path: File name of the Unix socket.
        pretty: Ask for binary types as formatted text.
        ca: File with the certificate authorities to trust.
        cert: File with our certificate.
        key: File with its key.
        verify: Check the server's certificate.
    """

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    protocol: str = "amps"
    message_type: str = ""
    bind: str = ""
    tcp_nodelay: bool | None = None
    tcp_sndbuf: int | None = None
    tcp_rcvbuf: int | None = None
    tcp_linger: int | None = None
    tcp_keepalive: bool | None = None
    ip_protocol_prefer: str = "ipv4"
    compression: str = ""
    http_preflight: bool = False
    path: str = ""
    pretty: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True

    @classmethod
    def parse(cls, text: str) -> Uri:
        """Read a connection string.

        Args:
            text: Such as `tcp://user:password@host:9007/amps/json?tcp_keepalive=true`.

        Returns:
            Its parts.

        Raises:
            UsageError: It is malformed; the message says where and never shows the password.
        """
        if not is_text(text):  # the value is not shown: it may have a password
            raise UsageError(
                "a connection string is text such as tcp://host:9007/amps/json, "
                f"not {type(text).__name__}"
            )
        try:
            return _parse(text.strip())
        except _Malformed as error:
            raise UsageError(f"{_shown(text)!r}: {error}") from None

    @property
    def address(self) -> str:
        """Host and port, or the path of the socket, for people to read."""
        if self.scheme == "unix":
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def safe(self) -> str:
        """The connection string without its password; parsing it gives an otherwise equal `Uri`."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        where = f"{self.host or 'localhost'}:0" if self.scheme == "unix" else self.address
        if ":" in self.host:
            where = f"[{quote(self.host, safe=':')}]:{self.port}"
        kind = f"/{quote(self.message_type, safe='')}" if self.message_type else ""
        options = "&".join(
            f"{name}={quote(_written(getattr(self, name)), safe='/:')}"
            for name in _OPTIONS
            if getattr(self, name) != _DEFAULTS[name]
        )
        return f"{self.scheme}://{user}{where}/{self.protocol}{kind}{'?' * bool(options)}{options}"

    @override
    def __str__(self) -> str:
        return self.safe


_DEFAULTS: Final[dict[str, object]] = {
    name: Uri.__dataclass_fields__[name].default for name in _OPTIONS
}


class _Malformed(Exception):
    """A description of the error that contains no secret."""


def _parse(text: str) -> Uri:
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEMES:
        known = " or ".join(f"{each}://" for each in _SCHEMES)
        raise _Malformed(
            f"a connection string begins with {known}, such as tcp://localhost:9007/amps/json"
        )
    location, _, query = rest.partition("?")
    authority, slash, path = location.partition("/")
    if "@" in query or "@" in path:  # may be the rest of a password: nothing of it is quoted
        raise _Malformed("write '@', '/' and '?' in a user, password or value as %40, %2F and %3F")
    options = _options(query)
    _check_options(scheme, options)
    if scheme == "unix" and "path" not in options:
        options["path"], path = _socket_of_path(slash + path), "amps"
    userinfo, _, where = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    host, port = _host_and_port(scheme, where)
    return Uri(
        scheme=scheme,
        host=host,
        port=port,
        user=unquote(user),
        password=unquote(password),
        message_type=_message_type(path),
        **options,  # type: ignore[arg-type]  # the table of options has read each by its type
    )


def _options(query: str) -> dict[str, str | int]:
    result: dict[str, str | int] = {}
    for item in filter(None, query.split("&")):
        name, _, value = item.partition("=")
        read = _OPTIONS.get(name)
        if read is None:
            raise _Malformed(f"there is no option {name!r}; there are {', '.join(_OPTIONS)}")
        try:
            result[name] = read(unquote(value))
        except ValueError as wanted:
            raise _Malformed(f"the option {name} is {wanted}, not {unquote(value)!r}") from None
    return result


def _check_options(scheme: str, options: dict[str, str | int]) -> None:
    for name in options:
        if name in _TLS_ONLY and scheme != "tcps":
            raise _Malformed(f"the option {name} is for TLS: write tcps:// instead of {scheme}://")
        if name == "path" and scheme != "unix":
            raise _Malformed(f"the option path is for unix://, not {scheme}://")
    if "key" in options and "cert" not in options:
        raise _Malformed("the option key needs cert")


def _socket_of_path(path: str) -> str:
    if not path.strip("/") or path == "/amps" or path.startswith("/amps/"):
        raise _Malformed("a unix connection string needs the option path=<file name of the socket>")
    return unquote(path)


def _host_and_port(scheme: str, where: str) -> tuple[str, int]:
    if scheme == "unix" and not where:
        return "", 0
    host, colon, port = where.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise _Malformed("after the scheme come host and port, as in localhost:9007")
    if (
        len(port) > _MOST_DIGITS
        or int(port) > _LARGEST_PORT
        or (scheme != "unix" and not int(port))
    ):
        raise _Malformed(f"a port is 1 to {_LARGEST_PORT}")
    return _host(host), int(port)


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        # RFC 6874 writes the `%` before a zone as %25; a bare one is understood as well.
        address, _, zone = host[1:-1].partition("%25")
        try:
            return str(ipaddress.IPv6Address(f"{address}%{unquote(zone)}" if zone else host[1:-1]))
        except ValueError:
            raise _Malformed(
                "in the square brackets stands an IPv6 address, with a zone as in [fe80::1%25eth0]"
            ) from None
    if not host.isprintable() or not set(host).isdisjoint(":[]@ \\"):
        raise _Malformed("a host is a name, an IPv4 address or an IPv6 address in square brackets")
    return host


def _message_type(path: str) -> str:
    protocol, slash, message_type = path.partition("/")
    if protocol != "amps":
        raise _Malformed("after host and port comes the protocol: /amps or /amps/<message type>")
    if "/" in message_type or (slash and not message_type):
        raise _Malformed("after /amps/ comes one message type, like json, and nothing more")
    return unquote(message_type)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(text: str) -> str:
    """A malformed connection string without what may be a secret.

    That is everything before an `@`, what is not a port behind a colon, and the value of an option
    that there is not.
    """
    location, mark, query = _USERINFO.sub(r"\1***@", text).partition("?")
    options = (
        option if (name := option.partition("=")[0]) in _OPTIONS else f"{name}=***"
        for option in query.split("&")
    )
    return _AFTER_COLON.sub(":***", location) + mark + ("&".join(options) if mark else "")
