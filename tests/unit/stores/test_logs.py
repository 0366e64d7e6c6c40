from __future__ import annotations

import errno
import io
import logging
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from typing_extensions import override

import haclient_stores.logs
from haclient_stores.logs import SafeLogger, logger_of

NAME = "haclient.test_logs"


class Raising(logging.Handler):
    @override
    def emit(self, record: logging.LogRecord) -> None:
        raise ZeroDivisionError(record.getMessage())


class Full(io.StringIO):
    @override
    def write(self, text: str, /) -> int:
        if not self.closed:
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(text)


@pytest.fixture
def logger() -> Generator[SafeLogger]:
    handler = Raising()
    logging.getLogger(NAME).addHandler(handler)
    yield logger_of(NAME)
    logging.getLogger(NAME).removeHandler(handler)


def test_a_handler_that_raises_is_shown_on_stderr_and_ends_nothing(
    logger: SafeLogger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.warning("lost %s", "east")
    assert "ZeroDivisionError: lost east" in capsys.readouterr().err


def test_a_stderr_that_takes_nothing_ends_nothing_either(
    logger: SafeLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Full())
    logger.warning("lost")
    sys.stderr.close()
    logger.warning("lost")


def test_a_program_that_wants_no_reports_of_logging_gets_none(
    logger: SafeLogger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.warning("lost")
    assert capsys.readouterr().err == ""


def test_a_record_names_the_line_that_logs_and_keeps_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger_of(NAME).warning("lost", extra={"sub_id": "s1"})
    (record,) = caplog.records
    assert (record.funcName, record.filename, record.name) == (
        "test_a_record_names_the_line_that_logs_and_keeps_its_fields",
        "test_logs.py",
        NAME,
    )
    assert vars(record)["sub_id"] == "s1"


def test_every_module_logs_through_it() -> None:
    """Except commands and PySpark, where an error ends one task."""
    root = Path(haclient_stores.logs.__file__).parents[2]
    others = {"__init__.py", "reporter.py", "logs.py"}
    for path in sorted([*root.glob("haclient/**/*.py"), *root.glob("stores/**/*.py")]):
        if path.name not in others and not {"cli", "pyspark"} & set(path.parts):
            assert "logging.getLogger(" not in path.read_text("utf-8"), path
