from __future__ import annotations

import pytest

from haclient.errors import (
    AuthenticationError,
    BadFilter,
    CommandError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    NameInUse,
    SlowClient,
    StoreError,
    UsageError,
)
from haclient.protocol.commands import command_error
from haclient.protocol.messages import Message
from haclient.session.acks import (
    ANSWERS,
    Answer,
    PendingCommand,
    PendingCommands,
    disconnect_error,
    explained,
    is_refusal,
    loss,
    refused_publish,
)
from haclient.session.connection_state import refusal


class Waiter:
    """A pending command and how often it was woken."""

    def __init__(
        self,
        pending: PendingCommands,
        command_id: str,
        *,
        awaited: str = "processed",
    ) -> None:
        self.woken = 0
        self.command = PendingCommand(command_id, "subscribe", awaited=awaited, wake=self.wake)
        pending.add(self.command)

    def wake(self) -> None:
        self.woken += 1


def ack(
    command_id: str, kind: str = "processed", status: str = "success", why: str = ""
) -> Message:
    return Message(kind="ack", command_id=command_id, ack_type=kind, status=status, reason=why)


def test_the_awaited_ack_confirms_its_command_and_no_other() -> None:
    pending = PendingCommands()
    first, second = Waiter(pending, "1"), Waiter(pending, "2")
    pending.on_ack(ack("2"))
    assert (first.woken, second.woken) == (0, 1)
    assert second.command.ack is not None
    assert len(pending) == 1


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("is_failure", [True, False])
def test_what_an_ack_means_follows_from_its_status_and_type(
    *, is_failure: bool, is_awaited: bool
) -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1")
    pending.on_ack(
        ack("1", "processed" if is_awaited else "stats", "failure" if is_failure else "success")
    )
    meaning = ANSWERS[is_failure, is_awaited]
    assert waiter.woken == (meaning is not Answer.NOTHING)
    assert (waiter.command.ack is not None) == (meaning is Answer.CONFIRMED)
    assert (waiter.command.error is not None) == (meaning is Answer.REFUSED)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BadFilter("no"), True),
        (AuthenticationError("no"), True),
        (NameInUse("no"), True),
        (DisconnectedError("lost"), False),
        (HeartbeatLost("silent"), False),
    ],
)
def test_a_lost_connection_is_no_answer(error: HAClientError, *, expected: bool) -> None:
    assert is_refusal(error) == expected


def test_other_acks_of_a_command_are_swallowed_while_it_waits() -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1", awaited="stats")
    pending.on_ack(ack("1", "processed"))
    assert waiter.woken == 0
    pending.on_ack(ack("1", "stats"))
    assert waiter.woken == 1


@pytest.mark.row("CC37")
@pytest.mark.parametrize("kind", ["processed", "stats", "completed"])
def test_a_failure_of_any_type_refuses_the_command_with_the_servers_reason(kind: str) -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1")
    pending.on_ack(ack("1", kind, "failure", "bad filter"))
    assert isinstance(waiter.command.error, BadFilter)
    assert str(waiter.command.error) == "subscribe: bad filter"
    assert len(pending) == 0


def test_an_ack_for_nobody_is_swallowed() -> None:
    pending = PendingCommands()
    pending.on_ack(ack("9"))
    pending.on_ack(ack(""))
    assert len(pending) == 0


def test_a_retry_is_an_answer_too() -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1")
    pending.on_ack(ack("1", status="retry"))
    assert waiter.command.ack is not None


def test_a_forgotten_command_is_not_woken_by_a_late_ack() -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1")
    pending.forget("1")
    pending.forget("1")
    pending.on_ack(ack("1"))
    assert waiter.woken == 0


def test_a_lost_connection_fails_everyone_once() -> None:
    pending = PendingCommands()
    waiters = [Waiter(pending, str(number)) for number in range(3)]
    reason = DisconnectedError("the peer closed it")
    pending.fail_all(reason)
    pending.fail_all(reason)
    assert [waiter.woken for waiter in waiters] == [1, 1, 1]
    errors = [waiter.command.error for waiter in waiters]
    assert len(set(map(id, errors))) == 3, "each task may add its own notes"
    for error in errors:
        assert isinstance(error, DisconnectedError)
        assert str(error).endswith(": not confirmed: the peer closed it")
        assert error.__cause__ is reason


def test_two_commands_of_one_id_would_take_each_others_acks() -> None:
    pending = PendingCommands()
    Waiter(pending, "7")
    assert "7" in pending
    with pytest.raises(UsageError, match="'7' waits for its ack"):
        Waiter(pending, "7")
    pending.on_ack(ack("7"))
    assert "7" not in pending
    Waiter(pending, "7")


@pytest.mark.row("HA26")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("name in use", NameInUse),
        ("Slow Client", SlowClient),
        ("heartbeat", HeartbeatLost),
        ("auth failure", AuthenticationError),
        ("entitlement reset", AuthenticationError),
        ("transport disabled", DisconnectedError),
    ],
)
def test_the_class_says_why_and_the_text_has_the_servers_words(
    reason: str, kind: type[HAClientError]
) -> None:
    error = disconnect_error("server:9007", reason)
    assert type(error) is kind
    assert f"server:9007 closed the connection: {reason}" in str(error)


A_SLASH = "a field is written with a slash"


@pytest.mark.parametrize(
    ("reason", "fields", "hint"),
    [
        ("bad filter", {"c": "sow", "filter": "px > 10"}, A_SLASH),
        ("bad filter", {"c": "sow", "filter": "/px >"}, ""),
        ("bad filter", {"c": "sow"}, ""),
        ("invalid orderby", {"c": "sow", "orderby": "px"}, A_SLASH),
        ("invalid topic", {"c": "sow", "t": "prices"}, "--sow orders:/id"),
        ("invalid topic", {"c": "sow", "t": "/HACLIENT/queues"}, ""),
        ("invalid topic", {"c": "subscribe", "t": "prices"}, ""),
        ("invalid bookmark", {"c": "sow", "bm": "epoch"}, "--sow prices:/symbol,history"),
        ("invalid bookmark", {"c": "sow_and_subscribe", "bm": "0"}, "symbol,history"),
        ("invalid bookmark", {"c": "subscribe", "bm": "x"}, ""),
        (
            "invalid options",
            {"c": "subscribe", "opts": "conflation=1s"},
            "conflation_key (such as /symbol)",
        ),
        ("invalid options", {"opts": "conflation=1s,conflation_key=[/a]"}, ""),
        ("invalid options", {"opts": "oof"}, ""),
        ("bad sow key", {"c": "p"}, "the topic's key"),
        ("bad message", {"c": "p"}, "JSON for /amps/json"),
        ("not entitled", {"c": "p"}, ""),
    ],
)
def test_a_refusal_says_what_its_command_needs(
    reason: str, fields: dict[str, str | int], hint: str
) -> None:
    given = command_error("the command", reason)
    assert isinstance(given, CommandError)
    error = explained(given, fields)
    assert type(error) is type(given)
    assert (error.reason, error.detail) == (reason, "")
    assert str(error).startswith(f"the command: {reason}")
    assert hint in str(error)
    assert bool(hint) == (str(error) != str(given))


def test_after_a_detail_the_hint_is_an_example() -> None:
    given = command_error("sow on 'a'", "invalid bookmark", "'a' keeps no history")
    assert isinstance(given, CommandError)
    error = explained(given, {"c": "sow", "bm": "0"})
    assert error.detail == "'a' keeps no history"
    hint = "the reference broker keeps one with --sow prices:/symbol,history"
    assert str(error) == f"{given}: {hint}"
    key = command_error("publish 7", "bad sow key", "needs key field /symbol, found no value")
    assert isinstance(key, CommandError)
    assert explained(key, {}) is key


def test_a_refused_command_shows_the_detail_of_its_ack() -> None:
    pending = PendingCommands()
    waiter = Waiter(pending, "1")
    answer = ack("1", status="failure", why="bad filter")
    answer.detail = "expected a path at character 0, found 'px'"
    pending.on_ack(answer)
    error = waiter.command.error
    assert isinstance(error, BadFilter)
    assert (error.reason, error.detail) == ("bad filter", answer.detail)
    assert str(error) == f"subscribe: bad filter: {answer.detail}"


def test_a_refused_publish_has_its_number_and_the_facts_of_its_ack() -> None:
    answer = ack("", "persisted", "failure", "bad message")
    answer.sequence, answer.detail = 7, "not JSON"
    error = refused_publish("publish 7", answer)
    assert (error.reason, error.detail, error.sequence) == ("bad message", "not JSON", 7)
    assert str(error) == "publish 7: bad message: not JSON"
    unentitled = refused_publish("publish 8", ack("", "persisted", "failure", "not entitled"))
    assert (str(unentitled), unentitled.sequence) == ("publish 8: not entitled", 0)


def test_a_logon_is_refused_with_the_detail() -> None:
    error = refusal("invalid message type", "'jsno' is none of json, fix")
    assert str(error).endswith("invalid message type: 'jsno' is none of json, fix")


@pytest.mark.parametrize(
    ("error", "reason", "found"),
    [
        (OSError("reset"), "", "the connection to peer was lost: reset"),
        (OSError(), "", "the connection to peer was lost: OSError"),
        (OSError("reset"), "maintenance", "peer closed the connection: maintenance"),
        (DisconnectedError("peer closed the connection"), "", "peer closed the connection"),
        (HeartbeatLost("peer was silent for 2 s"), "maintenance", "peer was silent for 2 s"),
    ],
)
def test_what_ends_a_connection_is_told_in_the_words_of_who_knows_most(
    error: Exception, reason: str, found: str
) -> None:
    lost = loss(error, "peer", reason)
    assert str(lost) == found
    assert lost is error or lost.__cause__ is error


def test_an_error_of_this_client_is_no_loss() -> None:
    with pytest.raises(StoreError, match="disk"):
        loss(StoreError("no room on the disk"), "peer", "")
