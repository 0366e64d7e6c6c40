"""Small files beside the checkpoint of a query: what it must not change, what was refused.

PySpark does not read them; they live and are rolled back with the checkpoint. They are read and
written through `pyarrow.fs`, on the driver and in tasks: a checkpoint is a local path, or the URI
of a file system that all workers reach. A file is written whole under another name and then moved,
since two tasks may write at the same time and the driver may stop in between.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Final, cast

import pyarrow.fs

from haclient.errors import UsageError
from haclient.pyspark.sink.lanes import Guard

GUARD_FILE: Final = "haclient-sink.json"
"""What must not change while the checkpoint is used."""

REFUSED_FILE: Final = "haclient-sink-refused.json"
"""What the server has refused, and no attempt can publish again."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL: Final = re.compile(r"file:(?://[^/]*)?(/.*)", re.DOTALL)
_S3_OF_HADOOP: Final = re.compile(r"^s3[an]://")

_METADATA_FILE: Final = "metadata"  # written by PySpark before the first batch


def file_system(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a location, and the path there.

    Args:
        location: A local path, or a URI.

    Raises:
        UsageError: pyarrow has no such file system.
    """
    if not _SCHEME.match(location):
        return pyarrow.fs.LocalFileSystem(), location.rstrip("/")
    if local := _LOCAL.match(location):
        return pyarrow.fs.LocalFileSystem(), local.group(1).rstrip("/")
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
    """What pyarrow takes for a URI that PySpark takes.

    Args:
        location: The URI; PySpark takes it as it is written, where pyarrow decodes it.
    """
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

    Args:
        checkpoint: Its location.

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


def check_guard(checkpoint: str, guard: Guard) -> None:
    """Check that nothing has changed since the checkpoint began.

    Args:
        checkpoint: Its location.
        guard: What is so now; it is kept at the first time.

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


def check_refusals(checkpoint: str) -> None:
    """Check that no row of this checkpoint was refused before.

    Args:
        checkpoint: Its location; empty for a batch job, which has none.

    Raises:
        UsageError: One was.
    """
    if not checkpoint:
        return
    files, root = file_system(checkpoint)
    refused = f"{root}/{REFUSED_FILE}"
    if (content := read_file(files, refused)) is not None:
        raise UsageError(
            f"rows of this query are not in the server's log ({content.decode():.300}), and it "
            f"takes them for duplicates now: publish them in another way, then remove {refused}"
        )


def keep_refusal(checkpoint: str, batch_id: int, refusal: str) -> None:
    """Keep what the server has refused, so that no attempt goes on.

    Args:
        checkpoint: Its location.
        batch_id: The batch.
        refusal: What was refused, and why.
    """
    files, root = file_system(checkpoint)
    content = json.dumps({"batch": batch_id, "refused": refusal}).encode()
    write_file(files, f"{root}/{REFUSED_FILE}", content)
