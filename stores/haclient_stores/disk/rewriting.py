"""Writing again what the kernel takes for written.

An error of `fsync` is reported once. The pages that could not be written count as clean from then
on, so the next `fsync` succeeds and leaves them out, in another process too. Whoever wants to
vouch for a file after an error has to make those pages dirty first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from haclient_stores.disk.files import File

__all__ = ["write_again"]

_CHUNK_BYTES: Final = 2**20


def write_again(file: File, begin: int, end: int) -> None:
    """Write the bytes of a file once more; nobody else may be changing them."""
    for at in range(begin, end, _CHUNK_BYTES):
        file.pwrite(file.pread(min(_CHUNK_BYTES, end - at), at), at)
