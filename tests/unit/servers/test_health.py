"""No fail-over to a server that lacks what was acknowledged."""

from __future__ import annotations

import json
import random
from typing import ClassVar

import pytest
import trio
from typing_extensions import override

from haclient.errors import ConnectionRefused, DisconnectedError, UsageError
from haclient.servers.chooser import (
    ConnectionInfo,
    DefaultServerChooser,
    FailureCountServerChooser,
    PriorityServerChooser,
    RandomServerChooser,
)
from haclient.servers.health import MIN_TRIES, HealthAwareServerChooser
from support.clock import in_virtual_time
from support.lengths import length

pytestmark = in_virtual_time

A, B = "tcp://a:9007/amps/json", "tcp://b:9007/amps/json"
ADMIN = {A: "http://a:8085/", B: "http://b:8085"}
ERROR = DisconnectedError("connection refused")


class Servers:
    """Two admin interfaces: of each server, whether it runs and has downgraded the other one."""

    def __init__(self) -> None:
        self.is_up = {"a": True, "b": True}
        self.has_downgraded = {"a": False, "b": False}
        self.asked: list[float] = []

    async def ask(self, url: str, timeout: float) -> bytes:  # as the real one
        assert url.endswith(":8085/amps/instance/replication.json")
        self.asked.append(trio.current_time())
        name = url[7]
        if not self.is_up[name]:
            await trio.sleep(timeout)
            raise ConnectionRefused("it is down")
        other = "b" if name == "a" else "a"
        destination = {
            "name": other,
            "address": f"tcp://{other}:9007",
            "configured_type": "sync",
            "replication_type": "async" if self.has_downgraded[name] else "sync",
            "messages_behind": 5,
        }
        instance = {"name": name, "replication": [destination]}
        return json.dumps({"amps": {"instance": instance}}).encode()


@pytest.mark.row("SC12")
async def test_the_last_word_of_a_server_that_has_failed_counts() -> None:
    servers = Servers()
    chooser = HealthAwareServerChooser(ADMIN, ask=servers.ask)
    assert await chooser.current_uri() == A
    chooser.report_success({})
    servers.has_downgraded["a"] = True
    assert not await chooser.is_move_due(0.0)  # asked while the client is live
    servers.is_up["a"] = False
    assert await chooser.current_uri() == A
    chooser.report_failure(ERROR, {"uri": A})
    assert await chooser.current_uri() == A  # and not B


async def test_an_admin_interface_that_falls_silent_is_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers()
    chooser = HealthAwareServerChooser(ADMIN, ask=servers.ask)
    for is_up in (False, False, True, False):
        servers.is_up["b"] = is_up
        assert await chooser.current_uri() == A
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == 2 * ["http://b:8085 does not answer: its last answer counts: it is down"]


@pytest.mark.row("SC12")
async def test_a_client_waits_while_every_server_is_refused_and_ends_with_the_reasons() -> None:
    servers = Servers()
    servers.has_downgraded = {"a": True, "b": True}
    chooser = HealthAwareServerChooser(ADMIN, ask=servers.ask, patience=20.0)
    began = trio.current_time()
    assert await chooser.current_uri() == ""
    assert trio.current_time() == began + 20.0
    assert chooser.error() == (
        "every server is refused: tcp://a:9007/amps/json: b has downgraded it, 5 messages behind; "
        "tcp://b:9007/amps/json: a has downgraded it, 5 messages behind"
    )
    servers.has_downgraded["b"] = False
    assert await chooser.current_uri() == A
    chooser.report_failure(ERROR, {"uri": A})
    assert chooser.error() == "connection refused"


async def failed_over(servers: Servers) -> HealthAwareServerChooser:
    """The chooser of a client that prefers A and is live with B."""
    inner = PriorityServerChooser([A, B], healthy_for=10)
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, ask=servers.ask)
    chooser.report_failure(ERROR, {"uri": A})
    assert await chooser.current_uri() == B
    chooser.report_success({})
    return chooser


@pytest.mark.row("SC12", "SC8")
async def test_a_client_returns_to_a_better_server_only_when_that_one_has_caught_up() -> None:
    servers = Servers()
    chooser = await failed_over(servers)
    servers.has_downgraded["b"] = True
    for now in (0.0, 5.0, 10.0, 15.0):
        ((uri, _),) = chooser.to_check()
        chooser.report_check(uri, None, now)
        assert not await chooser.is_move_due(now)
    servers.has_downgraded["b"] = False
    due = list[float]()
    for now in (20.0, 25.0, 30.0, 35.0):
        chooser.report_check(A, None, now)
        if await chooser.is_move_due(now):
            due.append(now)
            break
    assert due == [35.0]  # 25 was the first check after the word of B
    chooser.report_move()
    assert await chooser.current_uri() == A


@pytest.mark.row("SC12", "SC8")
async def test_a_better_server_that_was_downgraded_since_its_last_check_is_not_returned_to() -> (
    None
):
    servers = Servers()
    chooser = await failed_over(servers)
    chooser.report_check(A, None, 0.0)
    assert not await chooser.is_move_due(0.0)
    chooser.report_check(A, None, 10.0)
    servers.has_downgraded["b"] = True
    assert not await chooser.is_move_due(10.0)


async def test_numbers_that_cannot_be_are_refused() -> None:
    for patience in (-1, 46):
        with pytest.raises(UsageError, match="patience is a number of seconds from 0 to 45"):
            HealthAwareServerChooser(ADMIN, patience=patience)
    with pytest.raises(
        UsageError, match="check_every is a finite number of seconds, above 0, not 0"
    ):
        HealthAwareServerChooser(ADMIN, check_every=0)
    with pytest.raises(
        UsageError, match="max_behind is a whole number of at least 0 or None, not -1"
    ):
        HealthAwareServerChooser(ADMIN, max_behind=-1)


@pytest.mark.row("SC12")
async def test_the_wait_ends_with_the_patience_however_seldom_servers_are_asked() -> None:
    servers = Servers()
    servers.has_downgraded = {"a": True, "b": True}
    chooser = HealthAwareServerChooser(ADMIN, ask=servers.ask, patience=30.0, check_every=100.0)
    began = trio.current_time()
    assert await chooser.current_uri() == ""
    assert trio.current_time() == began + 30.0
    assert len(servers.asked) == 4  # both at the beginning and at the end


@pytest.mark.row("SC12", "AT9")
async def test_another_chooser_is_told_of_a_refusal_without_the_password() -> None:
    class Recorder(DefaultServerChooser):
        infos: ClassVar[list[ConnectionInfo]] = []

        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            self.infos.append(info)
            super().report_failure(error, info)

    servers = Servers()
    servers.has_downgraded["b"] = True
    inner = Recorder(["tcp://user:secret@a:9007/amps/json", B])
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, ask=servers.ask)
    assert await chooser.current_uri() == B
    assert inner.infos == [{"uri": "tcp://user@a:9007/amps/json"}]


@pytest.mark.row("SC12", "SC9")
@pytest.mark.parametrize("seed", range(length(60)))
async def test_the_servers_that_are_not_refused_are_found_in_any_order(seed: int) -> None:
    """A new order of the inner chooser may begin with the one that the last order ended with."""
    servers = Servers()
    servers.has_downgraded["a"] = True
    uris = [A, B, "tcp://c:9007/amps/json"]

    async def ask(url: str, timeout: float) -> bytes:
        if url[7] == "c":
            return json.dumps({"amps": {"instance": {"name": "c", "replication": []}}}).encode()
        return await servers.ask(url, timeout)

    chooser = HealthAwareServerChooser(
        {uri: f"http://{uri[6]}:8085" for uri in uris},
        inner=RandomServerChooser(uris, source=random.Random(seed)),
        patience=0,
        ask=ask,
    )
    for _ in range(6):
        uri = await chooser.current_uri()
        assert uri in {A, "tcp://c:9007/amps/json"}
        chooser.report_failure(ERROR, {"uri": uri})


async def test_any_error_of_ask_is_an_interface_that_does_not_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers()
    servers.has_downgraded["a"] = True

    async def ask(url: str, timeout: float) -> bytes:
        if url[7] == "b":
            with trio.fail_after(timeout):
                await trio.sleep_forever()
        return await servers.ask(url, timeout)

    chooser = HealthAwareServerChooser(ADMIN, ask=ask)
    assert await chooser.current_uri() == A
    assert "http://b:8085 does not answer: its last answer counts: TooSlowError" in caplog.text
    chooser.report_failure(ERROR, {"uri": A})
    assert await chooser.current_uri() == A  # by the word of the other one


C = "tcp://c:9007/amps/json"


def downgraded() -> Servers:
    """Servers of which each has downgraded the other one."""
    servers = Servers()
    servers.has_downgraded = {"a": True, "b": True}
    return servers


@pytest.mark.row("SC12")
async def test_servers_of_which_nothing_is_known_are_tried_once_all_others_are_refused() -> None:
    inner = DefaultServerChooser([A, B, C])
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, patience=0, ask=downgraded().ask)
    assert await chooser.current_uri() == C


@pytest.mark.row("SC12", "SC9")
@pytest.mark.parametrize("seed", range(length(60)))
async def test_each_server_of_the_inner_chooser_is_found_in_one_round(seed: int) -> None:
    uris = [A, B, *(f"tcp://more{number}:9007/amps/json" for number in range(seed % 4 + 1))]
    inner = RandomServerChooser(uris, source=random.Random(seed))
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, patience=0, ask=downgraded().ask)
    found = set[str]()
    for _ in range(3 * len(uris)):
        uri = await chooser.current_uri()
        assert uri not in {"", A, B}
        found.add(uri)
        chooser.report_failure(ERROR, {"uri": uri})
    assert found == set(uris[2:])


class Repeating(DefaultServerChooser):
    """Gives each server several times in a row."""

    def __init__(self, uris: list[str], times: float) -> None:
        super().__init__(uris)
        self.times = times
        self.given = 0

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self.given += 1
        if self.given % self.times == 0:
            super().report_failure(error, info)


@pytest.mark.row("SC12")
async def test_a_chooser_that_gives_a_server_several_times_in_a_row_comes_to_the_next_one() -> None:
    inner = Repeating([A, B, C], times=5)
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, patience=0, ask=downgraded().ask)
    assert await chooser.current_uri() == C


@pytest.mark.row("SC12")
async def test_a_round_ends_although_the_inner_chooser_gives_the_same_server_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = Repeating([A, B, C], times=float("inf"))
    servers = downgraded()
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, patience=10, ask=servers.ask)
    assert await chooser.current_uri() == ""
    assert len(servers.asked) == 2 * 3  # at 0, 5 and 10 seconds
    assert inner.given == 3 * MIN_TRIES
    reason = chooser.error().removeprefix("every server is refused: ")
    assert [each.message for each in caplog.records] == [f"not used: {reason}"] * 3


@pytest.mark.row("SC12", "SC10")
async def test_refusals_do_not_end_the_client_before_its_patience_does() -> None:
    """A chooser that ends after failures in a row counts attempts, and no server was tried."""
    servers = downgraded()
    inner = FailureCountServerChooser([A, B], limit=2, ends=True)
    chooser = HealthAwareServerChooser(ADMIN, inner=inner, patience=20.0, ask=servers.ask)
    began = trio.current_time()
    assert await chooser.current_uri() == ""
    assert trio.current_time() == began + 20.0
    assert chooser.error().startswith("every server is refused: tcp://a")
    servers.has_downgraded["a"] = False
    for _ in range(3):
        assert await chooser.current_uri() == B
        chooser.report_failure(ERROR, {"uri": B})
    began = trio.current_time()
    assert await chooser.current_uri() == ""  # B has failed too often, and A is refused
    assert trio.current_time() == began + 20.0
    servers.has_downgraded["b"] = False
    for _ in range(3):
        assert await chooser.current_uri() == A
        chooser.report_failure(ERROR, {"uri": A})
    assert await chooser.current_uri() == ""
    assert chooser.error() == "connection refused"
