"""The entry point of the installed command; it imports the package as late as possible.

Loading the command line takes a while, and Ctrl-C during that time must not print a traceback. A
shell may start a process without a standard stream (`>&-`). The first file that is opened would
then get its descriptor, and output would be written into a store. So each missing standard
descriptor is opened on the null device, in the wrong direction, so that using the stream is still
an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_INTERRUPTED: Final = 130
_WRONG_WAY: Final = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_RDONLY}


def _take_missing_streams() -> None:
    for number, flags in _WRONG_WAY.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest number that is free: this one
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # so without a stream
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as the process


def main() -> None:
    """Run the command line of this process and exit with its code."""
    _take_missing_streams()
    try:
        from haclient.cli.app import run  # noqa: PLC0415  # most of the time that it takes

        code = run()
    except KeyboardInterrupt:  # during the import; `run` handles it later
        sys.stderr.write("haclient: error: interrupted\n")
        code = _INTERRUPTED
    sys.exit(code)


def fake_server() -> None:
    """`haclient-fake-server`: another name of `haclient broker run`."""
    sys.argv[1:1] = ["broker", "run"]
    main()
