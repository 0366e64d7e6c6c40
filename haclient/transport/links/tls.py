"""TLS over another `Link`, for clients and for the reference broker.

`ssl.MemoryBIO` keeps the verbs non-blocking: records are made and read in memory, and the inner
link carries them. The receiving task sends nothing, except for what the TLS library itself has to
answer.

The files of a URI are read for each connection, so that renewed certificates are used.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final, NoReturn, cast

from typing_extensions import override

from haclient.errors import ConnectionRefused, UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.link import LayeredLink, Link

RECEIVE_BYTES: Final = 256 * 1024
"""How much is taken from the inner link at a time."""

SEND_BYTES: Final = 64 * 1024
"""How much one call of `try_send` accepts: it becomes records in memory, which the inner link may
take later."""

_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE"}
)
_WANTS_CERTIFICATE: Final = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"}
)
_REFUSES_CERTIFICATE: Final = frozenset(
    {"TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED"}
)
_OTHER_HOST: Final = frozenset({62, 64})  # of a host name, of an IP address


class TlsLink(LayeredLink):
    """A TLS connection; call `handshake` before anything else.

    Args:
        inner: What carries the records. It is closed with this link.
        context: Certificates, trust and versions.
        server_name: The host name that the server's certificate has to be for, of a client; `None`
            makes this the server's side.
    """

    def __init__(self, inner: Link, context: ssl.SSLContext, *, server_name: str | None) -> None:
        super().__init__(inner)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._is_open = False

    async def handshake(self) -> None:
        """Complete the handshake; the caller limits the time.

        Raises:
            OSError: It failed, or the peer closed the connection.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.wait_writable()
                while (count := self._fill()) is None:
                    await self._inner.wait_readable()
                if count == 0:
                    raise ConnectionResetError("closed during the TLS handshake") from None
            except ssl.SSLError:
                self._flush()  # the alert says why, if there is room for it
                raise
            else:
                await self.wait_writable()
                self._is_open = True
                return

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        if not self._flush():
            return None
        try:
            count = self._tls.write(memoryview(data)[:SEND_BYTES])
        except ssl.SSLError as error:
            raise _as_loss(error) from error
        self._flush()
        return count

    @override
    def recv_into(self, buffer: memoryview) -> int | None:
        while (received := self._read(buffer)) is None:
            if self._fill() is None:
                return None
        return received

    def _read(self, buffer: memoryview) -> int | None:
        """Take what can be decrypted: its size, 0 at the end, `None` when records are missing."""
        received = 0
        try:
            while received < len(buffer):  # a record has at most 16 KiB
                rest = buffer[received:]
                count = cast("int", self._tls.read(len(rest), rest))  # with a buffer, a count
                if not count:  # the peer has ended the connection
                    return received
                received += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not received:
                raise _as_loss(error) from error
        with contextlib.suppress(OSError):  # what has arrived is read first: its end says why
            self._flush()  # what the library has to answer, such as to a change of keys
        return received or None

    @override
    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):  # there is no answer yet, or the link is broken
                self._tls.unwrap()  # writes the end of the connection
            with contextlib.suppress(OSError):  # broken: nobody reads the end
                self._flush()
        self._inner.close()

    def _fill(self) -> int | None:
        """Take records from the inner link; as `recv_into`."""
        count = self._inner.recv_into(self._buffer)
        if count:
            self._incoming.write(self._buffer[:count])
        elif count == 0:
            self._incoming.write_eof()
        return count

    @override
    def _flush(self) -> bool:
        if self._outgoing.pending:
            self._put(self._outgoing.read())
        return super()._flush()


def _as_loss(error: ssl.SSLError) -> OSError:
    """An error of an open connection, in words for people."""
    if isinstance(error, ssl.SSLEOFError):
        return ConnectionResetError("the connection was cut without an end of TLS")
    return OSError(tls_reason(error))


def tls_reason(error: OSError) -> str:
    """What went wrong, in words for people."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    if not reason:
        return f"TLS: {error.strerror or error}"
    if reason in _NOT_TLS:
        return "the peer does not speak TLS"
    if reason in _WANTS_CERTIFICATE:
        return "TLS: the peer wants a certificate of ours: give cert=FILE and key=FILE"
    if reason in _REFUSES_CERTIFICATE:
        return "TLS: the peer does not accept our certificate"
    return f"TLS: {reason.lower().replace('_', ' ')}"


# -- the client's side ---------------------------------------------------------------------------


def client_context(uri: Uri) -> ssl.SSLContext:
    """The context for a URI: the system's authorities, unless it names some.

    Raises:
        UsageError: A file of the URI cannot be read or used.
    """
    if uri.ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody yet
        load_authorities(context, uri.ca, what=uri.safe)
    else:
        context = ssl.create_default_context()
    if not uri.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if uri.cert:
        load_certificate(context, uri.cert, uri.key, what=uri.safe)
    return context


def load_authorities(context: ssl.SSLContext, file: str, *, what: str) -> None:
    """Load the certificates of the authorities to trust.

    Args:
        context: Where to.
        file: The certificates, in PEM.
        what: What they are for, for the error.

    Raises:
        UsageError: The file cannot be read or used.
    """
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{what}: the authorities of {file}: {_file_error(error)}") from error


def load_certificate(context: ssl.SSLContext, cert: str, key: str, *, what: str) -> None:
    """Load our own certificate and its key.

    Args:
        context: Where to.
        cert: The file with the certificate, and those between it and the authority.
        key: The file with the key; empty if that is in the first file, too.
        what: What they are for, for the error.

    Raises:
        UsageError: A file cannot be read or used.
    """

    def refuse() -> NoReturn:  # instead of a question on the terminal
        raise UsageError(
            f"{what}: the key {key or cert} is encrypted: decrypt it, or give an ssl_context that "
            "has it"
        )

    try:
        context.load_cert_chain(cert, key or None, password=refuse)
    except (OSError, ssl.SSLError) as error:
        files = f"cert={cert}" + (f", key={key}" if key else "")
        why = _certificate_error(error, cert, key or cert)
        raise UsageError(f"{what}: {files}: {why}") from error


def _certificate_error(error: OSError, cert: str, key: str) -> str:
    """What is wrong with our certificate or its key; OpenSSL does not name the file."""
    if not isinstance(error, ssl.SSLError):
        return _file_error(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if not _has_block(cert, b"CERTIFICATE"):
        return f"{cert} has no certificate in PEM"
    if not _has_block(key, b"PRIVATE KEY"):
        return f"{key} has no private key: give key=FILE"
    return _file_error(error)


def _has_block(file: str, kind: bytes) -> bool:
    """Whether a file has a block of PEM of this kind."""
    with open(file, "rb") as found:  # noqa: PTH123  # a path as OpenSSL takes it
        return kind + b"-----" in found.read()


def _file_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate or key that can be used ({error.reason or error})"
    return error.strerror or str(error)


async def connect_tls(inner: Link, uri: Uri, context: ssl.SSLContext) -> TlsLink:
    """The client's side of a TLS connection, after the handshake.

    Args:
        inner: A connection to the server; it is closed if this fails.
        uri: Whose host the certificate has to be for.
        context: `client_context`, or the application's own.

    Raises:
        ConnectionRefused: The handshake failed.
    """
    try:
        # A zone means something on this machine alone (RFC 6874): no certificate names it.
        link = TlsLink(inner, context, server_name=uri.host.partition("%")[0])
        await link.handshake()
    except OSError as error:
        inner.close()
        why = _handshake_error(error)
        raise ConnectionRefused(f"cannot connect to {uri.safe}: {why}") from error
    except BaseException:  # cancelled
        inner.close()
        raise
    return link


def _handshake_error(error: OSError) -> str:
    """Why a handshake failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_HOST:
            return f"the certificate is for another host: {error.verify_message}"
        return (
            f"the certificate is not trusted: {error.verify_message}: give the certificate of its "
            "authority with ca=FILE or an ssl_context"
        )
    if isinstance(error, ssl.SSLError) and error.reason not in _NOT_TLS:
        return tls_reason(error)
    return "the server does not speak TLS here, or cut the handshake: is tcp:// meant?"
