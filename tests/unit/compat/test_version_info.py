"""Versions of servers."""

from __future__ import annotations

import pytest

import haclient.blocking
from haclient import compat
from haclient.compat.version_info import VersionInfo
from haclient.protocol.identity import version_number
from support.broker_thread import BrokerThread

pytestmark = pytest.mark.row("B18")


def test_versions_compare_by_their_numbers_with_each_other_and_with_texts() -> None:
    version = VersionInfo("5.3.10.2.abc123")
    assert version > VersionInfo("5.3.9")
    assert version >= "5.3.10"
    assert version < "6.0"
    assert version == VersionInfo("5.3.10.2") == "5.3.10.2"
    assert version != VersionInfo("5.3.10.3")
    assert version != 5
    assert {version, VersionInfo("5.3.10.2")} == {version}
    assert (str(version), repr(version)) == ("5.3.10.2.abc123", "VersionInfo('5.3.10.2.abc123')")
    with pytest.raises(TypeError):
        assert version < 6  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]  # on purpose


def test_the_version_of_a_server_has_the_number_that_haclient_gives(
    plain: compat.Client, broker: BrokerThread
) -> None:
    assert compat.Client("early-2").get_server_version_info() < "0.0.0.1"
    version = plain.get_server_version_info()
    assert str(version) == plain.get_server_version() != ""
    with haclient.blocking.HAClient("version-1", servers=[broker.uri]) as client:
        assert version.number == version_number(client.connection_info["server_version"]) > 0
