"""Send a real file through a broker, kill everything on the way, and check what arrived.

    python examples/main_job.py [FILE] [--rate MESSAGES_PER_SECOND] [--json]

Three processes, each an ordinary command line: a broker with its data in a directory, a publisher
with a publish store, a subscriber with a bookmark store. When a quarter of the file has arrived the
publisher is killed (SIGKILL, so it cleans up nothing), at a half the subscriber, at three quarters
the broker. Whoever is dead is started again with the same command line, as a service manager would
do it. At the end every line of the file must have been printed by the subscriber, in order.

A subscriber discards a message after printing it, so a kill between the two makes it print that
message again: at most one line for each of its kills, counted as `redelivered_undiscarded`. Any
other repetition is a duplicate. The exit code is 0 only when nothing was lost, duplicated or out
of order.

Without FILE, it sends `airports.csv` of the package vega-datasets, or 3000 made-up rows where that
package is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from typing_extensions import override

TOPIC = "rows"
INTERRUPTED = 130
MADE_UP_ROWS = 3000
KILLS = 3
PATIENCE_S = 300.0
POLL_S = 0.02
MAX_STARTS = 20
USAGE = 2  # the exit code that no repetition mends


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found by comparing the file with what the subscriber printed."""

    published: int
    delivered: int
    lost: int
    duplicated: int
    redelivered_undiscarded: int
    out_of_order: int
    kills: int
    starts: int
    seconds: float

    @property
    def good(self) -> bool:
        """Nothing was lost, duplicated or out of order, and not because nothing was killed."""
        return self.kills > 0 and not (self.lost or self.duplicated or self.out_of_order)


class Service:
    """One command line that is started again whenever its process has died."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.output = directory / f"{name}.out"
        self.errors = directory / f"{name}.err"
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; its output is appended to what earlier ones have written."""
        if self.starts == MAX_STARTS:
            raise SystemExit(f"{self.name} died {MAX_STARTS} times:\n{self.last_words()}")
        if self.exit_code() == USAGE:
            raise SystemExit(f"{self.name} cannot run like this:\n{self.last_words()}")
        self.starts += 1
        say(f"start  haclient {shlex.join(self.arguments)}")
        with ExitStack() as files:
            out: IO[bytes] = files.enter_context(self.output.open("ab"))
            err: IO[bytes] = files.enter_context(self.errors.open("ab"))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "haclient", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def exit_code(self) -> int | None:
        """The exit code of the present process; `None` while it runs."""
        return self.process.poll() if self.process is not None else None

    def kill(self) -> None:
        """End the process so that it can clean up nothing."""
        if self.process is not None:
            say(f"kill   {self.name} (process {self.process.pid})")
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Ask the process to end, as a service manager does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def last_words(self) -> str:
        """The end of what the process wrote as errors."""
        return self.errors.read_text(errors="replace")[-2000:] if self.errors.exists() else ""


class Subscriber(Service):
    """The subscriber, which also knows where in its output each process began."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        super().__init__(name, arguments, directory)
        self.output.touch()
        self.seams: list[int] = []
        self.count = 0
        self._read_up_to = 0

    @override
    def start(self) -> None:
        """Drop half a line that a kill may have left, and note how many whole ones there are."""
        if self.starts:
            whole = b"".join(line + b"\n" for line in self.lines())
            self.output.write_bytes(whole)
            self.count, self._read_up_to = whole.count(b"\n"), len(whole)
            self.seams.append(self.count)
        super().start()

    def lines(self) -> list[bytes]:
        """What was printed so far, whole lines only."""
        return self.output.read_bytes().split(b"\n")[:-1]

    def arrived(self) -> int:
        """How many lines were printed so far; reads only what is new."""
        with self.output.open("rb") as file:
            file.seek(self._read_up_to)
            new = file.read()
        self._read_up_to += len(new)
        self.count += new.count(b"\n")
        return self.count


class Job:
    """The three services, the kills, and the wait for the end."""

    def __init__(self, path: Path, directory: Path, *, rate: float) -> None:
        self.path = path
        self.expected = path.read_bytes().removesuffix(b"\n").split(b"\n")
        self.directory = directory
        self.rate = rate
        self.kills = 0
        self.address = "tcp://127.0.0.1:0"
        self.broker = Service("broker", self.broker_arguments(), directory)

    def broker_arguments(self) -> list[str]:
        """The command line of the broker."""
        return ["broker", "run", "--listen", self.address, "--data", str(self.directory / "broker")]

    def run(self) -> Verdict:
        """Start everything, kill everything once, and compare."""
        began = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self.broker.stop)
            self.start_broker()
            self.subscriber = Subscriber("subscriber", self.subscribe(), self.directory)
            self.publisher = Service("publisher", self.publish(), self.directory)
            for service in (self.subscriber, self.publisher):
                stack.callback(service.stop)
                service.start()
            self.kill_on_the_way()
            self.wait_for(len(self.expected))
        return compare(
            self.expected,
            self.subscriber.lines(),
            seams=self.subscriber.seams,
            kills=self.kills,
            starts=sum(s.starts for s in (self.broker, self.publisher, self.subscriber)),
            seconds=round(time.monotonic() - began, 3),
        )

    @property
    def server(self) -> str:
        """Where clients find the broker."""
        return f"{self.address}/amps/json"

    def start_broker(self) -> None:
        """Start the broker and wait for its address, which later ones keep, so that all find it."""
        self.broker.start()
        self.address = self.wait_for_address()
        self.broker.arguments = self.broker_arguments()

    def publish(self) -> list[str]:
        """The command line of the publisher: with a store, a second run sends only the rest."""
        store = str(self.directory / "publish-store")
        arguments = [
            "publish",
            "--server",
            self.server,
            "--topic",
            TOPIC,
            "--file",
            str(self.path),
        ]
        return [*arguments, "--store", store, "--rate", f"{self.rate:g}", "--timeout", "60"]

    def subscribe(self) -> list[str]:
        """The command line of the subscriber: `recent` resumes where its store ends."""
        store = str(self.directory / "bookmark-store")
        arguments = [
            "subscribe",
            "--server",
            self.server,
            "--topic",
            TOPIC,
            "--bookmark",
            "recent",
        ]
        return [*arguments, "--sub-id", "main-job", "--store", store]

    def wait_for_address(self) -> str:
        """What the broker prints when it listens."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.broker.exit_code() is None:
            lines = self.broker.output.read_text().splitlines()
            listening = [line for line in lines if line.startswith("listening ")]
            if len(listening) == self.broker.starts:
                return listening[-1].removeprefix("listening ")
            time.sleep(POLL_S)
        raise SystemExit(f"the broker does not listen:\n{self.broker.last_words()}")

    def kill_on_the_way(self) -> None:
        """Each of the three, at a quarter, at a half and at three quarters of the file."""
        for quarter, service in enumerate((self.publisher, self.subscriber, self.broker), 1):
            self.wait_for(len(self.expected) * quarter // 4)
            self.kills += self.subscriber.arrived() < len(self.expected)
            service.kill()

    def wait_for(self, count: int) -> None:
        """Until the subscriber has printed so many lines; whoever dies is started again."""
        deadline = time.monotonic() + PATIENCE_S
        while self.subscriber.arrived() < count or not self.is_enough(count):
            if time.monotonic() > deadline:
                words = self.publisher.last_words() + self.subscriber.last_words()
                say(f"stop   waited {PATIENCE_S:g} s for message {count}\n{words}")
                return
            self.revive()
            time.sleep(POLL_S)

    def is_enough(self, count: int) -> bool:
        """At the end the count is exact: a redelivered line must not hide a missing one."""
        if count < len(self.expected):
            return True
        return not Counter(self.expected) - Counter(self.subscriber.lines())

    def revive(self) -> None:
        """Start again who has died; a publisher that has ended well is done."""
        if self.broker.exit_code() is not None:
            self.start_broker()
        if self.subscriber.exit_code() is not None:
            self.subscriber.start()
        if self.publisher.exit_code() not in {None, 0}:
            self.publisher.start()


def compare(
    expected: list[bytes],
    printed: list[bytes],
    *,
    seams: list[int],
    kills: int,
    starts: int,
    seconds: float,
) -> Verdict:
    """Compare a file with what the processes of one subscriber printed one after the other.

    `seams` says behind how many lines each later process began. The line before a seam may stand
    behind it once more: it was printed and not yet discarded.
    """
    repeats = redelivered(expected, printed, seams)
    arrived = [line for number, line in enumerate(printed) if number not in repeats]
    lost = sum((Counter(expected) - Counter(arrived)).values())
    duplicated = sum((Counter(arrived) - Counter(expected)).values())
    places = {line: place for place, line in enumerate(expected)}
    order = [places[line] for line in arrived if line in places]
    steps_back = sum(after < before for before, after in pairwise(order))
    return Verdict(
        published=len(expected),
        delivered=len(arrived) - duplicated,
        lost=lost,
        duplicated=duplicated,
        redelivered_undiscarded=len(repeats),
        # A file may hold a line twice: then only the whole comparison tells.
        out_of_order=0 if arrived == expected else steps_back,
        kills=kills,
        starts=starts,
        seconds=seconds,
    )


def redelivered(expected: list[bytes], printed: list[bytes], seams: list[int]) -> set[int]:
    """The places right behind a seam that say again what was said right before it."""
    surplus = Counter(printed) - Counter(expected)
    found: set[int] = set()
    for seam in seams:
        if 0 < seam < len(printed) and printed[seam] == printed[seam - 1]:
            line = printed[seam]
            if surplus[line] > 0:
                surplus[line] -= 1
                found.add(seam)
    return found


def default_file(directory: Path) -> Path:
    """A file of the package vega-datasets, found without importing it; else one that we write."""
    spec = importlib.util.find_spec("vega_datasets")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "_data" / "airports.csv"
    path = directory / "rows.jsonl"
    path.write_text("".join(f'{{"row": {number}}}\n' for number in range(1, MADE_UP_ROWS + 1)))
    return path


def say(text: str) -> None:
    """Progress goes to standard error, so that `--json` prints one object and nothing else."""
    print(text, file=sys.stderr, flush=True)


def interrupt(_number: int, _frame: object) -> None:
    """End like Ctrl-C, so that no process and no file is left behind."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the job; 0 when the verdict is good."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        say("interrupted: there is no verdict")
        return INTERRUPTED


def run(arguments: list[str]) -> int:
    """Parse the command line, run the job and print its verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a text file")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages per second")
    parser.add_argument("--json", action="store_true", help="print the verdict as one object")
    options = parser.parse_args(arguments)
    if not options.rate > 0:
        parser.error("--rate must be above 0")
    with tempfile.TemporaryDirectory(prefix="haclient-main-job-") as directory:
        file = options.file or default_file(Path(directory))
        if not file.is_file():
            parser.error(f"{file} is not a file")
        if not file.stat().st_size:
            parser.error(f"{file} is empty")
        verdict = Job(file, Path(directory), rate=options.rate).run()
    if options.json:
        print(json.dumps(asdict(verdict)))
    else:
        for name, value in asdict(verdict).items():
            print(f"{name:>24}  {value}")
        print("nothing lost, duplicated or out of order" if verdict.good else "NOT GOOD")
    if verdict.kills < KILLS:
        late = KILLS - verdict.kills
        say(f"{late} of {KILLS} kills came too late: use a longer file or a lower --rate")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
