"""Every error of the tree crosses a process boundary, and is copied, with its facts."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import product
from typing import Final

import pytest

import haclient
import haclient_fake_server
import haclient_stores
from haclient.errors import CommandError, HAClientError
from haclient.protocol.messages import Message
from support.error_samples import MADE, fail_with

Copy = Callable[[HAClientError], HAClientError]

SKIPPED = ("haclient.pyspark", "haclient.cli", "haclient.__main__")


def import_all() -> None:
    """Import every module, so that every class of the tree exists."""
    for package in (haclient, haclient_stores, haclient_fake_server):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(SKIPPED) and not found.name.endswith("__main__"):
                with suppress(ImportError):  # an extra that is not installed
                    importlib.import_module(found.name)


def all_kinds(kind: type[HAClientError] = HAClientError) -> Iterator[type[HAClientError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from all_kinds(each)


import_all()
FACTS: Final = {
    "position": 3,
    "expected": "a path",
    "found": "'px'",
    "topic": "orders[",
    "problem": "an open bracket",
}
"""The facts of the errors of the broker's parsers."""

# Whichever tests have run before: those of the extra have their own test in tests/pyspark.
HERE = {kind for kind in all_kinds() if not kind.__module__.startswith(SKIPPED)}
KINDS = sorted(HERE, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def instance_of(kind: type[HAClientError]) -> HAClientError:
    """One as the program raises it, with a note."""
    if kind in MADE:
        error = MADE[kind]()
    elif issubclass(kind, CommandError):
        error = kind("subscribe: refused", reason="the server's words", detail="at character 3")
    else:
        given = inspect.signature(kind.__init__).parameters.values()
        named = [each.name for each in given if each.name in FACTS]
        error = kind(**{name: FACTS[name] for name in named}) if named else kind("why it failed")
    error.add_note("while the position was written")
    return error


def through_pickle(error: HAClientError) -> HAClientError:
    copied: HAClientError = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    return copied


@pytest.mark.parametrize(
    ("kind", "copied"),
    list(product(KINDS, (through_pickle, copy.copy, copy.deepcopy))),
    ids=lambda value: value.__name__,
)
def test_an_error_is_copied_with_its_facts(kind: type[HAClientError], copied: Copy) -> None:
    error = instance_of(kind)
    other = copied(error)
    assert type(other) is kind
    assert (str(other), other.args) == (str(error), error.args)
    assert vars(other) == vars(error)
    assert other.__notes__ == ["while the position was written"]


def test_a_process_pool_survives_every_error_of_its_workers() -> None:
    names = [kind.__name__ for kind in MADE]
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        errors = [pool.submit(fail_with, name).exception() for name in names]
        messages = list(pool.map(Message.copy, [Message(topic="orders", data=b"1", number=4)]))
    assert [type(error).__name__ for error in errors] == names
    assert [str(error) for error in errors] == [str(make()) for make in MADE.values()]
    assert (messages[0].topic, messages[0].data) == ("orders", b"1")


class Owner:
    """The log of a client, and the lease of a queue: neither can be pickled."""

    def __init__(self) -> None:
        self.discarded: list[int] = []
        self.lock = multiprocessing.Lock()

    def discard(self, number: int) -> None:
        self.discarded.append(number)


def deep_copy(message: Message) -> Message:
    return copy.deepcopy(message)


def unpickled(message: Message) -> Message:
    copied: Message = pickle.loads(pickle.dumps(message))  # noqa: S301  # our own bytes
    return copied


@pytest.mark.parametrize("copied", [deep_copy, unpickled])
def test_a_message_is_copied_without_its_client(copied: Callable[[Message], Message]) -> None:
    owner = Owner()
    message = Message(
        kind="p", topic="orders", bookmark="1|2|", sequence=2, data=b"{}", number=4, owner=owner
    )
    other = copied(message)
    assert (other.kind, other.topic, other.bookmark, other.sequence) == ("p", "orders", "1|2|", 2)
    assert (other.data, other.number, other.owner, other.lease) == (b"{}", 0, None, None)
    other.discard()
    other.ack()
    other.extend_lease(5)
    assert owner.discarded == []
    message.discard()
    assert owner.discarded == [4]
