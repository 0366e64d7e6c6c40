"""Book payments from a queue exactly once, while the workers are killed.

    python examples/queue_payments.py [--payments N] [--workers N] [--json]

A broker with a queue, and some workers, are processes of this machine. Each payment is a message. A
worker adds its amount to an account in a SQLite database, and records in the same transaction which
message it was (`ProcessedMessages`). The queue delivers at least once: when a worker is killed
(SIGKILL) between its transaction and the acknowledgement, another one gets the message again. It
finds that the payment was booked, and only acknowledges it.

Workers are killed one after the other until everything is booked. Then every account must have
exactly what was paid. The exit code is 0 only if it has.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from haclient import HAClient, Message
from haclient.stores import ProcessedMessages

QUEUE = "payments"
ACCOUNTS = 10
KILLS = 9  # one at each tenth of the work
BACKLOG = 20
PATIENCE_S = 300.0
POLL_S = 0.005
INTERRUPTED = 130

TABLES = """
create table balances (account integer primary key, amount integer not null);
create table counts (what text primary key, number integer not null);
insert into counts values ('booked', 0), ('again', 0);
"""


# -- the worker: this is what an application looks like -------------------------------------------


def open_database(path: str) -> sqlite3.Connection:
    """Open the database; transactions are begun by hand, since two workers may write at a time."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    # Processes are killed here, and power is not lost. Leave this out where it may be.
    connection.execute("pragma synchronous = off")
    return connection


class Booking:
    """Books payments."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.processed = ProcessedMessages(connection)

    def book(self, message: Message) -> None:
        """Book one payment, whichever worker had it before."""
        with self.connection as transaction:  # all of it or nothing
            transaction.execute("begin immediate")
            if not self.processed.is_new(message):
                transaction.execute("update counts set number = number + 1 where what = 'again'")
                return
            payment = json.loads(message.data)
            transaction.execute(
                "insert into balances values (?, ?) "
                "on conflict (account) do update set amount = amount + excluded.amount",
                (payment["account"], payment["amount"]),
            )
            transaction.execute("update counts set number = number + 1 where what = 'booked'")
            self.processed.record(message)


async def worker(server: str, database: str, name: str) -> None:
    """Book payments until the process is ended."""
    with closing(open_database(database)) as connection:
        booking = Booking(connection)
        async with HAClient(name, servers=[server]) as client:
            # When `book` has returned, the message is acknowledged; when it raised, redelivered.
            await client.queue_subscribe(QUEUE, handler=booking.book, max_backlog=BACKLOG)
            await trio.sleep_forever()


# -- what starts it, kills it and checks the accounts ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found in the database."""

    payments: int
    booked: int
    wrong_accounts: int
    delivered_again: int
    kills: int
    seconds: float

    @property
    def is_good(self) -> bool:
        """Every account has what was paid, and not because nobody was killed."""
        return self.kills > 0 and self.booked == self.payments and not self.wrong_accounts


def expected_balances(payments: list[dict[str, int]]) -> Counter[int]:
    """What each account must have."""
    balances: Counter[int] = Counter()
    for payment in payments:
        balances[payment["account"]] += payment["amount"]
    return balances


def judge(
    database: sqlite3.Connection, payments: list[dict[str, int]], *, kills: int, seconds: float
) -> Verdict:
    """Compare the accounts with the payments."""
    found = dict(database.execute("select account, amount from balances").fetchall())
    counts = dict(database.execute("select what, number from counts").fetchall())
    wanted = expected_balances(payments)
    wrong = [each for each in {*wanted, *found} if wanted.get(each) != found.get(each)]
    return Verdict(
        payments=len(payments),
        booked=counts["booked"],
        wrong_accounts=len(wrong),
        delivered_again=counts["again"],
        kills=kills,
        seconds=round(seconds, 3),
    )


class Job:
    """The broker, the workers, and the kills."""

    def __init__(self, directory: Path, *, payments: int, workers: int) -> None:
        self.directory = directory
        self.database = str(directory / "accounts.db")
        self.random = random.Random()  # noqa: S311  # of payments and kills, not of secrets
        self.payments = [
            {"account": number % ACCOUNTS, "amount": self.random.randint(1, 1000)}
            for number in range(payments)
        ]
        self.count = workers
        self.workers: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.kills = 0
        self.server = ""

    def run(self) -> Verdict:
        """Start everything, kill workers until all is booked, and check the accounts."""
        began = time.monotonic()
        with ExitStack() as stack:
            self.start_broker(stack)
            self.publish()
            database = stack.enter_context(closing(open_database(self.database)))
            database.executescript(TABLES)
            ProcessedMessages(database)  # makes its table, before several workers try
            stack.callback(self.stop)
            self.workers = [self.start_worker() for _ in range(self.count)]
            self.kill_until_done(database, began + PATIENCE_S)
            seconds = time.monotonic() - began
            return judge(database, self.payments, kills=self.kills, seconds=seconds)

    def start_broker(self, stack: ExitStack) -> None:
        """Start a broker with the queue on a free port."""
        command = [sys.executable, "-m", "haclient", "broker", "run"]
        listen = ["--listen", "tcp://127.0.0.1:0", "--data", str(self.directory / "broker")]
        queue = ["--queue", f"{QUEUE},max_backlog={BACKLOG},lease=30"]
        broker = subprocess.Popen([*command, *listen, *queue], stdout=subprocess.PIPE, text=True)
        stack.enter_context(broker)
        stack.callback(broker.kill)
        line = "" if broker.stdout is None else broker.stdout.readline()
        if not line.startswith("listening "):
            raise SystemExit("the broker does not listen")
        self.server = f"{line.removeprefix('listening ').strip()}/amps/json"

    def publish(self) -> None:
        """Publish all payments."""
        command = [sys.executable, "-m", "haclient", "publish", "--server", self.server]
        text = "".join(json.dumps(payment) + "\n" for payment in self.payments)
        subprocess.run(
            [*command, "--topic", QUEUE], input=text.encode(), stdout=sys.stderr, check=True
        )

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        self.started += 1
        name = f"worker-{self.started}"
        words = ["worker", self.server, self.database, name]
        return subprocess.Popen([sys.executable, __file__, *words])

    def kill_until_done(self, database: sqlite3.Connection, deadline: float) -> None:
        """Kill a worker at each tenth of the work, and start another one in its place."""
        booked, due = 0, len(self.payments) // (KILLS + 1)
        while booked < len(self.payments) and time.monotonic() < deadline:
            [booked] = database.execute(
                "select number from counts where what = 'booked'"
            ).fetchone()
            if due <= booked < len(self.payments):
                self.kill_one()
                due += len(self.payments) // (KILLS + 1)
                report(f"killed a worker after {booked} payments")
            time.sleep(POLL_S)

    def kill_one(self) -> None:
        """Kill any worker; it can prepare for nothing."""
        victim = self.random.randrange(len(self.workers))
        self.workers[victim].kill()
        self.workers[victim].wait()
        self.kills += 1
        self.workers[victim] = self.start_worker()

    def stop(self) -> None:
        """End all workers."""
        for each in self.workers:
            each.kill()
            each.wait()


def report(text: str) -> None:
    """Progress goes to standard error, so that `--json` prints one object and nothing else."""
    print(text, file=sys.stderr, flush=True)


def interrupt(_number: int, _frame: object) -> None:
    """End like Ctrl-C, so that no process and no file is left behind."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the job, or one worker of it; 0 when the verdict is good."""
    if sys.argv[1:2] == ["worker"]:
        server, database, name = sys.argv[2:]
        trio.run(worker, server, database, name)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        report("interrupted: there is no verdict")
        return INTERRUPTED


def run(arguments: list[str]) -> int:
    """Parse the command line, run the job and print its verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--payments", type=int, default=3000, help="how many, 10 at least")
    parser.add_argument("--workers", type=int, default=3, help="how many processes")
    parser.add_argument("--json", action="store_true", help="print the verdict as one object")
    options = parser.parse_args(arguments)
    if options.payments <= KILLS or options.workers < 1:
        parser.error(f"wanted {KILLS + 1} payments and 1 worker, or more")
    with tempfile.TemporaryDirectory(prefix="haclient-payments-") as directory:
        verdict = Job(Path(directory), payments=options.payments, workers=options.workers).run()
    if options.json:
        print(json.dumps(asdict(verdict)))
    else:
        for name, value in asdict(verdict).items():
            print(f"{name:>16}  {value}")
        print("every account has what was paid" if verdict.is_good else "NOT GOOD")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
