"""What goes wrong outside: one line on stderr, the right exit code, nothing lost, no traceback.

Wrong command lines are in the table of `tests/unit/cli/test_wrong_inputs.py`. Here a command is a
process of its own only where the test is about one: its streams, its limits, its locks.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess
from support.process import Result, haclient, running_broker, start_haclient

pytestmark = pytest.mark.in_parts

CLOSED = "tcp://127.0.0.1:1/amps/json"

Here: TypeAlias = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    users = directory / "users"
    users.write_text("# who may log on\n\nalice:se:cret\nbob:other\n")
    options = ("--log-topic", "^logged", "--sow", "people:/id", "--user-file", str(users))
    with running_broker(directory / "log", *options) as broker:
        yield broker


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command in this process."""
    monkeypatch.delenv("AMPS_URI", raising=False)

    def command(*words: str | Path) -> Result:
        code = run([*map(str, words)])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return command


def with_user(uri: str, user: str, password: str) -> str:
    return uri.replace("tcp://", f"tcp://{user}:{password}@")


@pytest.fixture
def alice(broker: BrokerProcess) -> str:
    return with_user(broker.uri, "alice", "se%3Acret")


def assert_one_line(result: Result, code: int, *words: str) -> None:
    """Exactly one line, beginning as ours do, saying what is wrong."""
    assert result.code == code, result.err
    assert result.err.startswith("haclient: error: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert result.err.endswith("\n")
    for word in words:
        assert word in result.err
    assert "Traceback" not in result.out


@pytest.mark.row("CLI9")
def test_a_command_line_that_cannot_work_is_told_so() -> None:
    assert_one_line(haclient("frobnicate"), 2, "frobnicate")


@pytest.mark.row("CLI9")
def test_several_servers_that_refuse_are_all_named(here: Here) -> None:
    servers = f"{CLOSED},{CLOSED.replace(':1/', ':2/')}"
    both = here("subscribe", "t", "--server", servers)
    first, error = both.err.splitlines(keepends=True)  # the first is told while the next is tried
    assert first.startswith("haclient: warning: cannot connect to tcp://127.0.0.1:1/amps/json: ")
    assert first.endswith("; trying tcp://127.0.0.1:2/amps/json now\n")
    assert_one_line(Result(both.code, both.out, error), 1, "127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_refused_and_never_shown(
    broker: BrokerProcess, here: Here, password: str
) -> None:
    result = here("ping", "--server", with_user(broker.uri, "alice", password))
    assert_one_line(result, 1, broker.uri.removeprefix("tcp://"))
    assert "wrong" not in result.err
    assert "se:cret" not in result.err


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_password_that_each_server_refuses_ends_it_at_once(
    broker: BrokerProcess, here: Here, command: str
) -> None:
    wrong = with_user(broker.uri, "alice", "wrong")
    result = here(command, "--server", f"{wrong},{wrong}", "--topic", "logged")
    first, error = result.err.splitlines(keepends=True)
    assert first.startswith("haclient: warning: ")
    assert first.endswith(" now\n")
    assert_one_line(Result(result.code, result.out, error), 1)
    assert "wrong" not in result.err


@pytest.mark.row("CLI9", "HA27")
def test_a_client_whose_name_was_taken_ends_and_does_not_come_back(
    broker: BrokerProcess, alice: str, here: Here
) -> None:
    common = ("--topic", "logged name", "--client-name", "the name")
    here("publish", "--server", alice, "--topic", "logged name", "-m", "row")
    subscribe = ("subscribe", "--server", alice, *common, "--bookmark", "epoch")
    with start_haclient(*subscribe) as older:
        older.lines(1)
        with start_haclient(*subscribe) as newer:
            newer.lines(1)
            code = older.wait()
            lost, error = older.err.splitlines(keepends=True)
            assert lost.startswith("haclient: warning: client the name lost its connection to ")
            assert_one_line(Result(code, "", error), 1, "name in use")
            bob = with_user(broker.uri, "bob", "other")
            assert_one_line(here("subscribe", "--server", bob, *common), 1, "name in use")
            assert newer.is_running


@pytest.mark.row("CLI5")
def test_a_user_of_the_file_is_let_in(alice: str, here: Here) -> None:
    assert here("ping", "--server", alice).code == 0


@pytest.mark.row("CLI9", "PS12", "BS21")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_store_of_another_client_is_not_touched(
    alice: str, here: Here, command: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    more = ("--exit",) if command == "subscribe" else ()
    common = (command, "--server", alice, "--topic", "logged", "--store", store, *more)
    assert here(*common, "--client-name", "owner").code == 0
    assert_one_line(here(*common, "--client-name", "thief"), 75, str(store), "owner")
    assert here(*common).code == 0  # by default, the store's owner


@pytest.mark.row("CLI9", "PS12", "BS21")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_second_process_on_the_same_store_is_exit_code_75(
    alice: str, here: Here, command: str, tmp_path: Path
) -> None:
    store, slow = tmp_path / "store", tmp_path / "slow"
    slow.write_bytes(b"row\n" * 5)
    common = ("--server", alice, "--topic", f"logged {command}", "--store", store)
    more = ("--file", slow, "--rate", "0.01") if command == "publish" else ()
    if command == "subscribe":
        here("publish", *common[:4], "-m", "row")
    with start_haclient(command, *common, *more) as first:
        if command == "subscribe":
            first.lines(1)
        else:  # its first line is published when it has the store
            assert here("subscribe", *common[:4], "--bookmark", "epoch", "-n", "1").code == 0
        assert_one_line(here(command, *common), 75, str(store))
        assert first.is_running


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["ping", "publish", "subscribe", "sow"])
def test_a_server_that_takes_the_connection_and_says_nothing_times_out(
    here: Here, command: str
) -> None:
    topic = () if command == "ping" else ("--topic", "t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}/amps/json"
        result = here(command, "--server", uri, "--timeout", "0.1", *topic)
    assert_one_line(result, 3, "0.1 s")
    assert not result.out


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))


@pytest.mark.row("CLI9", "PS12")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_store_that_may_not_grow_is_one_line_and_nothing_is_lost(
    alice: str, here: Here, command: str, tmp_path: Path
) -> None:
    file, topic = tmp_path / "rows", f"logged limit {command}"
    file.write_bytes(b"".join(b"row %d\n" % number for number in range(200)))
    common = ("--server", alice, "--topic", topic)
    if command == "subscribe":
        assert here("publish", *common, "--file", file).code == 0
    more = ("--file", file) if command == "publish" else ("--bookmark", "recent")
    arguments = (command, *common, "--store", tmp_path / "store", *more, "--timeout", "5")
    # A process that may write no large file could not write what it measured either.
    unmeasured = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}
    limited = haclient(*arguments, environment=unmeasured, before_exec=limit_file_size)
    assert_one_line(limited, 1, "store")
    count = () if command == "publish" else ("-n", str(200 - len(limited.lines)))
    again = here(*arguments, *count)
    assert again.code == 0, again.err
    assert_all_arrived(here, common, file)
    if command == "subscribe":
        assert [*limited.lines, *again.lines] == file.read_text().splitlines()


def assert_all_arrived(here: Here, common: tuple[str, ...], file: Path) -> None:
    found = here("subscribe", *common, "--bookmark", "epoch", "--exit")
    assert found.lines == file.read_text().splitlines()


@contextmanager
def small_disk(at: Path, kilobytes: int) -> Generator[bool]:
    """A file system of so many kilobytes; `False` where it may not be mounted."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(at)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(at)], check=True)  # noqa: S607 - as above


def enlarge(disk: Path, kilobytes: int) -> None:
    command = ["mount", "-o", f"remount,size={kilobytes}k", str(disk)]
    subprocess.run(command, check=True)


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    alice: str, here: Here, command: str, tmp_path: Path
) -> None:
    file, topic, disk = tmp_path / "rows", f"logged disk {command}", tmp_path / "disk"
    file.write_bytes(b"".join(b"row %d\n" % number for number in range(200)))
    common = ("--server", alice, "--topic", topic)
    if command == "subscribe":
        assert here("publish", *common, "--file", file).code == 0
    more = ("--file", file) if command == "publish" else ("--bookmark", "recent")
    arguments = (command, *common, "--store", disk / "store", *more, "--timeout", "5")
    with small_disk(disk, 8) as mounted:
        if not mounted:
            pytest.skip("only root can mount a small disk; the limit on file sizes is tested above")
        full = haclient(*arguments)
        assert_one_line(full, 1, str(disk))
        enlarge(disk, 65_536)
        count = () if command == "publish" else ("-n", str(200 - len(full.lines)))
        again = here(*arguments, *count)
        assert again.code == 0, again.err
    assert_all_arrived(here, common, file)
    if command == "subscribe":
        assert [*full.lines, *again.lines] == file.read_text().splitlines()


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(("command", "kilobytes"), [("publish", 5200), ("subscribe", 1100)])
def test_a_disk_that_fills_in_mid_stream_loses_nothing(
    alice: str, here: Here, command: str, kilobytes: int, tmp_path: Path
) -> None:
    file, topic, disk = tmp_path / "rows", f"logged filling {command}", tmp_path / "disk"
    rows = [f"row {number:0150}" for number in range(40_000)]
    file.write_text("\n".join(rows))
    common = ("--server", alice, "--topic", topic)
    if command == "subscribe":
        assert here("publish", *common, "--file", file).code == 0
    more = ("--file", file) if command == "publish" else ("--exit",)
    arguments = (command, *common, "--store", disk / "store", *more)
    with small_disk(disk, kilobytes) as mounted:
        if not mounted:
            pytest.skip("only root can mount a small disk")
        full = haclient(*arguments)
        assert_one_line(full, 1, str(disk))
        enlarge(disk, 65_536)
        again = here(*arguments)
        assert again.code == 0, again.err
    if command == "subscribe":
        assert 0 < len(full.lines) < len(rows)
        assert [*full.lines, *again.lines] == rows
    else:
        assert "already published" in again.out
        assert_all_arrived(here, common, file)


def store_files(store: Path) -> list[Path]:
    return [store] if store.is_file() else sorted(p for p in store.rglob("*") if p.is_file())


@pytest.mark.row("CLI9")
def test_a_torn_bookmark_store_goes_on_and_loses_no_row(
    alice: str, here: Here, tmp_path: Path
) -> None:
    topic, store = "logged torn", tmp_path / "store"
    rows = [f"row {number}" for number in range(100)]
    common = ("--server", alice, "--topic", topic)
    here("publish", *common, *(word for row in rows for word in ("-m", row)))
    arguments = ("subscribe", *common, "--store", store, "--exit")
    first = here(*arguments, "-n", "60")
    assert first.lines == rows[:60]
    [file] = [path for path in store_files(store) if path.stat().st_size]
    content = file.read_bytes()
    whole = content.rstrip(b"\0")
    half = bytes(8) + b"torn"  # the first word of a record is written last
    torn = (whole + bytes(-len(whole) % 16) + half).ljust(len(content), b"\0")
    file.write_bytes(torn)
    second = here(*arguments)
    assert second.code == 0, second.err
    assert "torn record was cut off" in second.err
    assert "Traceback" not in second.err
    assert second.lines == rows[60:]
    cut = file.read_bytes().rstrip(b"\0")[:-20]  # what a sync has vouched for
    file.write_bytes(cut)
    third = here(*arguments)
    assert third.code == 1
    assert "the log was synced up to byte" in third.err.splitlines()[-1]
    assert file.read_bytes() == cut


@pytest.mark.row("CLI9", "PS9")
def test_a_server_that_lost_what_it_acknowledged_is_refused(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"one\ntwo\n")
    with running_broker(tmp_path / "first") as broker:
        common = ("publish", "--topic", "t", "--file", file, "--store", tmp_path / "store")
        assert here(*common, "--server", broker.uri).code == 0
    with running_broker(tmp_path / "second") as broker:
        gone = here(*common, "--server", broker.uri)
        assert_one_line(gone, 1, "already acknowledged")
        anew = here(*common, "--server", broker.uri, "--from-start")
        assert anew.code == 0, anew.err
        assert_all_arrived(here, ("--server", broker.uri, "--topic", "t"), file)


@pytest.mark.row("CLI1", "CLI9")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_standard_stream_is_never_taken_for_a_store(
    alice: str, here: Here, number: int, tmp_path: Path
) -> None:
    """The first file that a process opens gets the number that is free."""

    def close() -> None:
        os.close(number)

    common = ("--server", alice, "--topic", f"logged/{number}")
    rows, bookmarks, messages = tmp_path / "rows", tmp_path / "bookmarks", tmp_path / "messages"
    rows.write_bytes(b"one\ntwo\n")
    for file, code in (str(rows), 0), ("-", int(number == 0)):
        publish = ("publish", *common, "--store", messages, "--file", file)
        done = haclient(*publish, stdin=b"", before_exec=close)
        assert done.code == code, done.err
    subscribe = ("subscribe", *common, "--store", bookmarks, "--bookmark", "epoch", "-n", "2")
    done = haclient(*subscribe, before_exec=close)
    assert done.code == int(number == 1), done.err
    assert "Traceback" not in done.err
    assert bookmarks.exists() == (number != 1)  # without an output, not even a store is made
    stores = (bookmarks, messages) if bookmarks.exists() else (messages,)
    assert here("store", "verify", *stores).code == 0
    again = here("subscribe", *common, "--store", bookmarks, "--exit")
    assert again.out == ("one\ntwo\n" if number == 1 else ""), again.err


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["subscribe", "sow"])
def test_a_closed_output_is_told_before_anything_is_waited_for(
    command: str, tmp_path: Path
) -> None:
    store = ("--store", tmp_path / "store") if command == "subscribe" else ()
    words = (command, "--server", CLOSED, "--topic", "t", *store)
    result = haclient(*words, before_exec=lambda: os.close(1))
    assert_one_line(result, 1, "standard output: it is closed")
    assert not (tmp_path / "store").exists()


@pytest.mark.row("CLI9")
def test_a_closed_input_is_told(tmp_path: Path) -> None:
    words = ("publish", "--server", CLOSED, "--topic", "t", "--store", tmp_path / "store")
    result = haclient(*words, stdin=b"", before_exec=lambda: os.close(0))
    assert_one_line(result, 1, "standard input: it is closed")
    assert not (tmp_path / "store").exists()


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["publish", "subscribe"])
def test_a_full_disk_behind_the_output_is_told(alice: str, here: Here, command: str) -> None:
    rest = ("--topic", "logged full")
    more = ("--bookmark", "epoch") if command == "subscribe" else ()

    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    if command == "subscribe":
        assert here("publish", "--server", alice, *rest, "-m", "row").code == 0
    result = haclient(command, "--server", alice, *rest, *more, stdin=b"row\n", before_exec=fill)
    assert_one_line(result, 1, "standard output: No space left on device")


@pytest.mark.row("CLI9")
def test_refused_lines_are_named_and_not_counted_as_published(
    alice: str, here: Here, tmp_path: Path
) -> None:
    file = tmp_path / "rows"
    file.write_text('{"id": 1}\n{"no": "key"}\n{"id": 2}\nnot json\n')
    words = ("publish", "--server", alice, "--topic", "people", "--file", file)
    result = here(*words)
    assert result.code == 1
    assert result.out.startswith("published 2 messages to people in ")
    assert result.out.endswith(", 2 refused by the server\n")
    error = result.err.splitlines()[-1]
    assert error.startswith("haclient: error: the server refused 2 messages: line 2: ")
    assert "; line 4: " in error


@pytest.mark.row("CLI9")
def test_a_body_may_be_any_bytes(alice: str, here: Here) -> None:
    body = os.fsdecode(b"a\xff")
    common = ("--server", alice, "--topic", "logged bytes")
    assert here("publish", *common, "-m", body).code == 0
    found = here("subscribe", *common, "--last", "1", "-e", "--json")
    assert found.code == 0
    assert '"data_base64":"Yf8="' in found.out
