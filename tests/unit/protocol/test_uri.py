from __future__ import annotations

import pickle
from typing import Any

import pytest

from haclient.errors import UsageError
from haclient.protocol.uri import Uri


@pytest.mark.row("AT1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://localhost:9007/amps/json", {"message_type": "json"}),
        ("tcp://localhost:9007/amps", {}),
        ("TCP://localhost:9007/amps", {}),
        ("tcps://localhost:9007/amps/nvfix", {"scheme": "tcps", "message_type": "nvfix"}),
        ("tcp://joe@localhost:9007/amps", {"user": "joe"}),
        ("tcp://joe:pw@localhost:9007/amps", {"user": "joe", "password": "pw"}),
        ("tcp://joe:@localhost:9007/amps", {"user": "joe"}),
        ("tcp://j%40e:p%3A%2F%25@localhost:9007/amps", {"user": "j@e", "password": "p:/%"}),
        ("tcp://joe:a@b:c@localhost:9007/amps", {"user": "joe", "password": "a@b:c"}),
        ("tcp://localhost:9007/amps/my%20type", {"message_type": "my type"}),
        ("tcp://[fe80::1%25eth0]:9007/amps", {"host": "fe80::1%eth0"}),
        ("tcp://[fe80::1%25a%2Db]:9007/amps", {"host": "fe80::1%a-b"}),
        ("tcp://[fe80::1%2525]:9007/amps", {"host": "fe80::1%25"}),
        ("tcp://[fe80::1%eth0]:9007/amps", {"host": "fe80::1%eth0"}),  # as people write it
    ],
)
def test_the_parts_of_a_connection_string_are_read(text: str, expected: dict[str, Any]) -> None:
    defaults = {"scheme": "tcp", "host": "localhost", "port": 9007}
    assert Uri.parse(text) == Uri(**{**defaults, **expected})
    assert Uri.parse(text).protocol == "amps"


@pytest.mark.row("AT1")
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("bind=127.0.0.1", {"bind": "127.0.0.1"}),
        ("tcp_nodelay=true", {"tcp_nodelay": True}),
        ("tcp_nodelay=N", {"tcp_nodelay": False}),
        ("tcp_keepalive=Yes", {"tcp_keepalive": True}),
        ("tcp_keepalive=0", {"tcp_keepalive": False}),
        ("tcp_sndbuf=65536&tcp_rcvbuf=1024", {"tcp_sndbuf": 65536, "tcp_rcvbuf": 1024}),
        ("tcp_linger=0", {"tcp_linger": 0}),
        ("ip_protocol_prefer=IPv6", {"ip_protocol_prefer": "ipv6"}),
        ("compression=zlib", {"compression": "zlib"}),
        ("http_preflight=t", {"http_preflight": True}),
        ("pretty=1&", {"pretty": True}),
        ("pretty=1&pretty=f", {"pretty": False}),
        ("ca=%2Fetc/ca.pem&verify=no", {"ca": "/etc/ca.pem", "verify": False}),
        ("cert=a&key=b", {"cert": "a", "key": "b"}),
        ("", {}),
    ],
)
def test_every_option_is_read_by_its_type(option: str, expected: dict[str, Any]) -> None:
    uri = Uri.parse(f"tcps://h:1/amps?{option}")
    assert uri == Uri(scheme="tcps", host="h", port=1, **expected)
    assert Uri.parse(str(uri)) == uri


@pytest.mark.row("AT1")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("unix://localhost:0/amps/json?path=/tmp/a%20b.sock", "/tmp/a b.sock"),  # noqa: S108  # a name in a text, no file is made
        ("unix:///amps/json?path=amps.sock", "amps.sock"),
        ("unix:///run/amps.sock", "/run/amps.sock"),
    ],
)
def test_a_unix_socket_has_a_file_name(text: str, path: str) -> None:
    uri = Uri.parse(text)
    assert (uri.scheme, uri.path, uri.address, uri.port) == ("unix", path, path, 0)
    assert Uri.parse(str(uri)).path == path


@pytest.mark.parametrize(
    ("text", "host", "address"),
    [
        ("tcp://[::1]:9007/amps", "::1", "[::1]:9007"),
        ("tcp://u:p@[2001:DB8::1]:9007/amps", "2001:db8::1", "[2001:db8::1]:9007"),
        ("tcp://10.0.0.1:9007/amps", "10.0.0.1", "10.0.0.1:9007"),
    ],
)
def test_a_host_may_be_an_address_of_either_family(text: str, host: str, address: str) -> None:
    uri = Uri.parse(text)
    assert (uri.host, uri.address, uri.port) == (host, address, 9007)


@pytest.mark.parametrize("zone", ["eth0", "25", "25eth0", "a b"])
def test_an_address_with_a_zone_can_be_read_back(zone: str) -> None:
    uri = Uri(scheme="tcp", host=f"fe80::1%{zone}", port=9007, message_type="json")
    assert Uri.parse(uri.safe) == uri
    assert uri.safe.startswith("tcp://[fe80::1%25")


@pytest.mark.row("AT12")
def test_the_password_is_shown_nowhere() -> None:
    uri = Uri.parse("tcp://joe:secret@h:1/amps/json?pretty=true")
    assert uri.password == "secret"  # noqa: S105  made up
    assert str(uri) == uri.safe == "tcp://joe@h:1/amps/json?pretty=true"
    assert "secret" not in f"{uri!r} {uri}"
    assert pickle.loads(pickle.dumps(uri)) == uri  # noqa: S301  our own bytes


BAD = [
    ("", "begins with tcp:// or tcps://"),
    ("localhost:9007", "begins with"),
    ("http://h:1/amps", "begins with tcp:// or tcps:// or unix:// or mem://, such as tcp://"),
    ("ws://h:1/amps", "begins with"),
    ("tcp://h/amps", "host and port"),
    ("tcp://:1/amps", "host and port"),
    ("tcp://h:/amps", "host and port"),
    ("tcp://h:x/amps", "host and port"),
    ("tcp://h:\u0661/amps", "host and port"),
    ("tcp://h:0/amps", "port is 1 to 65535"),
    ("tcp://h:65536/amps", "port is 1 to 65535"),
    ("tcp://h:" + "9" * 5000 + "/amps", "port is 1 to 65535"),
    ("tcp://::1:9007/amps", "square brackets"),
    ("tcp://[nope]:9007/amps", "IPv6"),
    ("tcp://[nope%25eth0]:9007/amps", "with a zone as in"),
    ("tcp://a b:1/amps", "a host is"),
    ("tcp://h:1", "protocol: /amps"),
    ("tcp://h:1/", "protocol: /amps"),
    ("tcp://h:1/json", "protocol: /amps"),
    ("tcp://h:1/fix/json", "protocol: /amps"),
    ("tcp://h:1/amps/", "one message type"),
    ("tcp://h:1/amps/json/x", "one message type"),
    ("tcp://h:1/amps?speed=3", "'speed'"),
    ("tcp://h:1/amps?tcp_nodelay=maybe", "tcp_nodelay is true or false, not 'maybe'"),
    ("tcp://h:1/amps?tcp_nodelay", "tcp_nodelay is true or false"),
    ("tcp://h:1/amps?tcp_sndbuf=-1", "tcp_sndbuf is a number"),
    ("tcp://h:1/amps?tcp_sndbuf=99999999999", "tcp_sndbuf is a number"),
    ("tcp://h:1/amps?tcp_linger=2147483648", "tcp_linger is a number up to 2147483647"),
    ("tcp://h:1/amps?bind=here", "bind is an IP address"),
    ("tcp://h:1/amps?compression=gzip", "compression is zlib"),
    ("tcp://h:1/amps?ip_protocol_prefer=6", "ipv4 or ipv6"),
    ("tcp://h:1/amps?ca=/x", "write tcps://"),
    ("tcp://h:1/amps?path=/x", "path is for unix"),
    ("tcps://h:1/amps?key=x", "key needs cert"),
    ("tcps://h:1/amps?ca=", "ca is a file name"),
    ("unix://h:0/amps/json", "path=<file name"),
    ("unix://", "path=<file name"),
]


@pytest.mark.row("AT1")
@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_wrong_with_a_connection_string_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Uri.parse(text)


@pytest.mark.row("AT12")
@pytest.mark.parametrize(
    "text",
    [
        "tcp://joe:secret@h/amps",
        "joe:secret@h:1/amps",
        "ftp://joe:secret@h:1/amps",
        "tcp://joe:secret@h:1/amps?x=1",
        "tcp://joe:a?secret@h:1/amps",
        "tcp://joe:a/secret@h:1/amps",
        "tcp://joe:1/secret@h:1/amps?pretty=1",
        "tcp://joe:secret@@[h:1/amps",
        "tcp:/joe:secret@h",
        "tcp://joe:a?b=secret&c=@h:1/amps",
        "tcp://joe:secret\n@h/amps",
        "tcp://joe:secret",
        "tcp://joe:secret/x",
        "tcp://h:1/amps?password=secret",
        "tcp://h:1/amps?x=secret&tcp_nodelay=maybe",
        "joe:secret",
    ],
)
def test_no_error_shows_a_password(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Uri.parse(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_is_no_secret_of_a_malformed_uri_is_shown() -> None:
    for text in ("tcp://a:9007/amqp/json", "tcp://a:9007/amps?tcp_nodelay=maybe", "tcp://a:123456"):
        with pytest.raises(UsageError) as caught:
            Uri.parse(text)
        assert repr(text.replace("123456", "***")) in str(caught.value)
