"""A disk in memory that records every write, and what is left of it when everything stops.

`RecordingDisk` is a whole file system for one store. Mapped memory is recorded too: each assignment
to a slice of a region, and each `pwrite`, is one `Write`, in program order. From the list of events
the two kinds of crash follow:

* `kills(events)`: the process dies between any two events, or in the middle of one write. The page
  cache lives on, so what is left is a prefix of the writes, and the machine's boot id is the same.
* `power_cuts(events)`: the machine stops. What was synced is there; of each page that was written
  since, the disk has the old or the new content, as it happened to be written back. Every subset of
  up to `ALL_SUBSETS_OF` such pages is tried; of more pages a seeded sample, in which a page may
  also have a content in between, or be torn at a sector. The length of a file counts as a page. Of
  the creations, renames and removals in a directory that no sync of it has covered, a prefix is
  there. The boot id is another one.

Use: run a store on `RecordingDisk(events)`, and call `disk.note(value)` whenever the store has made
a promise. Each `Crash` says which notes were there; open the store again on `crash.disk()` and
compare. `Crash.image` is the base for a second crash, of the reopened store.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypeVar, cast

from typing_extensions import override

from haclient_stores.disk.files import Disk, File, MappedRegion, Region, Writable
from haclient_stores.errors import StoreError, StoreLocked

__all__ = [
    "ALL_SUBSETS_OF",
    "FIRST_BOOT",
    "NEXT_BOOT",
    "THIRD_BOOT",
    "Crash",
    "Created",
    "Event",
    "Image",
    "Killed",
    "NamesSynced",
    "Note",
    "RecordingDisk",
    "Removed",
    "Renamed",
    "Resized",
    "SyncLost",
    "Synced",
    "Write",
    "failing_sync",
    "killed_at_each_event",
    "kills",
    "power_cuts",
]

ALL_SUBSETS_OF: Final = 8
SAMPLES: Final = 12  # images for each state with more unsynced pages than that
FIRST_BOOT: Final = b"the first boot.."
NEXT_BOOT: Final = b"the next boot..."
THIRD_BOOT: Final = b"the third boot.."
_PAGE: Final = 4096
_SECTOR: Final = 512  # is written whole, in any case
_TORN: Final = 0.2  # of the pages in a sample
_SIZE: Final = -1  # stands for the length of a file among its pages
_T = TypeVar("_T")

Image: TypeAlias = dict[Path, bytes]
"""The content of each file."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written, by `pwrite` or into mapped memory."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file has another length."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A file was synced."""

    inode: int


@dataclass(frozen=True, slots=True)
class SyncLost:
    """A sync has failed, and the kernel takes for written what it could not write."""

    inode: int


@dataclass(frozen=True, slots=True)
class Created:
    """A name leads to a new, empty file."""

    path: Path
    inode: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file has another name, and what had that name before has none."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Removed:
    """A name leads nowhere."""

    path: Path


@dataclass(frozen=True, slots=True)
class NamesSynced:
    """A directory was synced."""

    path: Path


@dataclass(frozen=True, slots=True)
class Note:
    """What the test wants to remember at this point."""

    value: object


Event: TypeAlias = (
    Write | Resized | Synced | SyncLost | Created | Renamed | Removed | NamesSynced | Note
)


# -- the disk -----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process that uses the disk is dead: none of its handlers can change anything."""


class _Inode:
    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.descriptor = os.memfd_create("recorded")
        self.holder: object = None  # who has the lock
        if data:
            os.pwrite(self.descriptor, data, 0)

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def data(self) -> bytes:
        return os.pread(self.descriptor, self.size, 0)


class RecordingDisk(Disk):
    """A file system in memory.

    Attributes:
        events: All that has happened, in order; None records nothing and is as fast as memory.
        before: Called with each event before it happens; an error it raises is the disk's.
        boot: The boot id.
    """

    def __init__(
        self,
        events: list[Event] | None = None,
        *,
        image: Image | None = None,
        boot: bytes = FIRST_BOOT,
    ) -> None:
        self.events = events
        self.before: Callable[[Event], None] | None = None
        self.boot = boot
        self._numbers = itertools.count(len(image or ()) + 1)
        self._names = {
            path: _Inode(number, data)
            for number, (path, data) in enumerate(sorted((image or {}).items()), 1)
        }

    def note(self, value: object) -> None:
        """Remember something at this point, such as a promise that a store has just made."""
        self.happens(Note(value))

    def happens(self, event: Event) -> None:
        """Record an event."""
        if self.before is not None:
            self.before(event)
        if self.events is not None:
            self.events.append(event)

    def kill_after(self, count: int) -> None:
        """Let the process die after so many more events; nothing happens until `restart`."""
        left = itertools.count(count, -1)

        def before(event: Event) -> None:
            if not isinstance(event, Note) and next(left) <= 0:
                raise Killed

        self.before = before

    def restart(self) -> None:
        """The process is gone, and the next one may come; all goes on to be recorded."""
        self.before = None
        for inode in self._names.values():
            inode.holder = None

    def image(self) -> Image:
        """The files as a process leaves them that is killed now."""
        return {path: inode.data for path, inode in self._names.items()}

    def killed(self) -> RecordingDisk:
        """The disk as the next process finds it when this one is killed now; nothing recorded."""
        return RecordingDisk(image=self.image(), boot=self.boot)

    def _inode(self, path: Path, *, create: bool) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise StoreError(f"{path}: cannot open: no such file")
            number = next(self._numbers)
            self.happens(Created(path, number))
            inode = self._names[path] = _Inode(number)
        return inode

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return _RecordedFile(self, path, self._inode(path, create=create))

    @override
    def open_locked(self, path: Path) -> File:
        inode = self._inode(path, create=True)
        if inode.holder is not None:
            raise StoreLocked(path, "", "in use by another process; close that one first")
        file = _RecordedFile(self, path, inode)
        inode.holder = file
        return file

    @override
    def exists(self, path: Path) -> bool:
        return path in self._names

    @override
    def make_directory(self, path: Path) -> None:
        """A directory is where files are."""

    @override
    def listdir(self, path: Path) -> list[str]:
        return sorted(each.name for each in self._names if each.parent == path)

    @override
    def rename(self, source: Path, target: Path) -> None:
        self.happens(Renamed(source, target))
        self._names[target] = self._names.pop(source)

    @override
    def remove(self, path: Path) -> None:
        if path in self._names:
            self.happens(Removed(path))
            del self._names[path]

    @override
    def fsync_dir(self, path: Path) -> None:
        self.happens(NamesSynced(path))

    @override
    def replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        self.remove(temporary)
        file = self.open(temporary, create=True)
        file.pwrite(data, 0)
        file.fsync()
        self.rename(temporary, path)
        self.fsync_dir(path.parent)

    @override
    def boot_id(self) -> bytes:
        return self.boot

    @override
    def process_id(self) -> int:
        return 1

    @override
    def on_fork(self, owner: _T, callback: Callable[[_T], None]) -> None:
        """Nobody forks in here."""


@contextlib.contextmanager
def failing_sync(disk: RecordingDisk, number: int = 0) -> Generator[None]:
    """The sync of a file fails, counted from 0, and the kernel takes its pages for written."""
    left = [number]

    def fail(event: Event) -> None:
        if isinstance(event, Synced):
            left[0] -= 1
            if left[0] < 0:
                disk.before = None
                disk.happens(SyncLost(event.inode))
                raise StoreError("the disk has failed")

    disk.before = fail
    try:
        yield
    except StoreError as error:
        assert str(error) == "the disk has failed"
    else:
        raise AssertionError("no sync has failed")


class _RecordedFile(File):
    def __init__(self, disk: RecordingDisk, path: Path, inode: _Inode) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode

    @override
    def size(self) -> int:
        return self._inode.size

    @override
    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self._inode.descriptor, count, offset)

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._disk.happens(Write(self._inode.number, offset, bytes(data)))
        os.pwrite(self._inode.descriptor, data, offset)

    @override
    def allocate(self, size: int) -> None:
        if size > self._inode.size:
            self._disk.happens(Resized(self._inode.number, size))
            os.ftruncate(self._inode.descriptor, size)

    @override
    def map(self, offset: int, length: int) -> Region:
        mapping = mmap.mmap(self._inode.descriptor, length, offset=offset)
        if self._disk.events is None:
            return MappedRegion(mapping)
        return _RecordedRegion(_Place(self._disk, self._inode.number, offset, mapping))

    @override
    def fsync(self) -> None:
        self._disk.happens(Synced(self._inode.number))

    @override
    def close(self) -> None:
        if self._inode.holder is self:
            self._inode.holder = None


# -- recorded memory ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A mapping, and where in which file it is."""

    disk: RecordingDisk
    inode: int
    offset: int
    mapping: mmap.mmap


class _RecordedRegion(Region):
    def __init__(self, place: _Place) -> None:
        self.view = cast("memoryview", _cells(place, 0, len(place.mapping), ctypes.c_uint8))
        self.writable: Writable = self.view

    @override
    def close(self) -> None:
        """The mapping goes with the last view of it."""


class _Cells:
    """What a memoryview of recorded memory can do, as far as stores ask for it.

    A memoryview cannot be told to report its writes; an array of ctypes can, and is a buffer too.
    """

    place: _Place
    begin: int
    width: int

    def __getitem__(self, key: int | slice) -> object:
        first, count = self._span(key)
        if isinstance(key, slice):
            kind = ctypes.c_uint8 if self.width == 1 else ctypes.c_uint64
            return _cells(self.place, self.begin + first * self.width, count * self.width, kind)
        at = self.begin + first * self.width
        return int.from_bytes(self.place.mapping[at : at + self.width], "little")

    def __setitem__(self, key: int | slice, value: object) -> None:
        if isinstance(key, slice) and key.step not in {None, 1}:  # one word after the other
            places = range(*key.indices(len(cast("bytes", self))))
            for at, word in zip(places, cast("Iterable[int]", value), strict=True):
                self[at] = word
            return
        first, count = self._span(key)
        if isinstance(key, slice):
            data = bytes(memoryview(cast("bytes", value)).cast("B"))
        else:
            data = cast("int", value).to_bytes(self.width, "little")
        assert len(data) == count * self.width, "a slice keeps its length"
        at = self.begin + first * self.width
        place = self.place
        place.disk.happens(Write(place.inode, place.offset + at, data))
        place.mapping[at : at + len(data)] = data

    def _span(self, key: int | slice) -> tuple[int, int]:
        length = len(cast("bytes", self))
        if isinstance(key, slice):
            first, last, _ = key.indices(length)
            return first, max(0, last - first)
        return (key + length if key < 0 else key), 1

    @override
    def __eq__(self, other: object) -> bool:
        return bytes(cast("bytes", self)) == other

    __hash__ = None  # type: ignore[assignment]  # it changes, as a bytearray does

    def cast(self, _format: str) -> object:
        """The same memory as words of 64 bits; no other form is asked for."""
        length = len(cast("bytes", self))
        return _cells(self.place, self.begin, length, ctypes.c_uint64)

    def release(self) -> None:
        """Nothing is held that anybody waits for."""


class _Types:
    """Array types by length: making one is slow."""

    made: ClassVar[dict[tuple[int, int], type]] = {}


def _cells(
    place: _Place, begin: int, length: int, kind: type[ctypes.c_uint8 | ctypes.c_uint64]
) -> object:
    width = ctypes.sizeof(kind)
    made = _Types.made.get((width, length))
    if made is None:
        parts = {"_type_": kind, "_length_": length // width}
        made = _Types.made[width, length] = type("Cells", (_Cells, ctypes.Array), parts)
    cells = made.from_buffer(place.mapping, begin) if length else made()  # type: ignore[attr-defined]  # of ctypes
    cells.place, cells.begin, cells.width = place, begin, width
    return cast("object", cells)


# -- crashes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crash:
    """What a crash has left.

    Attributes:
        image: The files.
        notes: What the test had noted until then.
        at: How many events had happened.
        boot: The boot id that the next process finds; another one if power failed.
    """

    image: Image
    notes: tuple[object, ...]
    at: int
    boot: bytes

    def disk(self, events: list[Event] | None = None) -> RecordingDisk:
        """The disk as the next process finds it."""
        return RecordingDisk(events, image=self.image, boot=self.boot)


@dataclass(slots=True)
class _Content:
    """One file: what a reader sees, what the disk surely has, and what it may have."""

    now: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, offset: int, data: bytes) -> None:
        if len(self.now) < offset + len(data):
            self.resize(offset + len(data))
        self.now[offset : offset + len(data)] = data
        for page in range(offset // _PAGE, (offset + max(1, len(data)) - 1) // _PAGE + 1):
            version = bytes(self.now[page * _PAGE : (page + 1) * _PAGE])
            versions = self.versions.get(page, [])
            if version != (versions[-1] if versions else self.on_disk(page)):
                self.versions.setdefault(page, []).append(version)

    def on_disk(self, page: int) -> bytes:
        return bytes(self.disk[page * _PAGE : (page + 1) * _PAGE])

    def resize(self, size: int) -> None:
        self.now.extend(bytes(size - len(self.now)))
        self.versions.setdefault(_SIZE, []).append(b"%d" % size)

    def sync(self) -> None:
        self.disk[:] = self.left({page: each[-1] for page, each in self.versions.items()})
        self.versions.clear()

    def lose_sync(self) -> None:
        """Pages count as written; a file system that fails to note a length stops altogether."""
        lengths = self.versions.pop(_SIZE, None)
        self.versions.clear()
        if lengths is not None:
            self.versions[_SIZE] = lengths

    def left(self, written: dict[int, bytes]) -> bytes:
        """The file on disk when these pages of it had been written back."""
        data = bytearray(self.disk)
        size = int(written.get(_SIZE, b"%d" % len(data)))
        data.extend(bytes(max(0, len(self.now) - len(data))))
        for page, version in written.items():
            if page != _SIZE:
                data[page * _PAGE : page * _PAGE + len(version)] = version
        return bytes(data[:size])


class _Machine:
    """The files after so many events, for both kinds of crash."""

    def __init__(self, base: Image | None) -> None:
        self.contents: dict[int, _Content] = {}
        self.names: dict[Path, int] = {}
        self.names_on_disk: dict[Path, int] = {}
        self.pending: list[Created | Renamed | Removed] = []
        self.notes: tuple[object, ...] = ()
        for number, (path, data) in enumerate(sorted((base or {}).items()), 1):
            self.contents[number] = _Content(bytearray(data), bytearray(data))
            self.names[path] = self.names_on_disk[path] = number

    def apply(self, event: Event) -> None:
        match event:
            case Write(inode=inode, offset=offset, data=data):
                self.contents[inode].write(offset, data)
            case Resized(inode=inode, size=size):
                self.contents[inode].resize(size)
            case Synced(inode=inode):
                self.contents[inode].sync()
            case SyncLost(inode=inode):
                self.contents[inode].lose_sync()
            case NamesSynced(path=path):
                self._sync_names(path)
            case Note(value=value):
                self.notes = (*self.notes, value)
            case Created() | Renamed() | Removed():
                if isinstance(event, Created):
                    self.contents[event.inode] = _Content()
                _rename(self.names, event)
                self.pending.append(event)

    def _sync_names(self, directory: Path) -> None:
        for event in self.pending:
            if _directory(event) == directory:
                _rename(self.names_on_disk, event)
        self.pending = [each for each in self.pending if _directory(each) != directory]

    def cached(self) -> Image:
        """What the page cache has."""
        return {path: bytes(self.contents[inode].now) for path, inode in self.names.items()}

    def unsynced(self) -> list[tuple[int, int]]:
        """Inode and number of each page that the disk may lack."""
        return [
            (inode, page) for inode, content in self.contents.items() for page in content.versions
        ]

    def left(self, names: dict[Path, int], written: dict[tuple[int, int], bytes]) -> Image:
        image: Image = {}
        for path, inode in names.items():
            pages = {page: version for (each, page), version in written.items() if each == inode}
            image[path] = self.contents[inode].left(pages)
        return image

    def possible_names(self) -> Iterator[dict[Path, int]]:
        directories = dict.fromkeys(map(_directory, self.pending))
        parts = [[each for each in self.pending if _directory(each) == d] for d in directories]
        for counts in itertools.product(*(range(len(part) + 1) for part in parts)):
            names = dict(self.names_on_disk)
            for part, count in zip(parts, counts, strict=True):
                for event in part[:count]:
                    _rename(names, event)
            yield names

    def latest(self, pages: Iterable[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        return {page: self.contents[page[0]].versions[page[1]][-1] for page in pages}

    def sample(
        self, pages: Iterable[tuple[int, int]], rng: random.Random
    ) -> dict[tuple[int, int], bytes]:
        """Each of these pages in one of the contents that it has had, or torn between two."""
        found: dict[tuple[int, int], bytes] = {}
        for inode, page in pages:
            versions = self.contents[inode].versions[page]
            index = rng.randint(-1, len(versions) - 1)
            if index < 0:
                continue
            found[inode, page] = version = versions[index]
            if page != _SIZE and rng.random() < _TORN:
                old = versions[index - 1] if index else self.contents[inode].on_disk(page)
                cut = _SECTOR * rng.randrange(1, _PAGE // _SECTOR)
                found[inode, page] = version[:cut] + old.ljust(len(version), b"\0")[cut:]
        return found


def _directory(event: Created | Renamed | Removed) -> Path:
    if isinstance(event, Renamed):
        assert event.source.parent == event.target.parent, "a rename stays in its directory"
        return event.target.parent
    return event.path.parent


def _rename(names: dict[Path, int], event: Created | Renamed | Removed) -> None:
    match event:
        case Created(path=path, inode=inode):
            names[path] = inode
        case Renamed(source=source, target=target):
            names[target] = names.pop(source)
        case Removed(path=path):
            names.pop(path, None)


def killed_at_each_event(
    work: Callable[[RecordingDisk], None],
) -> Iterator[tuple[RecordingDisk, list[Event]]]:
    """The disk as a process leaves it that is killed after its first event, its second, and so on.

    The last one has finished its work.
    """
    finished = False
    for count in itertools.count():
        if finished:
            return
        events: list[Event] = []
        disk = RecordingDisk(events)
        disk.kill_after(count)
        with contextlib.suppress(Killed):
            work(disk)
            finished = True
        disk.restart()
        yield disk, events


def kills(
    events: list[Event], *, base: Image | None = None, boot: bytes = FIRST_BOOT
) -> Iterator[Crash]:
    """What a process leaves that is killed after any event, or within a longer write.

    Args:
        events: What happened.
        base: The files before that.
        boot: The boot id while it happened.
    """
    machine = _Machine(base)
    yield Crash(machine.cached(), (), 0, boot)
    for index, event in enumerate(events, 1):
        if isinstance(event, Write) and len(event.data) > 8:
            before = bytes(machine.contents[event.inode].now)
            for part in _parts(event):
                machine.contents[event.inode].write(part.offset, part.data)
                yield Crash(machine.cached(), machine.notes, index - 1, boot)
                machine.contents[event.inode].now[:] = before
        machine.apply(event)
        if not isinstance(event, Synced | SyncLost | NamesSynced):
            yield Crash(machine.cached(), machine.notes, index, boot)


def _parts(write: Write) -> list[Write]:
    """A long write that was interrupted: its first half, and its second."""
    half = len(write.data) // 2
    first = Write(write.inode, write.offset, write.data[:half])
    return [first, Write(write.inode, write.offset + half, write.data[half:])]


def power_cuts(
    events: list[Event],
    *,
    seed: int = 0,
    base: Image | None = None,
    boot: bytes = NEXT_BOOT,
    after: int = 1,
) -> Iterator[Crash]:
    """What the disk has when power fails after any event; each state once for the same notes.

    Args:
        events: What happened.
        seed: Chooses the samples.
        base: The files before that, all of them synced.
        boot: The boot id after it: unlike all before.
        after: The first event after which it may fail, counted from 1.
    """
    machine = _Machine(base)
    rng = random.Random(seed)
    seen: set[int] = set()
    for index, event in enumerate(events, 1):
        machine.apply(event)
        if isinstance(event, Note | Synced):  # other promises, or another disk below the pages
            seen.clear()
        for names, written in _left_by_power(machine, rng) if index >= after else ():
            key = hash((frozenset(names.items()), frozenset(written.items())))
            if key not in seen:
                seen.add(key)
                yield Crash(machine.left(names, written), machine.notes, index, boot)


_Left: TypeAlias = tuple[dict[Path, int], dict[tuple[int, int], bytes]]


def _left_by_power(machine: _Machine, rng: random.Random) -> Iterator[_Left]:
    """Which names lead to which inode, and what was written back of which page."""
    unsynced = machine.unsynced()
    for names in machine.possible_names():
        named = set(names.values())
        pages = [page for page in unsynced if page[0] in named]
        if len(pages) <= ALL_SUBSETS_OF:
            for count in range(len(pages) + 1):
                for chosen in itertools.combinations(pages, count):
                    yield names, machine.latest(chosen)
            yield names, machine.sample(pages, rng)
        else:
            yield names, {}
            yield names, machine.latest(pages)
            for _ in range(SAMPLES):
                yield names, machine.sample(pages, rng)
