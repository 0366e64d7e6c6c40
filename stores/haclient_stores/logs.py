"""Loggers that catch the errors of their handlers.

`logging` itself reports an error of a handler's stream. But an `emit` or a filter of the
application may raise. The error would then leave the logging call, in the middle of a reconnect or
of a write to a store. A `SafeLogger` prints it to stderr, as `logging` does, and continues.
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
    """A logger that catches what its handlers raise.

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
        except Exception:  # any error of the application's code
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(OSError, ValueError):  # stderr is full or closed
                    traceback.print_exc(file=sys.stderr)


def logger_of(name: str) -> SafeLogger:
    """The logger of this name.

    Args:
        name: Such as `__name__`.
    """
    return SafeLogger(logging.getLogger(name))
