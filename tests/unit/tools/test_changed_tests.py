"""Which tests `nox -s quick` runs for a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.changed_tests import ALWAYS, PACKAGES, ROOT, changed_files, covering_tests, select


@pytest.mark.parametrize(
    ("changed", "covered_by"),
    [
        ("haclient/protocol/framing.py", "tests/unit/protocol/test_framing.py"),
        ("haclient/client/client.py", "tests/unit/client/test_client.py"),
        ("haclient/cli/demo/run.py", "tests/unit/cli/demo/test_run.py"),
        ("stores/haclient_stores/tracker/tracker.py", "tests/unit/stores/tracker"),
        ("haclient/pyspark/jobs/audit.py", "tests/pyspark/jobs/test_audit.py"),
        ("tests/unit/test_aio.py", "tests/unit/test_aio.py"),
        ("docs/queues.md", "tests/test_docs.py"),
        ("README.md", "tests/test_docs.py"),
    ],
)
def test_a_changed_file_runs_the_tests_that_cover_it(changed: str, covered_by: str) -> None:
    assert any(found.startswith(covered_by) for found in covering_tests(changed))


def test_a_module_of_the_root_does_not_run_the_covering_tests_all_packages() -> None:
    assert all(
        Path(found).parent == Path("tests/unit") for found in covering_tests("haclient/errors.py")
    )


@pytest.mark.parametrize("changed", ["tests/support/peer.py", "LICENSE", "tests/unit/test_gone.py"])
def test_a_file_without_covering_tests_its_own_selects_none(changed: str) -> None:
    assert covering_tests(changed) == []


def test_each_test_is_selected_once_and_the_style_always() -> None:
    selected = select(["haclient/errors.py", "haclient/codecs.py", "tests/unit/test_errors.py"])
    assert len(selected) == len(set(selected))
    assert set(ALWAYS) <= set(selected)


def test_the_folders_of_the_table_exist() -> None:
    paths = [*PACKAGES, *PACKAGES.values(), *ALWAYS]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_what_has_changed_is_known_without_an_upstream() -> None:
    assert all(isinstance(path, str) for path in changed_files())
