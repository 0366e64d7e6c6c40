# The part of google-re2 that the broker uses; the package itself has no types.

import enum
from collections.abc import Iterator

class error(Exception): ...  # noqa: N801  # the package's own name

class Options:
    class Encoding(enum.Enum):
        UTF8 = 1
        LATIN1 = 2

    encoding: Encoding
    log_errors: bool
    never_capture: bool
    max_mem: int

class Match:
    def span(self) -> tuple[int, int]: ...

class Regexp:
    def finditer(self, text: bytes) -> Iterator[Match]: ...
    def search(self, text: bytes) -> object | None: ...

def compile(  # noqa: A001  # the package's own name
    pattern: bytes, options: Options | None = None
) -> Regexp: ...
