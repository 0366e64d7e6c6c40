"""`haclient subscribe` before it connects: where to begin, and as whom."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from haclient.cli.app import run
from haclient.cli.output import OutputWriter
from haclient.cli.subscribe import SubscribeArguments, SubscribeRun, print_messages
from haclient.errors import TimedOut, UsageError
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.session.subscriptions import Marker
from haclient.streams import MessageStream
from haclient.transport.message_queue import MessageQueue
from haclient.transport.tasks import open_nursery
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, Bookmark, BookmarkRange, Timestamp
from support.command_line import CommandLine
from support.listening import reached
from support.process import running_broker, start_haclient


def request(
    *,
    bookmark: str | None = None,
    store: Path | None = None,
    sub_id: str | None = None,
    count: int | None = None,
    timeout: float | None = None,
    replay_timeout: float | None = None,
) -> SubscribeArguments:
    return SubscribeArguments(
        servers=("tcp://a:1/amps",),
        client_name=None,
        topic="a,b*%",
        filter="",
        bookmark=bookmark,
        sub_id=sub_id,
        store=store,
        count=count,
        timeout=timeout,
        as_json=False,
        replay_timeout=replay_timeout,
    )


@pytest.mark.row("CLI3")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("epoch", type(EPOCH)),
        ("NOW", type(NOW)),
        ("0", type(EPOCH)),
        ("12|34|", Bookmark),
        ("20240102T030405Z", Timestamp),
        ("[0:12|34|)", BookmarkRange),
    ],
)
def test_a_replay_begins_where_the_bookmark_says(text: str, kind: type[object]) -> None:
    assert isinstance(request(bookmark=text).start, kind)


def test_recent_is_what_a_store_is_for() -> None:
    store = Path("store")
    assert request(store=store).start is MOST_RECENT
    assert request(store=store, bookmark="recent").start is MOST_RECENT
    assert request().start is None


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("bookmark", "told"),
    [
        ("recent", "--store"),
        ("yesterday", "yesterday"),
        ("never", "epoch, now, recent, a bookmark"),
    ],
)
def test_a_bookmark_that_means_nothing_is_a_mistake(bookmark: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        _ = request(bookmark=bookmark).start


def test_the_sub_id_is_the_topic_without_what_the_wire_would_split() -> None:
    assert request().stable_sub_id == "a%2Cb%2A%25"
    assert request(sub_id="mine").stable_sub_id == "mine"
    assert dataclasses.replace(request(), topic="all").stable_sub_id == "%61ll", (
        "a word of unsubscribe"
    )


@pytest.mark.row("CLI9")
def test_the_mistake_comes_before_any_file_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    words = ("subscribe", "--server", "tcp://a:1/amps", "--topic", "t", "--bookmark", "soon")
    assert run([*words, "--store", str(store)]) == 2
    assert "soon" in capsys.readouterr().err
    assert not store.exists()


@pytest.mark.row("CLI3", "CLI9")
def test_what_was_printed_is_not_printed_again(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    haclient("publish", "--topic", "again", "--file", rows)
    store = ("--topic", "again", "--store", tmp_path / "store")
    code, lines, _ = haclient("subscribe", *store, "-n", "2")
    assert (code, lines) == (0, ["row 0", "row 1"])
    code, lines, _ = haclient("subscribe", *store, "--bookmark", "recent", "-n", "3")
    assert (code, lines) == (0, ["row 2", "row 3", "row 4"])
    code, lines, err = haclient("subscribe", *store, "-n", "1", "--timeout", "0.3")
    assert (code, lines) == (3, [])
    assert err == "haclient: error: 0 of 1 messages came, then none for 0.3 s\n"


@pytest.mark.row("CLI1")
def test_without_a_bookmark_only_new_messages_come(haclient: CommandLine, rows: Path) -> None:
    haclient("publish", "--topic", "plain", "--file", rows)
    code, lines, _ = haclient("subscribe", "--topic", "plain", "--timeout", "0.3")
    assert (code, lines) == (0, [])
    _, lines, _ = haclient(
        *("subscribe", "--topic", "plain", "--bookmark", "epoch", "-n", "1", "--json")
    )
    assert json.loads(lines[0])["data"] == "row 0"


@pytest.mark.row("CLI9")
def test_a_closed_output_is_the_end_and_no_error(
    haclient: CommandLine, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    haclient("publish", "--topic", "closed", "--file", rows)
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr("haclient.cli.subscribe.STDOUT", writer)
    monkeypatch.setattr("haclient.cli.sow.STDOUT", writer)
    code, _, err = haclient("subscribe", "--topic", "closed", "--bookmark", "epoch")
    assert (code, err) == (0, "")
    haclient("publish", "--topic", "crowd", "--file", write_person(rows))
    assert haclient("sow", "--topic", "crowd")[::2] == (0, "")
    os.close(writer)


def write_person(rows: Path) -> Path:
    rows.write_text('{"id":7}\n')
    return rows


@pytest.mark.row("CLI9")
def test_a_connection_that_ends_and_is_not_found_again_is_a_failure(
    rows: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("haclient.cli.subscribe.STDOUT", writer)
    with running_broker(tmp_path / "log") as broker, os.fdopen(reader) as printed:

        def kill_after_the_last_row() -> None:
            while printed.readline() != "row 4\n":
                pass
            broker.kill()

        thread = threading.Thread(target=kill_after_the_last_row)
        thread.start()
        common = ("--server", broker.uri, "--topic", "t")
        assert run(["publish", *common, "--file", str(rows)]) == 0
        assert run(["subscribe", *common, "--bookmark", "epoch", "--timeout", "2"]) == 1
        thread.join()
    os.close(writer)
    told = "the connection was lost after 5 messages and not found again within 2 s"
    *warnings, error = capfd.readouterr().err.splitlines()
    assert error == f"haclient: error: {told}"
    assert "lost its connection" in warnings[0]


@pytest.mark.row("CLI9", "MS2")
def test_without_a_bookmark_the_end_of_the_connection_is_the_end(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("row\n" * 200_000)  # longer than any subscriber takes to begin
    with (
        running_broker(tmp_path / "log") as broker,
        start_haclient("subscribe", "--server", broker.uri, "--topic", "t") as subscriber,
        start_haclient(
            *("publish", "--server", broker.uri, "--topic", "t", "--file", rows, "--rate", "100")
        ),
    ):
        assert subscriber.line() == "row"
        broker.kill()
        assert subscriber.wait() == 1
        warning, error = subscriber.err.splitlines()
        assert "lost its connection" in warning
        assert "closed the connection" in error
        assert "--bookmark now would continue" in error
        assert "stream" not in error


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a file that messages are printed to."""
    with (tmp_path / "printed").open("w+b") as file:
        yield file.fileno()


class Subscription:
    """A subscription with an idle limit of 0.3 s and a stream that the test fills."""

    def __init__(
        self,
        fd: int,
        *,
        bookmark: str | None = "epoch",
        timeout: float | None = 0.3,
        replay_timeout: float | None = None,
    ) -> None:
        self.fd = fd
        asked = request(bookmark=bookmark, timeout=timeout, replay_timeout=replay_timeout)
        self.delivery = MessageQueue()
        self.run = SubscribeRun(asked, asked.start, None)

    @property
    def printed(self) -> bytes:
        return os.pread(self.fd, 1 << 20, 0)

    def deliver(self, body: bytes) -> None:
        self.delivery.put([Message(data=body)], len(body))

    def catch_up(self) -> None:
        self.delivery.mark(Marker.CAUGHT_UP)

    async def print(self) -> float:
        """Print until idle; for how long it waited after the last message."""

        async def opened() -> str:
            return "s"

        async def closed() -> None:
            self.delivery.end()

        async with MessageStream(self.delivery, open_=opened, close=closed) as messages:
            output = OutputWriter(self.fd)
            await print_messages(self.run, messages, output)
        return trio.current_time() - self.run.last_message_at


@pytest.mark.row("CLI2", "CLI3")
@pytest.mark.usefixtures("autojump_clock")
async def test_a_replay_that_begins_late_is_no_idle_time(output: int) -> None:
    subscription = Subscription(output)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.print)
        await trio.sleep(5)
        for number in range(50):
            subscription.deliver(b"%d" % number)
            await trio.sleep(0.5)
        subscription.catch_up()
    assert subscription.printed.split() == [b"%d" % number for number in range(50)]


@pytest.mark.usefixtures("autojump_clock")
async def test_the_idle_clock_starts_when_the_replay_is_complete(output: int) -> None:
    subscription = Subscription(output)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.print)
        await trio.sleep(1.15)
        subscription.catch_up()
        await trio.sleep(0.29)
        subscription.deliver(b"live")
    assert subscription.printed == b"live\n"
    assert subscription.run.last_message_at + 0.3 == pytest.approx(trio.current_time())


async def test_messages_that_come_at_the_last_moment_are_printed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reader, writer = os.pipe()
    subscription, body = (
        Subscription(writer),
        b"x" * 10_000,
    )  # more than a pipe takes without a wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.print)
        await trio.sleep(0.1)
        subscription.deliver(body)
        autojump_clock.jump(0.2)
        await trio.sleep(0.1)
        subscription.catch_up()
    os.close(writer)
    with os.fdopen(reader, "rb") as printed:
        assert printed.read() == body + b"\n"


@pytest.mark.usefixtures("autojump_clock")
async def test_a_replay_that_stands_still_times_out(output: int) -> None:
    with pytest.raises(TimedOut, match="sent nothing of it for 60 s"):
        await Subscription(output).print()


@pytest.mark.usefixtures("autojump_clock")
async def test_a_replay_that_is_followed_for_ever_times_out_at_its_limit(output: int) -> None:
    began = trio.current_time()
    with pytest.raises(TimedOut, match="sent nothing of it for 5 s"):
        await Subscription(output, timeout=None, replay_timeout=5).print()
    assert trio.current_time() - began == pytest.approx(5)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_replay_after_a_lost_connection_has_the_same_limit(output: int) -> None:
    subscription = Subscription(output, timeout=None, replay_timeout=5)
    with pytest.raises(TimedOut, match="sent nothing of it for 5 s"):  # noqa: PT012  # the error leaves the block itself
        async with open_nursery() as nursery:
            nursery.start_soon(subscription.print)
            subscription.deliver(b"live")
            subscription.catch_up()
            await trio.sleep(1000)  # nothing is published, which is no replay
            subscription.run.on_event(reached(ConnectionState.DISCONNECTED))
            subscription.delivery.mark(Marker.REPLAY)
            await trio.sleep(1000)  # there is no server
            subscription.run.on_event(reached(ConnectionState.RESUBSCRIBED))
            await trio.sleep_forever()
    assert subscription.printed == b"live\n"


@pytest.mark.usefixtures("autojump_clock")
async def test_a_plain_subscription_is_idle_from_the_beginning(output: int) -> None:
    assert await Subscription(output, bookmark=None).print() == pytest.approx(0.3)


@pytest.mark.usefixtures("autojump_clock")
async def test_the_time_without_a_connection_is_no_idle_time(output: int) -> None:
    subscription = Subscription(output)
    subscription.catch_up()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.print)
        await trio.sleep(0.1)
        subscription.run.on_event(reached(ConnectionState.DISCONNECTED))
        await trio.sleep(100)
        subscription.run.on_event(reached(ConnectionState.RESUBSCRIBED))
        await trio.sleep(0.25)
        subscription.deliver(b"missed")
    assert subscription.printed == b"missed\n"


@pytest.mark.usefixtures("autojump_clock")
async def test_after_a_reconnect_the_idle_clock_starts_at_the_end_of_the_replay(
    output: int,
) -> None:
    subscription = Subscription(output)
    subscription.catch_up()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.print)
        await trio.sleep(0.1)
        subscription.delivery.mark(Marker.REPLAY)
        subscription.run.on_event(reached(ConnectionState.DISCONNECTED))
        await trio.sleep(5)
        subscription.run.on_event(reached(ConnectionState.RESUBSCRIBED))
        await trio.sleep(2)  # the server has yet to find the place in its log
        subscription.deliver(b"missed")
        await trio.sleep(2)
        subscription.catch_up()
        await trio.sleep(0.25)
        subscription.deliver(b"live")
    assert subscription.printed == b"missed\nlive\n"
    assert subscription.run.last_message_at + 0.3 == pytest.approx(trio.current_time())


@pytest.mark.row("CLI9")
def test_a_reader_that_is_slower_than_the_idle_limit_gets_everything(
    broker: BrokerProcess, haclient: CommandLine, tmp_path: Path
) -> None:
    rows = tmp_path / "many"
    rows.write_text("".join(f"{number:0100}\n" for number in range(3000)))
    haclient("publish", "--topic", "slow reader", "--file", rows)
    words = ("--topic", "slow reader", "--bookmark", "epoch", "--timeout", "1")
    with start_haclient("subscribe", "--server", broker.uri, *words, pipe_bytes=4096) as child:
        found = child.lines(10)
        select.select([], [], [], 1.5)  # the pipe is full for longer than the limit
        found += child.rest()
        assert child.wait() == 0, child.err
    assert len(found) == 3000


@pytest.mark.row("CLI3")
def test_the_end_of_the_log_ends_the_command(haclient: CommandLine, rows: Path) -> None:
    haclient("publish", "--topic", "ends", "--file", rows)
    ends = ("subscribe", "--topic", "ends", "-e")
    everything = [f"row {number}" for number in range(5)]
    assert haclient(*ends, "--bookmark", "epoch") == (0, everything, "")
    assert haclient(*ends, "--since", "1h") == (0, everything, "")
    assert haclient(*ends, "--bookmark", "2026-01-01") == (0, everything, "")
    assert haclient(*ends, "--bookmark", "now") == (0, [], "")
    assert haclient(*ends, "--since", "2100-01-01")[0] == 0
    assert haclient(*ends, "--bookmark", "epoch", "-n", "2")[:2] == (0, everything[:2])
    code, lines, err = haclient(*ends, "--bookmark", "epoch", "-n", "6")
    assert (code, lines) == (3, everything)
    assert err == "haclient: error: 5 of 6 messages came before the end of the log\n"
    assert haclient("subscribe", "--topic", "e[m]pty.*", "--bookmark", "epoch", "-e")[:2] == (0, [])


@pytest.mark.row("CLI3")
def test_the_last_messages_of_the_log_are_those_that_match(
    haclient: CommandLine, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("".join(f'{{"n":{number}}}\n' for number in range(1000)))
    haclient("publish", "--topic", "lasts/a", "--file", source)
    haclient("publish", "--topic", "lasts/b", "--file", source)
    last = ("subscribe", "--format", "{topic}{data}", "-e", "--last")
    assert haclient(*last, "2", "--topic", "lasts/b")[1] == ['lasts/b{"n":998}', 'lasts/b{"n":999}']
    found = haclient(*last, "1", "--topic", "lasts/.*", "--filter", "/n < 10")
    assert found == (0, ['lasts/b{"n":9}'], "")
    assert len(haclient(*last, "100000", "--topic", "^lasts/")[1]) == 2000
    assert haclient(*last, "3", "--topic", "lasts/none") == (0, [], "")
    assert haclient(*last, "2", "--topic", "lasts/b", "--since", "2100-01-01")[1] == []


@pytest.mark.row("CLI3")
def test_what_follows_the_last_messages_is_printed_as_well(
    haclient: CommandLine, broker: BrokerProcess, rows: Path
) -> None:
    haclient("publish", "--topic", "follows", "--file", rows)
    words = ("subscribe", "--server", broker.uri, "--topic", "follows", "--last", "1", "-n", "6")
    with start_haclient(*words) as child:
        assert child.line() == "row 4"
        haclient("publish", "--topic", "follows", "--file", rows)
        assert child.lines(5) == [f"row {number}".encode() for number in range(5)]
        assert child.wait() == 0


@pytest.mark.row("CLI3")
def test_the_log_ends_although_a_publisher_goes_on(
    haclient: CommandLine, broker: BrokerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "endless"
    source.write_text("".join(f"{number}\n" for number in range(200_000)))
    busy = ("publish", "--server", broker.uri, "--topic", "busy", "--file", str(source))
    with start_haclient(*busy, "--rate", "2000") as child:
        begun = haclient("subscribe", "--topic", "busy", "--bookmark", "epoch", "-n", "100")
        assert begun[0] == 0
        seen = haclient("subscribe", "--topic", "busy", "--bookmark", "epoch", "-e")
        more = haclient("subscribe", "--topic", "busy", "--bookmark", "epoch", "-e")
        assert child.stop() == 130
    assert (seen[0], more[0]) == (0, 0)
    for _, lines, _ in (seen, more):
        assert lines == [str(number) for number in range(len(lines))]
    assert 100 <= len(seen[1]) <= len(more[1]) < 200_000


@pytest.mark.row("CLI3")
def test_a_store_goes_on_after_the_end_of_the_log(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    words = ("subscribe", "--topic", "cron", "--store", tmp_path / "store", "-e")
    haclient("publish", "--topic", "cron", "--file", rows)
    assert len(haclient(*words)[1]) == 5
    assert haclient(*words)[1] == []
    haclient("publish", "--topic", "cron", "--file", rows)
    assert len(haclient(*words)[1]) == 5


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--since", "1x"), "--since '1x' is no time: wanted a time such as 2026-11-20"),
        (("--since", "2026-13-01"), "2026-13-01"),
        (("--bookmark", "1x"), "wanted epoch, now, recent"),
        (("--since", "1h", "--bookmark", "epoch"), "--bookmark and --since"),
        (("--last", "1", "--store", "never-made"), "--last and --store"),
        (("--last", "0"), "--last"),
        (("-e",), "--exit needs a replay"),
        (("--format", "{x}"), "no token"),
        (("--format", "{data}", "--json"), "--format and --json"),
    ],
)
def test_starts_and_ends_that_cannot_be_are_mistakes_of_one_line(
    haclient: CommandLine, words: tuple[str, ...], told: str
) -> None:
    code, lines, err = haclient("subscribe", "--topic", "t", *words)
    assert (code, lines, err.count("\n")) == (2, [], 1)
    assert told in err
    assert not Path("never-made").exists()


@pytest.mark.row("OP16")
def test_only_the_selected_fields_are_printed(haclient: CommandLine) -> None:
    haclient("publish", "--topic", "chosen", "-m", '{"id":7,"age":1.50,"name":"x"}')
    replay = ("subscribe", "--topic", "chosen", "--bookmark", "epoch", "--exit")
    assert haclient(*replay, "--select", "-/name") == (0, ['{"id":7,"age":1.50}'], "")


@pytest.mark.row("CLI3")
def test_a_replay_may_end_at_a_time_and_have_a_rate(haclient: CommandLine, rows: Path) -> None:
    haclient("publish", "--topic", "until", "--file", rows)
    replay = ("subscribe", "--topic", "until", "--bookmark", "epoch")
    everything = [f"row {number}" for number in range(5)]
    assert haclient(*replay, "--until", "0s", "--rate", "1000X") == (0, everything, "")
    assert haclient(*replay, "--until", "2020-01-01") == (0, [], "")
    assert haclient(*replay, "--rate", "100", "--exit") == (0, everything, "")
    code, lines, err = haclient(*replay, "--until", "0s", "-n", "6")
    assert (code, lines) == (3, everything)
    assert "before the end of the" in err


@pytest.mark.row("CLI3")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--until", "1h"), "--until needs a beginning"),
        (("--until", "1h", "--bookmark", "[0:0|1|)"), "--until needs a beginning"),
        (("--until", "soon", "--since", "2h"), "--until 'soon' is no time"),
        (("--until", "1h", "--store", "x", "--since", "2h"), "--until and --store"),
        (("--rate", "10"), "--rate needs a replay"),
        (("--rate", "0", "--since", "1h"), "a rate is more than 0"),
    ],
)
def test_ends_and_rates_that_cannot_be_are_mistakes(
    options: tuple[str, ...], told: str, haclient: CommandLine
) -> None:
    code, _, err = haclient("subscribe", "--topic", "a", *options)
    assert code == 2
    assert told in err


@pytest.mark.row("CLI3", "OP9")
def test_only_the_last_message_of_each_key_is_printed(
    haclient: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "keyed.jsonl"
    file.write_text("".join(f'{{"id":{number % 2},"n":{number}}}\n' for number in range(4)))
    haclient("publish", "--topic", "keyed", "--file", file)
    replay = ("subscribe", "--topic", "keyed", "--bookmark", "epoch", "--exit")
    conflated = ("--conflation", "1h", "--conflation-key", "/id")
    assert haclient(*replay, *conflated) == (0, ['{"id":0,"n":2}', '{"id":1,"n":3}'], "")
    code, lines, err = haclient(*replay, "--conflation", "1h")
    assert (code, lines) == (1, [])
    assert "invalid options" in err


@pytest.mark.row("CC21")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--conflation", "soon"), "'soon'"),
        (("--conflation", ""), "''"),
        (("--conflation-key", "/id"), "--conflation-key needs --conflation"),
        (("--conflation", "1s", "--conflation-key", "id"), "found 'id'"),
        (("--conflation", "1s", "--conflation-key", ","), "found none"),
    ],
)
def test_a_conflation_that_cannot_be_is_a_mistake(
    options: tuple[str, ...], told: str, haclient: CommandLine
) -> None:
    code, _, err = haclient("subscribe", "--topic", "a", *options)
    assert code == 2
    assert told in err


def test_a_replay_with_a_rate_may_stand_still_for_long() -> None:
    assert dataclasses.replace(request(), exit_at_end=True).replay_limit_s == 60
    slow = dataclasses.replace(request(bookmark="epoch", timeout=1), rate="1X")
    assert slow.replay_limit_s == float("inf")
    assert dataclasses.replace(slow, replay_timeout=5.0).replay_limit_s == 5


def test_a_replay_that_is_followed_may_stand_still_unless_it_has_a_limit() -> None:
    assert request(bookmark="epoch").replay_limit_s == float("inf")
    assert request(bookmark="epoch", timeout=1).replay_limit_s == 60
    assert request(bookmark="epoch", replay_timeout=5).replay_limit_s == 5


def test_a_limit_for_the_replay_needs_a_replay() -> None:
    with pytest.raises(UsageError, match="--replay-timeout needs a replay"):
        _ = request(replay_timeout=5).start


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("limit", ["nan", "0", "-1"])
def test_a_replay_timeout_is_a_positive_number(haclient: CommandLine, limit: str) -> None:
    words = ("--topic", "t", "--bookmark", "epoch", "--replay-timeout", limit)
    code, out, err = haclient("subscribe", *words)
    assert (code, out) == (2, [])
    assert "--replay-timeout" in err
    assert "Traceback" not in err


def test_exit_does_not_wait_for_the_end_of_a_range_that_is_in_the_future() -> None:
    """The replay of a range ends at its end, and at the end of the log only if that is past."""
    for text, kept in (
        ("[20240102T030405Z:99990101T000000Z]", "20240102T030405Z"),
        ("(7|42|:99990101T000000Z)", "7|42|"),
        ("[0:20240102T030405Z)", "[0:20240102T030405Z)"),
        ("[0:7|42|)", "[0:7|42|)"),
    ):
        assert str(dataclasses.replace(request(bookmark=text), exit_at_end=True).start) == kept
        assert str(request(bookmark=text).start) == text
    both = dataclasses.replace(request(bookmark="[7|42|:99990101T000000Z]"), exit_at_end=True)
    with pytest.raises(UsageError, match="which ends in the future: leave --exit out"):
        _ = both.start
