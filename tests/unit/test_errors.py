from __future__ import annotations

import inspect
import pickle
import re

import pytest
from typing_extensions import override

import haclient_stores.errors
from haclient import errors
from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    PublishFailed,
    PublishGap,
    ReconnectGaveUp,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    TimedOut,
    UsageError,
    failure_text,
    printable,
)

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
}


@pytest.mark.row("CC37")
def test_every_error_has_one_root_and_is_exported() -> None:
    assert all(issubclass(kind, HAClientError) for kind in CLASSES.values())
    assert set(errors.__all__) == set(CLASSES)
    assert set(haclient_stores.errors.__all__) <= set(errors.__all__)


@pytest.mark.row("CC37")
def test_the_tree_in_the_docstring_names_every_class() -> None:
    text = (errors.__doc__ or "") + (haclient_stores.errors.__doc__ or "")
    assert set(CLASSES) <= set(re.findall(r"\w+", text))
    assert all(kind.__doc__ for kind in CLASSES.values())


def test_a_timeout_can_be_caught_as_pythons_own() -> None:
    with pytest.raises(TimeoutError):
        raise TimedOut("no ack within 10 s")


def test_misuse_refusal_and_lost_links_are_different_branches() -> None:
    branches = [UsageError, errors.ProtocolError, CommandError, DisconnectedError, StoreError]
    for kind in CLASSES.values():
        assert sum(issubclass(kind, branch) for branch in branches) <= 1


@pytest.mark.row("CC37")
def test_facts_are_attributes() -> None:
    failed = PublishFailed("publish 3 refused", reason="not entitled", sequence=3)
    assert (failed.reason, failed.sequence) == ("not entitled", 3)
    assert CommandError("alone").reason == "alone"
    gave_up = ReconnectGaveUp(7, "no server answers")
    assert (gave_up.attempts, gave_up.chooser_error) == (7, "no server answers")
    assert str(gave_up) == "gave up after 7 attempts: no server answers"
    corrupt = StoreCorrupt("a.log", 48, "bad checksum")
    assert (str(corrupt.path), corrupt.offset, corrupt.what) == ("a.log", 48, "bad checksum")
    assert str(corrupt) == "a.log: corrupt at byte 48: bad checksum"
    locked = StoreLocked("a.log", "orders-7", "held by process 3")
    assert (str(locked.path), locked.owner) == ("a.log", "orders-7")
    gap = PublishGap(9, 5)
    assert (gap.acknowledged, gap.server) == (9, 5)
    assert "sequence 5" in str(gap)


@pytest.mark.parametrize("kind", [UsageError, TimedOut, CommandError, errors.WouldBlock])
def test_plain_errors_survive_pickling(kind: type[Exception]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"  # noqa: S301  our own bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("not entitled", "not entitled"),
        ("zu groß für «orders»", "zu groß für «orders»"),
        ("auth\nTraceback: \x1b[31mred\x07", r"auth Traceback: \x1b[31mred\x07"),
        ("\u202eevil", r"\u202eevil"),
        ("", ""),
    ],
)
def test_the_text_of_a_peer_becomes_one_line_that_a_terminal_only_shows(
    text: str, shown: str
) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_an_exception_of_the_application_is_one_line_whatever_its_text_is() -> None:
    class NoTextError(Exception):
        @override
        def __str__(self) -> str:
            raise AttributeError("not set yet")

    assert failure_text(NoTextError()) == "NoTextError"
    assert failure_text(ValueError()) == "ValueError"
    assert failure_text(ValueError("a\nb")) == "ValueError: a b"
    assert failure_text(ValueError("x" * 300)) == f"ValueError: {'x' * 200}..."
