from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

import haclient
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.transport.tasks import ClientThread, LoggedBy
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from support.client_threads import bound_thread
from support.forks import refusals
from support.tracked_log import TrackedLog


async def test_a_thread_of_its_own_is_refused_by_name() -> None:
    thread = bound_thread()
    thread.check("publish")

    def call() -> None:
        threading.current_thread().name = "worker-3"
        thread.check("publish")

    wanted = r"publish was called by the thread 'worker-3', but the client belongs to '.*', which"
    with pytest.raises(UsageError, match=wanted):
        await trio.to_thread.run_sync(call)


def test_before_the_block_is_entered_only_settings_may_be_changed() -> None:
    thread = ClientThread()
    with pytest.raises(UsageError, match=r"^publish of a client that was not entered: call it ins"):
        thread.check("publish")
    thread.check_setting("set_heartbeat")
    thread.check_caller("aclose of a stream")


async def test_after_the_block_nothing_may_be_called_but_what_closes_streams() -> None:
    thread = bound_thread()
    thread.check("publish")
    thread.release()
    for check in (thread.check, thread.check_setting):
        with pytest.raises(UsageError, match=r"^publish of a client that was left: make a new"):
            check("publish")
    thread.check_caller("aclose of a stream")
    with pytest.raises(UsageError, match="by the thread"):
        await trio.to_thread.run_sync(thread.check_caller, "aclose of a stream")


async def test_a_client_that_could_not_be_entered_is_as_before() -> None:
    thread = bound_thread()
    thread.release(was_open=False)
    with pytest.raises(UsageError, match="that was not entered"):
        thread.check("publish")
    thread.check_setting("set_heartbeat")


async def test_a_message_is_discarded_on_the_clients_thread_before_the_call_returns() -> None:
    log, where = TrackedLog(), list[int]()
    log.begin(acked=False, start="0")

    discard: Callable[[int], None] = log.discard

    def noting(number: int) -> None:
        where.append(threading.get_ident())
        discard(number)

    log.discard = noting  # which the discards of other threads call
    messages = [Message(number=log.log(f"7|{n}|")) for n in (1, 2)]
    owner = LoggedBy(log, bound_thread())
    for message in messages:
        message.owner = owner

    def work() -> bool:
        messages[0].discard()
        return log.tracker.is_discarded("7|1|")

    assert await trio.to_thread.run_sync(work)
    assert where == [threading.get_ident()]
    messages[1].discard()
    assert log.undiscarded_count == 0


def test_a_discard_after_the_trio_run_is_a_usage_error() -> None:
    log = TrackedLog()
    log.begin(acked=False, start="0")
    number, threads = log.log("7|1|"), list[ClientThread]()

    async def client() -> None:
        await trio.lowlevel.checkpoint()
        threads.append(bound_thread())

    trio.run(client)
    errors: list[UsageError] = []

    def work(message: Message) -> None:
        try:
            message.discard()
        except UsageError as error:
            errors.append(error)

    for thread in (threads[0], ClientThread()):
        message = Message(number=number, owner=LoggedBy(log, thread))
        worker = threading.Thread(target=work, args=[message])
        worker.start()
        worker.join()
    assert ["never entered" in str(error) for error in errors] == [False, True]
    assert "after the client was left" in str(errors[0])
    assert log.undiscarded_count == 1


async def test_a_second_trio_run_is_not_blocked_and_told_how_to_discard() -> None:
    log = TrackedLog()
    log.begin(acked=False, start="0")
    message = Message(number=log.log("7|1|"), owner=LoggedBy(log, bound_thread()))

    async def other_run() -> None:
        with pytest.raises(UsageError, match=r"trio.to_thread.run_sync\(message.discard\)"):
            message.discard()
        assert log.undiscarded_count == 1
        await trio.to_thread.run_sync(message.discard)

    await trio.to_thread.run_sync(lambda: trio.run(other_run))
    assert log.undiscarded_count == 0


async def test_a_discard_after_the_store_was_closed_is_refused_in_every_thread(
    tmp_path: Path,
) -> None:
    store = LoggedBookmarkStore(tmp_path / "log")
    log = store.subscription("s1")
    log.begin(acked=False, start="0")
    messages = [
        Message(number=log.log(f"7|{n}|"), owner=LoggedBy(log, bound_thread())) for n in (1, 2, 3)
    ]
    messages[0].discard()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        messages[1].discard()
    with pytest.raises(UsageError, match="closed"):
        await trio.to_thread.run_sync(messages[2].discard)


async def test_a_forked_process_has_no_thread_of_the_client() -> None:
    """Not even the one that forked, which has the same ident."""
    log, thread = TrackedLog(), bound_thread()
    log.begin(acked=False, start="0")
    message = Message(number=log.log("7|1|"), owner=LoggedBy(log, thread))

    def call() -> None:
        with pytest.raises(UsageError, match=r"^publish was called in a process that was forked"):
            thread.check("publish")
        with pytest.raises(UsageError, match=r"^message.discard\(\) was called in a process that"):
            message.discard()
        assert log.undiscarded_count == 1
        thread.call("message.ack()", print)

    def enter_again() -> None:
        thread.bind()
        thread.check("publish")
        message.discard()
        raise UsageError  # all of this was possible

    assert refusals(call, enter_again, lambda: ClientThread().check_setting("publish")) == 2
    thread.check("publish")
    message.discard()
    assert log.undiscarded_count == 0


def test_a_client_of_trio_is_refused_where_gevent_has_replaced_what_trio_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else `trio.run` fails: module 'select' has no attribute 'epoll'."""
    gevent = SimpleNamespace(is_module_patched=lambda name: name == "select")
    for name in ("Client", "HAClient"):
        monkeypatch.delitem(vars(haclient), name, raising=False)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "gevent.monkey", gevent)
            with pytest.raises(UsageError, match=r"patch_all\(thread=False, select=False\)"):
                getattr(haclient, name)
        assert getattr(haclient, name).__name__ == name
