"""`python -m tools.changed_tests`: the tests of what differs from the last pushed commit.

A changed module is covered by the test folder of its package, a changed test by itself. A change of
what all tests share (tests/support, tests/conftest.py) selects nothing: the whole suite tests it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where the sources of a package are, and the folder of its tests. The most specific comes first.
PACKAGES = {
    "haclient/cli/pyspark": "tests/pyspark/cli",
    "haclient/pyspark": "tests/pyspark",
    "haclient": "tests/unit",
    "stores/haclient_stores": "tests/unit/stores",
    "fake_server/haclient_fake_server": "tests/unit/fake_server",
    "benchmarks": "tests/unit/benchmarks",
    "examples": "tests/unit/examples",
    "tools": "tests/unit/tools",
}
# Fast, and they check every file.
ALWAYS = ("tests/test_tidy.py", "tests/test_rows.py")


def covering_tests(path: str, *, root: Path = ROOT) -> list[str]:
    """The test files and folders that cover a file; none for what has no tests of its own."""
    if path.startswith("tests/"):
        is_test = Path(path).name.startswith("test_") and path.endswith(".py")
        return [path] if is_test and (root / path).is_file() else []
    if path.startswith("docs/") or path.endswith(".md"):
        return ["tests/test_docs.py"]
    for sources, folder in PACKAGES.items():
        if path.startswith(f"{sources}/") and path.endswith(".py"):
            return _tests_of_module(path, sources=sources, folder=folder, root=root)
    return []


def _tests_of_module(path: str, *, sources: str, folder: str, root: Path) -> list[str]:
    """The folder that mirrors the package; of a package that has subfolders, its own files only."""
    inner = Path(path).relative_to(sources).parent
    tests = root / folder / inner
    while not tests.is_dir():
        tests = tests.parent
    return sorted(found.relative_to(root).as_posix() for found in tests.glob("test_*.py"))


def changed_files() -> list[str]:
    """What differs from the last commit that was pushed, or from the commit before this one."""
    head = _git("rev-parse", "HEAD")
    pushed = _git("rev-parse", "--verify", "--quiet", "@{upstream}")
    # Without an upstream, or with all of it pushed, the last commit is what is looked at.
    base = pushed if pushed and pushed != head else _git("rev-parse", "--verify", "HEAD~1")
    changed = _git("diff", "--name-only", *(base or head))
    return [*changed, *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def select(paths: Iterable[str], *, root: Path = ROOT) -> list[str]:
    """The tests of all of these files, each once, and those that run always."""
    found = {test for path in paths for test in covering_tests(path, root=root)}
    return [*ALWAYS, *sorted(found.difference(ALWAYS))]


def main() -> int:
    """Print the tests, one a line."""
    sys.stdout.write("\n".join([*select(changed_files()), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
