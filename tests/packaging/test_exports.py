"""The public names are a promise: none disappears unnoticed, and each can be imported."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import haclient
import haclient.compat
import haclient.errors
import haclient.pyspark
import haclient.recovery_points
import haclient.servers
import haclient.stores
import haclient_stores

CLIENT = {
    "Authenticator",
    "Bookmark",
    "BookmarkList",
    "BookmarkRange",
    "Client",
    "Command",
    "ConnectionState",
    "DefaultAuthenticator",
    "EPOCH",
    "LiveRecords",
    "MOST_RECENT",
    "Message",
    "MessageStream",
    "NOW",
    "Options",
    "RecordChange",
    "__version__",
}
STORES = {
    "BookmarkStore",
    "ConflatingRecoveryPointAdapter",
    "FilePublishStore",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "NullBookmarkStore",
    "PrunePolicy",
    "PublishStore",
    "RecoveryPointAdapter",
    "RingBookmarkStore",
    "SqliteRecoveryPointAdapter",
    "TransactionalRecoveryPoint",
    "prune",
}
PLUGGABLE = re.compile(
    r"\b[A-Z]\w*(?:Chooser|Strategy|Authenticator|PublishStore|BookmarkStore|Adapter|Policy"
    r"|SubscriptionManager|Codec)\b"
)
"""The names of what an application chooses for a client, or writes itself."""
BASES = {"TrackedBookmarkStore"}  # its methods are on the pages of the stores


def test_the_client_exports_what_is_documented() -> None:
    assert CLIENT - set(dir(haclient)) == set()


def test_the_client_exports_every_error_that_it_raises() -> None:
    errors = {name for name in haclient.errors.__all__ if name[0].isupper()}
    assert errors - set(dir(haclient)) == set()


def test_the_stores_export_what_is_documented() -> None:
    assert STORES - set(haclient.stores.__all__) == set()


def test_all_that_a_client_can_be_given_is_exported() -> None:
    found: set[str] = set()
    for package in (haclient.servers, haclient.recovery_points, haclient_stores):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            found |= {name for name, _ in inspect.getmembers(module, inspect.isclass)}
    names = set(filter(PLUGGABLE.fullmatch, found))
    assert len(names) > 20
    assert names - BASES - {*dir(haclient), *haclient.stores.__all__} == set()


def test_all_that_the_pages_name_for_a_client_is_exported() -> None:
    pages = (Path(__file__).parents[2] / "docs").glob("*.md")
    text = "".join(each.read_text("utf-8") for each in pages if each.stem != "architecture")
    examples = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    names = set(PLUGGABLE.findall(text)) - examples
    assert len(names) > 20
    assert names - {*dir(haclient), *haclient.stores.__all__, *dir(haclient.compat)} == set()


@pytest.mark.parametrize(
    "module",
    [
        "haclient",
        "haclient.stores",
        "haclient.errors",
        "haclient.aio",
        "haclient.blocking",
        "haclient.contrib.fastapi",
        "haclient.contrib.wsgi",
    ],
)
def test_every_promised_name_can_be_imported_and_is_listed(module: str) -> None:
    package = importlib.import_module(module)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) - set(dir(package)) == set()


@pytest.mark.parametrize("package", [haclient, haclient.pyspark])
def test_type_checkers_see_the_names_that_are_loaded_and_no_others(package: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(package))
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    seen: list[tuple[str, str]] = []
    for each in imports:
        module = str(each.module)
        if each.names[0].name == "*":
            seen.extend((name, module) for name in importlib.import_module(module).__all__)
        elif each.names[0].asname:
            seen.extend((name.asname or "", module) for name in each.names)
    assert sorted(seen) == sorted(package._HOMES.items())


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(haclient, "no_such_name")  # noqa: B009 - mypy would refuse the attribute itself


def test_no_builtin_is_shadowed() -> None:
    assert not {"ConnectionError", "TimeoutError"} & set(dir(haclient))
