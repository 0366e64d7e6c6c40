"""Wrong inputs of the command line: one line, the right exit code, and nothing half done."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess
from support.process import running_broker

pytestmark = pytest.mark.row("CLI9")

CLOSED: Final = "tcp://127.0.0.1:1/amps/json"
NOT_UTF_8: Final = os.fsdecode(b"a\xff")

# In the words CLOSED is a server that nobody listens at, and BROKER one that alice may log on to,
# with its word as password. The working directory has the files of `directory`.
FAILURE, USAGE, TIMED_OUT = 1, 2, 3
WRONG: Final[list[tuple[str, int, str]]] = [
    # -- commands and options in general
    ("frobnicate", USAGE, "No such command 'frobnicate'"),
    ("--frobnicate", USAGE, "No such option '--frobnicate'"),
    ("broker frobnicate", USAGE, "No such command 'frobnicate'"),
    ("queue frobnicate", USAGE, "No such command 'frobnicate'"),
    ("store frobnicate", USAGE, "No such command 'frobnicate'"),
    ("ping -s CLOSED --frobnicate", USAGE, "No such option '--frobnicate'"),
    ("ping --serve CLOSED", USAGE, "Did you mean '--server'?"),
    ("ping -s CLOSED --json=yes", USAGE, "'--json' does not take a value"),
    ("ping -s CLOSED orders", USAGE, "unexpected extra argument (orders)"),
    # -- servers
    ("ping", USAGE, "no server: give --server URI[,URI...] or set AMPS_URI"),
    ("subscribe orders", USAGE, "no server: give --server"),
    ("ping -s", USAGE, "'-s' requires an argument"),
    ("ping -s ''", USAGE, "no server is named"),
    ("ping -s ' , '", USAGE, "no server is named"),
    ("ping -s localhost:9007", USAGE, "such as tcp://localhost:9007/amps/json"),
    ("ping -s http://localhost/amps", USAGE, "http:// is no scheme of a server"),
    ("ping -s mem://local/amps/json", USAGE, "mem:// is no scheme of a server"),
    ("ping -s tcp://localhost/amps/json", USAGE, "host and port"),
    ("ping -s tcp://localhost:x/amps/json", USAGE, "port"),
    ("ping -s tcp://localhost:0/amps/json", USAGE, "port"),
    ("ping -s tcp://localhost:70000/amps/json", USAGE, "port"),
    ("ping -s tcp://localhost:9007", USAGE, "/amps"),
    ("ping -s CLOSED?nonsense=1", USAGE, "nonsense"),
    ("ping -s CLOSED,rest@host:1/amps", USAGE, "write ',' in a user or password as %2C"),
    ("ping -s tcp://me:secret@localhost/amps", USAGE, "host and port"),
    ("ping -s CLOSED --tls-ca none.pem", USAGE, "'none.pem' does not exist"),
    ("ping -s CLOSED --tls-ca rows", USAGE, "no server uses TLS: wanted tcps://"),
    ("ping -s CLOSED --client-name ''", USAGE, "'--client-name': it is empty"),
    # -- times and numbers
    ("ping -s CLOSED --timeout 0", USAGE, "'--timeout': 0.0 is not in the range x>0"),
    ("ping -s CLOSED --timeout -1", USAGE, "'--timeout': -1.0 is not in the range x>0"),
    ("ping -s CLOSED --timeout nan", USAGE, "'nan' is not a number"),
    ("ping -s CLOSED --timeout soon", USAGE, "'soon' is not a valid number"),
    ("ping -s CLOSED --wait 0", USAGE, "'--wait': 0.0 is not in the range x>0"),
    ("subscribe t -s CLOSED -n 0", USAGE, "'-n' / '--count': 0 is not in the range x>=1"),
    ("subscribe t -s CLOSED -n -1", USAGE, "'-n' / '--count': -1 is not in the range x>=1"),
    ("subscribe t -s CLOSED -n 1.5", USAGE, "'1.5' is not a valid whole number"),
    ("subscribe t -s CLOSED --timeout 0", USAGE, "'--timeout': 0.0 is not in the range x>0"),
    # -- topics
    ("subscribe -s CLOSED", USAGE, "no topic: give --topic TOPIC, or 'haclient subscribe TOPIC'"),
    ("publish -s CLOSED", USAGE, "no topic: give --topic TOPIC, or 'haclient publish TOPIC'"),
    ("sow -s CLOSED", USAGE, "no topic: give --topic TOPIC, or 'haclient sow TOPIC'"),
    ("sow-delete -s CLOSED --key 1", USAGE, "no topic: give --topic TOPIC"),
    ("subscribe -s CLOSED a -t b", USAGE, "two topics: the argument 'a' and --topic 'b'"),
    ("subscribe -s CLOSED -topic a", USAGE, "long options begin with two dashes"),
    ("subscribe -s CLOSED a b", USAGE, "unexpected extra argument (b)"),
    ("subscribe -s CLOSED ''", USAGE, "it is empty"),
    ("subscribe -s CLOSED -t ' '", USAGE, "'-t' / '--topic': it is empty"),
    ("subscribe -s CLOSED 'a\nb'", USAGE, "the topic 'a\\nb' has a control character"),
    ("publish -s CLOSED -t 'a\nb'", USAGE, "the topic 'a\\nb' has a control character"),
    ("subscribe -s CLOSED NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    # -- subscribe
    ("subscribe t -s CLOSED --sub-id ' '", USAGE, "'--sub-id': it is empty"),
    ("subscribe t -s CLOSED --filter NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    ("subscribe t -s CLOSED --bookmark yesterday", USAGE, "wanted epoch, now, recent, a bookmark"),
    ("subscribe t -s CLOSED --bookmark ''", USAGE, "'--bookmark': it is empty"),
    ("subscribe t -s CLOSED --bookmark [0:", USAGE, "wanted epoch, now, recent, a bookmark"),
    ("subscribe t -s CLOSED --bookmark recent", USAGE, "--bookmark recent needs --store"),
    ("subscribe t -s CLOSED --since tomorrow", USAGE, "--since 'tomorrow' is no time: wanted"),
    ("subscribe t -s CLOSED --since 2026-13-01", USAGE, "--since '2026-13-01' is no time"),
    ("subscribe t -s CLOSED --since 1h --bookmark now", USAGE, "--bookmark and --since both say"),
    ("subscribe t -s CLOSED --last 0", USAGE, "'--last': 0 is not in the range"),
    ("subscribe t -s CLOSED --last 100001", USAGE, "'--last': 100001 is not in the range"),
    ("subscribe t -s CLOSED --last 1 --store s", USAGE, "--last and --store both say"),
    ("subscribe t -s CLOSED --exit", USAGE, "--exit needs a replay that can end"),
    ("subscribe t -s CLOSED --until 1h", USAGE, "--until needs a beginning"),
    ("subscribe t -s CLOSED --until x --bookmark epoch", USAGE, "--until 'x' is no time"),
    ("subscribe t -s CLOSED --until 1h --bookmark now --store s", USAGE, "--until and --store"),
    ("subscribe t -s CLOSED --rate fast", USAGE, "'--rate'"),
    ("subscribe t -s CLOSED --rate 10", USAGE, "--rate needs a replay"),
    ("subscribe t -s CLOSED --replay-timeout 1", USAGE, "--replay-timeout needs a replay"),
    ("subscribe t -s CLOSED --conflation often", USAGE, "'--conflation'"),
    ("subscribe t -s CLOSED --conflation-key /id", USAGE, "--conflation-key needs --conflation"),
    ("subscribe t -s CLOSED --conflation 1s --conflation-key id", USAGE, "found 'id'"),
    ("subscribe t -s CLOSED --conflation 1s --conflation-key ,", USAGE, "found none"),
    ("subscribe t -s CLOSED --delta --bookmark epoch", USAGE, "--delta has no replay"),
    ("subscribe t -s CLOSED --select id", USAGE, "'--select'"),
    ("subscribe t -s CLOSED --format {nonsense}", USAGE, "'{nonsense}' is no token: wanted"),
    ("subscribe t -s CLOSED --format {", USAGE, "'{' is no token: wanted"),
    ("subscribe t -s CLOSED --format NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    ("subscribe t -s CLOSED --format x --json", USAGE, "--format and --json: give one"),
    ("subscribe t -s CLOSED --format x --pretty", USAGE, "--format and --pretty: give one"),
    ("subscribe t -s CLOSED --store ''", USAGE, "'--store': it is empty"),
    ("subscribe t -s CLOSED --store rows/s", FAILURE, "rows: is a file, where a directory is"),
    # -- publish
    ("publish t -s CLOSED --file none", USAGE, "none: there is no such file"),
    ("publish t -s CLOSED --file full", USAGE, "full: a directory is not a file"),
    ("publish t -s CLOSED --file rows -m x", USAGE, "--message and --file: give one of them"),
    ("publish t -s CLOSED --from-start", USAGE, "only means something with --file and --store"),
    ("publish t -s CLOSED --from-start -f rows", USAGE, "--from-start only means something"),
    ("publish t -s CLOSED --delimiter ''", USAGE, "'--delimiter': it is empty"),
    ("publish t -s CLOSED --delimiter '\\x1'", USAGE, "delimiter"),
    ("publish t -s CLOSED --rate 0", USAGE, "'--rate': 0.0 is not in the range x>0"),
    ("publish t -s CLOSED --rate fast", USAGE, "'fast' is not a valid number"),
    ("publish t -s CLOSED --expiration 0", USAGE, "'--expiration': 0 is not in the range x>=1"),
    ("publish t -s CLOSED --expiration 1h", USAGE, "'1h' is not a valid whole number"),
    ("publish t -s CLOSED --store ''", USAGE, "'--store': it is empty"),
    ("publish t -s CLOSED --key NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    # -- records
    ("sow t -s CLOSED --top-n -1", USAGE, "'--top-n': -1 is not in the range x>=0"),
    ("sow t -s CLOSED --skip-n 1", USAGE, "--skip-n needs --top-n"),
    ("sow t -s CLOSED --top-n 1 --skip-n 1", USAGE, "--skip-n needs --order-by"),
    ("sow t -s CLOSED --batch-size 0", USAGE, "'--batch-size': 0 is not in the range"),
    ("sow t -s CLOSED --batch-size 10001", USAGE, "'--batch-size': 10001 is not in the range"),
    ("sow t -s CLOSED --at yesterday", USAGE, "--at 'yesterday' is no time: wanted"),
    ("sow t -s CLOSED --bookmark epoch", USAGE, "No such option '--bookmark'"),
    ("sow-and-subscribe t -s CLOSED --at 1h --delta", USAGE, "--at has no deltas and no pages"),
    ("sow-and-subscribe t -s CLOSED --skip-n 1", USAGE, "--skip-n needs --top-n"),
    ("sow-and-subscribe t -s CLOSED -f NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    ("sow-delete t -s CLOSED", USAGE, "which records? give one of --filter, --key and --message"),
    ("sow-delete t -s CLOSED --key 1 -f /id=1", USAGE, "which records? give one of --filter"),
    ("sow-delete t -s CLOSED --key ''", USAGE, "it is empty"),
    ("sow-delete t -s CLOSED -m NOT_UTF_8", USAGE, "character 2 is not UTF-8"),
    # -- queues
    ("queue consume -s CLOSED", USAGE, "Missing argument 'QUEUE'"),
    ("queue consume q -s CLOSED --ack --cancel", USAGE, "--ack and --cancel exclude each other"),
    ("queue consume q -s CLOSED --cancel", USAGE, "--cancel needs -n"),
    ("queue consume q -s CLOSED --no-ack", USAGE, "--no-ack needs -n"),
    ("queue consume q -s CLOSED --max-backlog 0", USAGE, "'--max-backlog': 0 is not in the range"),
    ("queue consume q -s CLOSED --json --format x", USAGE, "--format and --json: give one"),
    ("queue browse '' -s CLOSED", USAGE, "it is empty"),
    ("queue browse q -s CLOSED -n 0", USAGE, "'-n' / '--count': 0 is not in the range x>=1"),
    ("queue depth a b -s CLOSED", USAGE, "unexpected extra argument (b)"),
    ("queue move a -s CLOSED", USAGE, "Missing argument 'TO'"),
    ("queue move a a -s CLOSED", USAGE, "'a' is both the source and the target"),
    # -- stores
    ("store show", USAGE, "Missing argument 'FILE...'"),
    ("store show ''", USAGE, "it is empty"),
    ("store show none", FAILURE, "none"),
    ("store verify rows", FAILURE, "rows"),
    ("store verify full", FAILURE, "full"),
    ("store prune none", FAILURE, "none"),
    ("store prune rows", FAILURE, "rows"),
    ("store prune rows --wait 0", USAGE, "'--wait': 0.0 is not in the range x>0"),
    ("store explain none", FAILURE, "none"),
    ("store export rows", FAILURE, "rows"),
    ("store export none --sqlite full", USAGE, "'full' is a directory"),
    ("publish t -s CLOSED --store rows", FAILURE, "rows"),
    ("subscribe t -s CLOSED --store rows", FAILURE, "rows"),
    # -- the broker
    ("broker run --listen nonsense", USAGE, "wanted tcp://HOST:PORT"),
    ("broker run --listen unix://run/x", USAGE, "or unix:///PATH"),
    ("broker run --listen tcps://localhost:0", USAGE, "--tls-cert"),
    ("broker run --tls-key rows", USAGE, "--tls"),
    ("broker run --log-topic (", USAGE, "--log-topic"),
    ("broker run --sow orders", USAGE, "--sow"),
    ("broker run --sow orders:id", USAGE, "--sow"),
    ("broker run --queue jobs,lease=long", USAGE, "lease"),
    ("broker run --queue jobs,nonsense=1", USAGE, "nonsense"),
    ("broker run --replicate-to nonsense", USAGE, "nonsense"),
    ("broker run --admin nonsense", USAGE, "nonsense"),
    ("broker run --user-file none", USAGE, "--user-file none: No such file"),
    ("broker run --user-file rows", USAGE, "rows: line 1 is not of the form user:password"),
    ("broker run --user-file twice", USAGE, "twice: line 2 names a user for the second time"),
    ("broker run --parquet", USAGE, "give --data DIR"),
    ("broker run --data rows", USAGE, "'rows' is a file"),
    ("broker run --data full", USAGE, "--data full: it holds 'file' and no broker's log"),
    # -- the demo
    ("demo --messages 1", USAGE, "'--messages': 1 is not in the range"),
    ("demo --messages many", USAGE, "'many' is not a valid whole number"),
    # -- what only the network and the server can refuse
    ("ping -s tcp://me:secret@127.0.0.1:1/amps/json", FAILURE, "cannot connect to"),
    ("ping -s CLOSED --wait 0.1", TIMED_OUT, "has not answered within 0.1 s: cannot connect to"),
    ("publish t -s CLOSED", FAILURE, "cannot connect to tcp://127.0.0.1:1/amps/json"),
    ("subscribe t -s CLOSED", FAILURE, "cannot connect to tcp://127.0.0.1:1/amps/json"),
    ("sow t -s CLOSED", FAILURE, "cannot connect to tcp://127.0.0.1:1/amps/json"),
    ("queue depth -s CLOSED", FAILURE, "cannot connect to tcp://127.0.0.1:1/amps/json"),
    ("ping -s NOBODY", FAILURE, "auth failure (server tcp://127.0.0.1:"),
    ("ping -s MALLORY", FAILURE, "auth failure (server tcp://alice@127.0.0.1:"),
    ("subscribe logged -s BROKER -f '/a >'", FAILURE, "filter"),
    ("sow people -s BROKER -f '/a >'", FAILURE, "filter"),
    ("sow people -s BROKER --order-by 'px UPWARDS'", FAILURE, "order"),
    ("sow fleeting -s BROKER", FAILURE, "topic"),
    ("sow people -s BROKER --at 1h", FAILURE, "histor"),
    ("sow-delete fleeting -s BROKER --key 1", FAILURE, "topic"),
    ("sow-delete people -s BROKER -f '/a >'", FAILURE, "filter"),
    ("subscribe fleeting -s BROKER --bookmark epoch", FAILURE, "topic"),
    ("subscribe logged -s BROKER --bookmark '7|42|'", FAILURE, "--bookmark 7|42| is not in the"),
    ("subscribe logged -s BROKER --bookmark '7|42|' --exit", FAILURE, "--bookmark 7|42| is not"),
    ("subscribe logged -s BROKER --conflation 1s", FAILURE, "conflation"),
    ("subscribe jobs -s BROKER", FAILURE, "'jobs' is a queue"),
    ("sow-and-subscribe jobs -s BROKER", FAILURE, "'jobs' is a queue"),
    ("queue consume logged -s BROKER", FAILURE, "'logged' is no queue: the server has 'jobs'"),
    ("queue browse logged -s BROKER", FAILURE, "'logged' is no queue: the server has 'jobs'"),
    ("queue depth logged -s BROKER", FAILURE, "'logged' is no queue: the server has 'jobs'"),
    ("queue move logged people -s BROKER", FAILURE, "'logged' is no queue"),
    ("queue move jobs fleeting -s BROKER", FAILURE, "the server does not log 'fleeting'"),
]


def with_user(uri: str, user: str, password: str) -> str:
    return uri.replace("tcp://", f"tcp://{user}:{password}@")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory; nothing is written into it by a command that is refused."""
    path = tmp_path_factory.mktemp("wrong")
    (path / "rows").write_bytes(b"row one\nrow two\n" * 500)
    (path / "twice").write_text("alice:a\nalice:b\n")
    (path / "full").mkdir()
    (path / "full" / "file").write_text("mine")
    (path / "tmp").mkdir()
    return path


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The servers by the words of the table."""
    data = tmp_path_factory.mktemp("broker")
    (data / "users").write_text("# who may log on\n\nalice:se:cret\n")
    options = ("--log-topic", "^(logged|jobs)", "--sow", "people:/id", "--queue", "jobs")
    with running_broker(data / "log", *options, "--user-file", str(data / "users")) as broker:
        yield words_of(broker)


def words_of(broker: BrokerProcess) -> dict[str, str]:
    return {
        "BROKER": with_user(broker.uri, "alice", "se%3Acret"),
        "MALLORY": with_user(broker.uri, "alice", "secret"),
        "NOBODY": broker.uri,
    }


def content(directory: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() if each.is_file() else b"" for each in directory.rglob("*")}


@pytest.mark.parametrize(("text", "code", "told"), WRONG, ids=[text for text, _, _ in WRONG])
def test_a_wrong_input_is_one_line_and_nothing_is_half_done(  # noqa: PLR0913, PLR0917  # fixtures
    text: str,
    code: int,
    told: str,
    directory: Path,
    servers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setattr("tempfile.tempdir", str(directory / "tmp"))
    before, words = content(directory), shlex.split(text)
    replaced = {**servers, "CLOSED": CLOSED, "NOT_UTF_8": NOT_UTF_8}
    for word, value in replaced.items():
        words = [each.replace(word, value) for each in words]
    found = run(words)
    out, err = capfd.readouterr()
    assert (found, out) == (code, ""), err
    assert err.startswith("haclient: error: ")
    assert err.count("\n") == 1
    assert told in err
    assert "secret" not in err
    assert ("; try 'haclient" in err) == (code == USAGE)
    assert content(directory) == before


def test_the_table_is_long_enough() -> None:
    assert len(WRONG) >= 120
