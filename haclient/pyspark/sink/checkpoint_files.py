"""Small files in a query's checkpoint: settings that must not change, and refused rows.

PySpark does not read them; they live and are rolled back with the checkpoint. They are read and
written through `pyarrow.fs`, on the driver and in tasks: a checkpoint is a local path, or the URI
of a file system that all workers reach. A file is written whole under another name and then moved,
since two tasks may write at the same time and the driver may stop in between.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Final, cast

import pyarrow.fs

from haclient.errors import UsageError
from haclient.pyspark.options import LOCAL_SCHEME
from haclient.pyspark.sink.lanes import LaneGuard, RowRange, explained

GUARD_FILE: Final = "haclient-sink.json"
"""What must not change while the checkpoint is used."""

UNLOGGED_DIRECTORY: Final = "haclient-sink-unlogged"
"""Files that name rows which are not in the server's log, and which no attempt can publish again.

No attempt goes on while there is one.
"""

RESOLVED_DIRECTORY: Final = "haclient-sink-resolved"
"""Where the user moves these files: the query never publishes their rows, nor looks for them."""

_SUFFIX: Final = ".json"

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_S3_OF_HADOOP: Final = re.compile(r"^s3[an]://")

_METADATA_FILE: Final = "metadata"  # written by PySpark before the first batch


def file_system(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a location, which is a local path or a URI, and the path there.

    Raises:
        UsageError: pyarrow has no such file system.
    """
    local = LOCAL_SCHEME.sub("", location)
    if not _SCHEME.match(local):
        return pyarrow.fs.LocalFileSystem(), local.rstrip("/")
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(arrow_uri(location))
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]  # that of HDFS has a line for each place of a JVM
        raise UsageError(
            f"amps: pyarrow cannot open {location} ({reason}): exactly-once keeps files there, so "
            "use a path, or a URI of a file system that pyarrow.fs knows: file:/path, "
            "hdfs://host/path, s3://, s3a://, gs:// or abfss://"
        ) from error
    return files, path.rstrip("/")


def arrow_uri(location: str) -> str:
    """What pyarrow takes for a URI that PySpark takes, which does not decode it."""
    return _S3_OF_HADOOP.sub("s3://", location).replace("%", "%25").replace(" ", "%20")


def read_file(files: pyarrow.fs.FileSystem, path: str) -> bytes | None:
    """The content of a file, `None` where there is none."""
    if files.get_file_info(path).type == pyarrow.fs.FileType.NotFound:
        return None
    with files.open_input_stream(path) as stream:
        return bytes(stream.read())


def write_file(files: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file whole, or not at all."""
    files.create_dir(path.rpartition("/")[0], recursive=True)
    temporary = f"{path}.{uuid.uuid4().hex}"  # two tasks may write at the same time
    with files.open_output_stream(temporary) as stream:
        stream.write(content)
    files.move(temporary, path)


def query_id(checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to; it stays the same after a restart.

    Raises:
        UsageError: There is no such id.
    """
    files, root = file_system(checkpoint)
    content = read_file(files, f"{root}/{_METADATA_FILE}")
    try:
        found = json.loads(content or b"")
        return str(cast("dict[str, object]", found)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"amps: {root}/{_METADATA_FILE} does not tell the id of the query ({error}): the "
            "checkpointLocation has to be on a file system that pyarrow reaches"
        ) from error


def check_guard(checkpoint: str, guard: LaneGuard) -> None:
    """Check that nothing has changed since the checkpoint began; keep it at the first time.

    Raises:
        UsageError: Lanes, key, order, prefix, topic or command are others.
    """
    files, root = file_system(checkpoint)
    path = f"{root}/{GUARD_FILE}"
    content = read_file(files, path)
    if content is None:
        write_file(files, path, guard.to_json())
    else:
        guard.check(content, path)


def check_unlogged(checkpoint: str) -> None:
    """Check that every row of earlier attempts is in the server's log, or resolved by the user.

    A batch job without a checkpoint keeps none.

    Raises:
        UsageError: One is not.
    """
    if not checkpoint:
        return
    files, root = file_system(checkpoint)
    if found := _names(files, f"{root}/{UNLOGGED_DIRECTORY}"):
        path = f"{root}/{UNLOGGED_DIRECTORY}/{found[0]}"
        content = (read_file(files, path) or b"").decode()  # the user may move it right now
        more = "" if len(found) == 1 else f" and {len(found) - 1} more files"
        raise UsageError(
            f"rows of this query are not in the server's log ({content:.400}{more}), and "
            f"it takes them for duplicates now: {_advice(root)}"
        )


def keep_unlogged(
    checkpoint: str, batch_id: int, lane: int, rows: Sequence[RowRange], why: str
) -> str:
    """Keep which rows of a lane are not in the server's log, and why: no attempt goes on.

    Returns:
        What the user has to do.
    """
    files, root = file_system(checkpoint)
    files.create_dir(f"{root}/{RESOLVED_DIRECTORY}", recursive=True)  # for the user
    # The rows are last, since they may be many: an error shows the beginning.
    content = {"batch": batch_id, "lane": lane, "found": why, "rows": rows}
    # The first row parts this file from one that is resolved: it is in none of those.
    name = f"{batch_id}-{lane}-{rows[0][0]}{_SUFFIX}"
    write_file(files, f"{root}/{UNLOGGED_DIRECTORY}/{name}", json.dumps(content).encode())
    return _advice(root)


def _advice(root: str) -> str:
    return (
        "publish those that subscribers lack in another way, then move every file of "
        f"{root}/{UNLOGGED_DIRECTORY} to {root}/{RESOLVED_DIRECTORY}"
    )


def resolved_rows(checkpoint: str, batch_id: int, lane: int) -> list[RowRange]:
    """The rows that were not in the server's log, and that the user has dealt with, in order.

    Raises:
        UsageError: A file is damaged.
    """
    if not checkpoint:
        return []
    files, root = file_system(checkpoint)
    directory = f"{root}/{RESOLVED_DIRECTORY}"
    result: list[RowRange] = []
    for name in _names(files, directory):
        if not name.startswith(f"{batch_id}-{lane}-"):
            continue
        what = (
            "it names rows that are not in the server's log, and has to be as it was in "
            f"{UNLOGGED_DIRECTORY}"
        )
        with explained(f"{directory}/{name}", what):
            content = json.loads(read_file(files, f"{directory}/{name}") or b"")
            result += [(int(first), int(last)) for first, last in content["rows"]]
    return sorted(result)


def _names(files: pyarrow.fs.FileSystem, directory: str) -> list[str]:
    """The whole files of a directory; one that is being written has another suffix."""
    found = files.get_file_info(pyarrow.fs.FileSelector(directory, allow_not_found=True))
    return sorted(each.base_name for each in found if each.base_name.endswith(_SUFFIX))
