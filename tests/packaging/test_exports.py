"""The public names are a promise: none disappears unnoticed, and each can be imported."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType

import pytest

import haclient
import haclient.errors
import haclient.pyspark
import haclient.stores

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


def test_the_client_exports_what_is_documented() -> None:
    assert CLIENT - set(dir(haclient)) == set()


def test_the_client_exports_every_error_that_it_raises() -> None:
    errors = {name for name in haclient.errors.__all__ if name[0].isupper()}
    assert errors - set(dir(haclient)) == set()


def test_the_stores_export_what_is_documented() -> None:
    assert STORES - set(haclient.stores.__all__) == set()


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
