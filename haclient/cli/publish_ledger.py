"""Which lines of which file a publish store has already stored: the rules of `publish --store`.

A publish store numbers its messages without gaps while one process uses it, so while a file is
being published, *line k has sequence base + k*. The base is recorded before the first line is
stored. After a kill, the store (or the server, if it knows more) gives the last number that a
message has, and the difference to the base is the number of lines that need not be published again.
Numbers that were skipped above it, as at the first logon after the machine was started, are not
counted: the next base is computed from the last of them. Nothing is written per line.

The difference counts lines only as long as nothing else takes numbers in between. So there is at
most one *open* file. Each run first closes it: the number of lines stored so far is noted as a
plain count. Only then may another file, or stdin, take numbers. A run that ends normally closes its
own file; only a kill leaves one open.

A file is identified by its path, topic and delimiter, and by its content at the time of the record:

* the recorded content is still its beginning: the same file, perhaps grown; continue after the
  lines stored;
* it has changed before its first line was stored: start over;
* it has changed after that, or is shorter: refused, since no rule decides which lines are new. A
  file that was published to its end is not published again without `--from-start` either: one
  edited line would publish all the others twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from haclient.cli.lines import FileScan
from haclient.errors import StoreError, UsageError

NOTE: Final = "haclient-publish-lines"
"""The key of the ledger in the notes of the store."""

MAX_FILES: Final = 10_000
"""Files that one store remembers; forgetting one would publish it twice."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a file: its content at that time, and how many lines were stored."""

    size: int
    digest: str
    lines: int
    taken: int


@dataclass(frozen=True, slots=True)
class Source:
    """What the user specifies to publish a file."""

    path: str
    topic: str
    delimiter: bytes

    @property
    def key(self) -> str:
        """The name of this source in the ledger."""
        return msgspec.json.encode([self.path, self.topic, self.delimiter.hex()]).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """The starting point of a run.

    Attributes:
        skip: How many lines were stored before.
        base: Line k gets the sequence base + k.
    """

    skip: int
    base: int


class PublishLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of one store: immutable; a new value is stored before it takes effect."""

    open: str = ""
    base: int = 0
    files: dict[str, _Entry] = {}

    @classmethod
    def parse(cls, note: str) -> PublishLedger:
        """The ledger in a store's note; an empty note is an empty ledger.

        Raises:
            StoreError: The note was not written by this command.
        """
        if not note:
            return cls()
        try:
            ledger = msgspec.json.decode(note, type=cls)
        except msgspec.MsgspecError as error:
            raise StoreError(f"the store's note {NOTE} cannot be read: {error}") from error
        if ledger.open and ledger.open not in ledger.files:
            raise StoreError(f"the store's note {NOTE} does not describe the file it calls open")
        return ledger

    def note(self) -> str:
        """The ledger as a note of the store."""
        return msgspec.json.encode(self).decode()

    def noted_size(self, source: Source) -> int:
        """How many bytes of the source were noted; 0 when it is new."""
        entry = self.files.get(source.key)
        return entry.size if entry else 0

    def forget(self, source: Source) -> PublishLedger:
        """The ledger without this source: `--from-start` publishes its lines again."""
        files = {key: entry for key, entry in self.files.items() if key != source.key}
        if self.open == source.key:
            return PublishLedger(files=files)
        return PublishLedger(open=self.open, base=self.base, files=files)

    @property
    def counted_to(self) -> int:
        """The sequence up to which the lines of the open file are counted; 0 without one."""
        return self.base + self.files[self.open].taken if self.open else 0

    def close_open_file(
        self, last_used: int, missing: tuple[int, int] | None = None
    ) -> PublishLedger:
        """Close the open file: the sequences above its base up to `last_used` are its lines.

        Args:
            last_used: The highest sequence of a message that the store or the server has.
            missing: The first range above `counted_to` whose messages neither of them has.

        Raises:
            StoreError: More sequences were used than the file has lines: something else published.
                Or lines are missing before others that are stored.
        """
        if not self.open:
            return self
        entry = self.files[self.open]
        taken = max(entry.taken, last_used - self.base)
        path = msgspec.json.decode(self.open, type=list[str])[0]
        if missing is not None:
            first, last = (sequence - self.base for sequence in missing)
            raise StoreError(
                f"lines {first} to {last} of {path} are missing: neither the store nor the server "
                "has them, but the store has later ones. Either a loss of power took them, or this "
                "server is behind another one that has them: then name that one. Otherwise publish "
                "every line of the file with --from-start"
            )
        if taken > entry.lines:
            raise StoreError(
                f"the store was left in the middle of {path} ({entry.lines} lines), and {taken} "
                "sequence numbers were taken since: something else has published with this store "
                "or client name, so it is unknown which lines are missing; take a new store, or "
                "publish every line of that file with --from-start"
            )
        closed = msgspec.structs.replace(entry, taken=taken)
        return PublishLedger(files={**self.files, self.open: closed})

    def begin(self, source: Source, scan: FileScan, last: int) -> tuple[PublishLedger, PublishPlan]:
        """Open a source for publishing; no file may be open in the ledger.

        Args:
            source: What is published.
            scan: The file as it is now, scanned with `noted_size` as its prefix.
            last: The highest sequence used or skipped so far: the next line gets the one above.

        Raises:
            UsageError: The file changed while it was being published, or the ledger is full.
        """
        entry = self.files.get(source.key)
        if entry is None and len(self.files) >= MAX_FILES:
            raise UsageError(f"the store remembers {MAX_FILES} files already; take a new store")
        skip = 0 if entry is None else _lines_to_skip(source, entry, scan)
        base = last - skip
        opened = _Entry(size=scan.size, digest=scan.digest, lines=scan.lines, taken=skip)
        ledger = PublishLedger(open=source.key, base=base, files={**self.files, source.key: opened})
        return ledger, PublishPlan(skip=skip, base=base)


def _lines_to_skip(source: Source, entry: _Entry, scan: FileScan) -> int:
    """How many lines of a known file were published before.

    Raises:
        UsageError: The file is not the one that was published, nor one that begins with it.
    """
    all_taken = entry.taken == entry.lines
    is_open = scan.prefix_is_open and all_taken and entry.taken > 0
    if scan.prefix_digest == entry.digest and not is_open:
        return entry.taken
    if entry.taken == 0:
        return 0
    if is_open and scan.prefix_digest == entry.digest:
        raise UsageError(
            f"{source.path}: its last line {entry.lines} was published without an end and has "
            "grown since; give --from-start to publish every line again"
        )
    how = "is shorter than" if scan.size < entry.size else "begins otherwise than"
    count = f"all {entry.lines}" if all_taken else f"{entry.taken} of its {entry.lines}"
    raise UsageError(
        f"{source.path}: it {how} the file of which {count} lines were published, so it is "
        "unknown which lines are new; restore it, or publish every line with --from-start"
    )
