"""The small files next to the journal: JSON with the version of its format, replaced as a whole.

`crc32` is the checksum of the text without that field. A file that lacks it is read as well.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from haclient_fake_server.journal.format import check_crc32, with_crc32
from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreError

_Content = TypeVar("_Content")
_log = logging.getLogger(__name__)


def write_json_file(disk: Disk, path: Path, version: int, **fields: object) -> None:
    """Replace the content of a file, and sync it.

    Args:
        disk: The file system.
        path: The file.
        version: The version of its format.
        **fields: Its content.

    Raises:
        StoreError: The disk failed.
    """
    whole = with_crc32({"format": version, **fields})
    disk.replace(path, json.dumps(whole).encode("ascii"))


def read_json_file(
    disk: Disk,
    path: Path,
    version: int,
    parse: Callable[[dict[str, Any]], _Content],
    *,
    without: str,
) -> _Content | None:
    """Read a file that `write_json_file` has written; `None`, and a warning, if it is damaged.

    Args:
        disk: The file system.
        path: The file.
        version: The newest version that can be read.
        parse: Reads the fields; it raises `ValueError`, `KeyError` or `TypeError` for other ones.
        without: What the broker does without the file, for the warning.

    Raises:
        StoreError: A newer version has written it, or it cannot be read.
    """
    file = disk.open(path, writable=False)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    try:
        content = cast("dict[str, Any]", json.loads(data))
        found: int = content["format"]
        if found > version:
            raise StoreError(
                f"{path}: version {found}, but this version of haclient reads up to {version}: "
                "use the newer one"
            )
        check_crc32(content)
        content.pop("crc32", None)
        return parse(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # no JSON, or JSON of another shape
        _log.warning("%s: ignored, since it is damaged (%s): %s", path, error, without)
        return None
