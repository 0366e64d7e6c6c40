"""The style of this repository, as far as a machine can judge it; CONTRIBUTING.md has the words."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from support.sources import tree

ROOT = Path(__file__).parents[1]
SOURCES = {
    "haclient": ROOT / "haclient",
    "haclient_stores": ROOT / "stores/haclient_stores",
    "haclient_fake_server": ROOT / "fake_server/haclient_fake_server",
}
# Their tests need the extra pyspark and Java, and so a session of nox of their own.
PYSPARK_FOLDERS = {
    ROOT / "haclient/pyspark": "tests/pyspark",
    ROOT / "haclient/cli/pyspark": "tests/pyspark/cli",
}
UNIT_FOLDERS = {"haclient": "", "haclient_stores": "stores", "haclient_fake_server": "fake_server"}
PURE = (
    "haclient/protocol",
    "haclient/session",
    "haclient/servers/auth.py",
    "fake_server/haclient_fake_server/engine",
    "fake_server/haclient_fake_server/journal/format.py",
    "stores/haclient_stores/bookmark.py",
    "stores/haclient_stores/header_page.py",
    "stores/haclient_stores/tracker",
    "stores/haclient_stores/publish_stores/window.py",
)
MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 60

# Names of machines, registries and private folders that must not travel with the sources.
FOREIGN = re.compile(
    r"(?<![\w.])/(?:work|farm|root|home/\w+)/|/tmp/bash_jobs|index-url\s*=|https?://[^\s/]*pypi"
)
# A document that is not in the repository, and the name of a requirement: nobody can look them up.
CITATION = re.compile(r"\b(?:seed S\d|(?:design|protocol|performance) \d+(?:\.\d+)*)\b")
ROW = re.compile(
    r"\b(?:CC|HA|SC|DS|PS|BS|RP|SM|MS|QC|AT|HB|OB|CLI|TL|RB|OP|SW|QB|AK|RE(?!2\b)|FI|AD|SB|SS|SK|AU|ID)"
    r"[0-9]{1,2}\b"
)
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
PRAGMA = re.compile(r"#\s*(?P<pragma>noqa|type:\s*ignore|pyright:\s*ignore)(?P<rest>.*)$")
PRAGMA_REST = re.compile(
    r"(?::\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*|\[[\w-]+(?:,\s*[\w-]+)*\])(?P<why>.*)"
)
CLOCK_CALLS = {"now", "utcnow", "today"}
IMPURE_MODULES = {"time", "random", "secrets", "uuid", "os", "pathlib", "tempfile", "io"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules() -> list[Path]:
    return sorted(path for folder in SOURCES.values() for path in folder.rglob("*.py"))


def python_files() -> list[Path]:
    return sorted(
        ROOT / name for name in tracked_files() if name.endswith(".py") and (ROOT / name).is_file()
    )


@cache
def tracked_files() -> tuple[str, ...]:
    """What git would carry: tracked, or new and not ignored. Without git: every source file."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return tuple(relative(path) for path in ROOT.rglob("*.py") if ".nox" not in path.parts)
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def check(find: Callable[[Path], Iterator[str]], paths: list[Path]) -> None:
    """Fail with one line per finding: a list of places to mend."""
    found = [f"{relative(path)}: {text}" for path in paths for text in find(path)]
    assert not found, "\n".join(["", *found])


def test_there_is_something_to_check() -> None:
    assert len(modules()) > len(SOURCES)


def test_modules_stay_short() -> None:
    def long_modules(path: Path) -> Iterator[str]:
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_MODULE_LINES:
            yield f"{count} lines; the ceiling is {MAX_MODULE_LINES}"

    # A long file of tests is a list; a long module is several ideas.
    check(long_modules, [path for path in python_files() if "tests" not in path.parts])


def test_functions_stay_short() -> None:
    def long_functions(path: Path) -> Iterator[str]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    yield f"{node.name} has {count} lines; the ceiling is {MAX_FUNCTION_LINES}"

    check(long_functions, python_files())


def test_nothing_is_left_for_later() -> None:
    def unfinished(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if UNFINISHED.search(line):
                yield f"line {number}: {line.strip()}"

    check(unfinished, python_files())


def test_nothing_outside_the_repository_is_cited() -> None:
    def citations(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if CITATION.search(line):
                yield f"line {number}: {line.strip()}"

    check(citations, [*python_files(), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def test_requirements_are_named_in_tests_only() -> None:
    def rows(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if ROW.search(line):
                yield f"line {number}: {line.strip()}"

    check(rows, modules())


def test_only_the_command_line_prints() -> None:
    def prints(path: Path) -> Iterator[str]:
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Name(id="print" | "breakpoint" as name)):
                    yield f"line {node.lineno}: {name}()"
                case _:
                    pass

    quiet = [path for path in modules() if "cli" not in path.parts and path.stem != "__main__"]
    check(prints, quiet)


def test_a_silenced_rule_is_named_and_its_reason_given() -> None:
    def unexplained(path: Path) -> Iterator[str]:
        above = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = PRAGMA.search(line)
            if found is not None:
                rest = PRAGMA_REST.match(found["rest"])
                if rest is None:
                    yield f"line {number}: {found.group().strip()} needs a code"
                elif not (rest["why"].strip(" #-:;") or above.startswith("#")):
                    yield f"line {number}: {found.group().strip()} needs a reason"
            above = line.strip()

    others = [path for path in python_files() if path != Path(__file__)]
    check(unexplained, others)


def test_every_module_says_what_it_is() -> None:
    def silent(path: Path) -> Iterator[str]:
        if not ast.get_docstring(tree(path)):
            yield "has no docstring"

    check(silent, modules())


def test_every_package_has_a_folder_of_tests() -> None:
    """Of the same path below tests/unit, whichever modules the package is cut into."""

    def untested(package: Path) -> Iterator[str]:
        folder = folder_of_tests(package)
        if not any(folder.glob("test_*.py")):
            yield f"has no tests in {relative(folder)}"

    check(untested, sorted({path.parent for path in modules() if path.name != "__init__.py"}))


def folder_of_tests(package: Path) -> Path:
    for folder, tests in PYSPARK_FOLDERS.items():
        if package.is_relative_to(folder):
            return ROOT / tests / package.relative_to(folder)
    for name, folder in SOURCES.items():
        if package.is_relative_to(folder):
            return ROOT / "tests/unit" / UNIT_FOLDERS[name] / package.relative_to(folder)
    raise AssertionError(package)


def test_only_modules_of_the_api_pages_list_their_names() -> None:
    def lists_names(path: Path) -> Iterator[str]:
        for node in tree(path).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")]):
                    yield "has an __all__, and is on no page of docs/api"
                case _:
                    pass

    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    public = {"haclient.stores", "haclient_stores.errors", "haclient_fake_server.pytest_plugin"}
    # A base class, whose methods the pages show at the stores.
    public.add("haclient_stores.bookmark_stores.tracked_store")
    public |= set(re.findall(r"automodule:: ([\w.]+)", pages))
    public |= set(re.findall(r":: (haclient[\w.]*)\.\w+$", pages, flags=re.MULTILINE))
    # The pages show what these export by the names that users import.
    for exporter in ("__init__.py", "stores.py", "pyspark/__init__.py", "testing/__init__.py"):
        text = (ROOT / "haclient" / exporter).read_text(encoding="utf-8")
        public |= set(re.findall(r"^ *from (haclient\w*\.[\w.]+) import", text, flags=re.MULTILINE))
    internal = [path for path in modules() if path.name != "__init__.py"]
    check(lists_names, [path for path in internal if module_name(path) not in public])


def module_name(path: Path) -> str:
    for package, folder in SOURCES.items():
        if path.is_relative_to(folder):
            return ".".join((package, *path.relative_to(folder).with_suffix("").parts))
    raise AssertionError(path)


def test_packages_only_re_export() -> None:
    def does_more(path: Path) -> Iterator[str]:
        for node in tree(path).body:
            if not is_re_export(node):
                yield f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}"

    check(does_more, [path for path in modules() if path.name == "__init__.py"])


NO_OUTPUT = "logging.getLogger('haclient').addHandler(logging.NullHandler())"
"""What a library does for its loggers; only the first module to be imported can do it for all."""


def is_re_export(node: ast.stmt) -> bool:
    """An import, the docstring, `__all__`, a constant table of names, or the lazy `__getattr__`."""
    match node:
        case ast.Expr(value=ast.Call()):
            return ast.unparse(node) == NO_OUTPUT
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return all(is_re_export(child) for child in node.body)
        case ast.Assign() | ast.AnnAssign():
            return not any(isinstance(child, ast.Lambda) for child in ast.walk(node))
        case ast.FunctionDef(name="__getattr__" | "__dir__"):
            return True
        case _:
            return False


def test_pure_packages_read_no_clock_no_file_and_no_random_number() -> None:
    def impure(path: Path) -> Iterator[str]:
        for node in executed(tree(path)):
            match node:
                case ast.Import(names=names):
                    yield from (f"import {name.name}" for name in names if is_impure(name.name))
                case ast.ImportFrom(module=str(module)) if is_impure(module):
                    yield f"from {module} import ..."
                case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in CLOCK_CALLS:
                    yield f"line {node.lineno}: .{attribute}()"
                case ast.Call(func=ast.Name(id="open")):
                    yield f"line {node.lineno}: open()"
                case _:
                    pass

    check(impure, [path for path in modules() if is_pure(path)])


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case _:
                yield child
                yield from executed(child)


def is_impure(module: str) -> bool:
    return module.partition(".")[0] in IMPURE_MODULES


def is_pure(path: Path) -> bool:
    return relative(path).startswith(PURE)


def test_no_machine_or_registry_is_named_in_the_repository() -> None:
    def foreign(path: Path) -> Iterator[str]:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return
        for number, line in enumerate(text.splitlines(), 1):
            if FOREIGN.search(line):
                yield f"line {number}: {line.strip()[:80]}"

    names = [name for name in tracked_files() if ROOT / name != Path(__file__)]
    check(foreign, [ROOT / name for name in names])
