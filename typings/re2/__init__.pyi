# The part of google-re2 that the broker uses; the package itself has no types.

import enum

class error(Exception): ...  # noqa: N801  # the package's own name

class Options:
    class Encoding(enum.Enum):
        UTF8 = 1
        LATIN1 = 2

    encoding: Encoding
    log_errors: bool
    never_capture: bool
    max_mem: int

class Regexp:
    def search(self, text: bytes) -> object | None: ...

def compile(  # noqa: A001  # the package's own name
    pattern: bytes, options: Options | None = None
) -> Regexp: ...
