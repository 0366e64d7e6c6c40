"""The documents tell the truth: commands, options, links, names and the tree of errors exist."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import haclient.errors
import haclient.events
from haclient.cli.app import commands
from support.documents import FORMS, blocks, command_lines, links

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
NAMED = [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in DOCUMENTS]
OF_USERS = {"pandas", "protobuf"}  # DataFrames and generated classes of the program
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install --quiet nox && .venv/bin/nox"


def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def leaves(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*prefix, name))
        else:
            yield " ".join([*prefix, name]), command


def unknown_in(words: list[str]) -> str:
    """What a command line names that does not exist; empty when all of it does."""
    command: click.Command = commands
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        if name not in command.commands:
            return f"command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return " ".join(sorted(used - known))


@pytest.mark.parametrize("path", NAMED)
def test_every_documented_command_line_exists(path: Path) -> None:
    wrong = [words for words in command_lines(text(path)) if unknown_in(words)]
    assert [f"{' '.join(words)}: no {unknown_in(words)}" for words in wrong] == []


def test_every_command_is_documented() -> None:
    page = text("docs/command-line.md")
    assert [name for name, _ in leaves(commands) if f"\n## {name}\n" not in page] == []


def test_every_documented_option_of_a_command_exists() -> None:
    _, *sections = re.split(r"^## ", text("docs/command-line.md"), flags=re.MULTILINE)
    known = dict(leaves(commands))
    wrong: list[str] = []
    for section in sections:
        name = section.partition("\n")[0]
        if name in known:
            options = {option for parameter in known[name].params for option in parameter.opts}
            mentioned = re.findall(r"`(--[a-z-]+|-[a-z])\b", section)
            wrong += [f"{name} {option}" for option in mentioned if option not in options]
    assert wrong == []


def test_every_option_of_a_command_is_documented() -> None:
    _, *sections = re.split(r"^## ", text("docs/command-line.md"), flags=re.MULTILINE)
    pages = {section.partition("\n")[0]: section for section in sections}
    missing: list[str] = []
    for name, command in leaves(commands):
        shown = [each for each in command.params if not getattr(each, "hidden", False)]
        options = {option for each in shown for option in each.opts if option[0] == "-"}
        page = pages[name] + pages["Common options"]
        missing += [f"{name} {option}" for option in options if option not in page]
    assert missing == []


def test_a_wrong_command_line_would_be_found() -> None:
    page = (
        "```console\n$ echo x | haclient publish --topic t --no-such-option 1\n$ haclient fly\n```"
    )
    assert [unknown_in(words) for words in command_lines(page)] == [
        "--no-such-option",
        "command fly",
    ]


@pytest.mark.parametrize("path", NAMED)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert [link for link in links(text(path)) if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", NAMED)
def test_python_in_the_documents_imports_names_that_exist(path: Path) -> None:
    missing: list[str] = []
    for block in blocks(text(path)):
        if block.language == "python":
            missing += [name for name in imported(block.text) if not exists(*name.split(":"))]
    assert missing == []


def test_a_program_in_tabs_has_each_form() -> None:
    forms: dict[str, int] = {}
    for path in DOCUMENTS:
        for block in blocks(text(path)):
            if block.language == "python":
                forms[block.tab] = forms.get(block.tab, 0) + 1
    assert len({forms[form] for form in FORMS}) == 1


def imported(source: str) -> Iterator[str]:
    """`module:name` of all imports of our own packages."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("haclient"):
                yield from (f"{module}:{alias.name}" for alias in names)
            case _:
                pass


def exists(module: str, name: str) -> bool:
    if module.startswith("haclient.pyspark."):  # its modules cannot be imported without the extra
        tree = ast.parse(text(f"{module.replace('.', '/')}.py"))
        kinds = (ast.FunctionDef, ast.ClassDef)
        return name in {node.name for node in tree.body if isinstance(node, kinds)}
    found = importlib.import_module(module)
    # A name that is loaded when it is first used may need the extra, too.
    if name in dir(found) or hasattr(found, name):
        return True
    # A module of a package, which `from package import module` loads.
    return hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None


@pytest.mark.row("CC37")
def test_the_tree_of_errors_is_documented_as_it_is() -> None:
    tree = next(block.text for block in blocks(text("docs/errors.md")) if block.language == "text")
    drawn = re.findall(r"^[| `-]*([A-Z]\w+)", tree, flags=re.MULTILINE)
    kinds = [name for name in haclient.errors.__all__ if name[0].isupper()]
    assert sorted(drawn) == sorted(kinds)
    depth = {name: tree.splitlines()[i].index(name) // 4 for i, name in enumerate(drawn)}
    for name in kinds:
        kind = getattr(haclient.errors, name)
        parents = [base.__name__ for base in kind.__mro__[1:] if base.__name__ in depth]
        assert depth[name] == len(parents), name


def test_a_deployed_program_works_where_its_stores_are_kept() -> None:
    """It names them by relative paths."""
    page = text("docs/deployment.md")
    assert '"billing.publish"' in page
    unit = dict(re.findall(r"^(\w+)=(.*)$", page, flags=re.MULTILINE))
    assert unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"
    found = re.search(r"workingDir: (\S+)\n.*mountPath: (\S+)}", page, flags=re.DOTALL)
    assert found is not None
    assert found[1] == found[2]


def test_ci_runs_the_command_of_the_readme() -> None:
    assert f"```sh\n{TEST_COMMAND}\n```" in text("README.md")
    assert TEST_COMMAND in text(".ci/run")


@pytest.mark.parametrize(
    ("page", "unit", "limit"),
    [("README.md", "words", 700), ("CONTRIBUTING.md", "lines", 120), ("CHANGELOG.md", "lines", 60)],
)
def test_the_first_pages_stay_short(page: str, unit: str, limit: int) -> None:
    found = {"words": len(text(page).split()), "lines": len(text(page).splitlines())}
    assert found[unit] <= limit


def test_the_picture_is_what_its_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs/draw_overview.py"))
    assert script["drawing"]() == text("docs/overview.svg")
    assert ET.fromstring(text("docs/overview.svg")).tag.endswith("svg")  # noqa: S314  # ours


@pytest.mark.parametrize("package", ["haclient", "haclient.stores", "haclient.pyspark"])
def test_every_exported_name_is_on_a_page_of_the_api(package: str) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    shown = set(re.findall(r"^\.\. (?:auto|py:)\w+:: \S*?(\w+)$", pages, flags=re.MULTILINE))
    for module in (haclient.errors, haclient.events):
        shown |= {name for name in module.__all__ if f"automodule:: {module.__name__}" in pages}
    exported = importlib.import_module(package).__all__
    assert [name for name in exported if name not in shown and name != "__version__"] == []


def test_every_dependency_and_extra_is_imported() -> None:
    """Except `OF_USERS`: an extra only limits their versions."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    listed = [
        *project["dependencies"],
        *(r for name in extras if name != "test" for r in extras[name]),
    ]
    packages = {re.split("[^a-z0-9-]", requirement)[0] for requirement in listed} - OF_USERS
    folders = (ROOT / "haclient", ROOT / "stores/haclient_stores", ROOT / "fake_server")
    sources = "\n".join(
        path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")
    )
    imported_names = set(re.findall(r"^ *(?:from|import) (\w+)", sources, flags=re.MULTILINE))
    assert sorted(packages - {package_of(name) for name in imported_names}) == []


def package_of(module: str) -> str:
    """The package that a module comes from."""
    known = {"re2": "google-re2", "opentelemetry": "opentelemetry-api"}
    return known.get(module, module.replace("_", "-"))


def test_every_run_time_dependency_has_a_reason() -> None:
    listed = tomllib.loads(text("pyproject.toml"))["project"]["dependencies"]
    names = [re.split("[^a-z0-9-]", requirement)[0] for requirement in listed]
    assert [name for name in names if f"\n| {name} |" not in text("CONTRIBUTING.md")] == []
