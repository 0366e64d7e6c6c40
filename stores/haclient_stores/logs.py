"""Loggers whose handlers cannot end what is logged about.

`logging` reports an error of a handler's stream by itself. But a handler of the application may
raise from `emit`, or a filter may: the error then leaves the call that logs, which is somewhere in
the middle of a reconnect or of a write to a store. Here such an error is printed to stderr, as
`logging` does it, and the work goes on.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from typing_extensions import override


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that survives its handlers.

    Args:
        logger: Where the records go.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    @override
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    @override
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # this frame is not the caller
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # of any kind: it is the application's
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(OSError, ValueError):  # stderr is full or closed
                    traceback.print_exc(file=sys.stderr)


def logger_of(name: str) -> SafeLogger:
    """The logger of this name.

    Args:
        name: Such as `__name__`.
    """
    return SafeLogger(logging.getLogger(name))
