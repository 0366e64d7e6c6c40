"""The command line as a whole: what it offers, and how mistakes end."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import click
import pytest
from click.testing import CliRunner

from haclient._version import __version__
from haclient.cli.app import add_verbose, commands, run

OFFERED = [
    "broker",
    "broker cluster",
    "broker run",
    "broker sample-config",
    "broker verify-config",
    "demo",
    "ping",
    "publish",
    "pyspark",
    "pyspark audit",
    "pyspark audit-queues",
    "pyspark export",
    "pyspark fleet",
    "pyspark reconcile",
    "pyspark replay",
    "pyspark seal",
    "pyspark sow-as-of",
    "queue",
    "queue browse",
    "queue consume",
    "queue depth",
    "queue move",
    "sow",
    "sow-and-subscribe",
    "sow-delete",
    "store",
    "store drop-parked",
    "store explain",
    "store export",
    "store prune",
    "store show",
    "store verify",
    "subscribe",
]


def offered(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, also those of groups."""
    for name, command in group.commands.items():
        yield before + name, command
        if isinstance(command, click.Group):
            yield from offered(command, f"{before}{name} ")


@pytest.mark.row("CLI1", "CLI5")
def test_the_commands_are_offered_and_documented() -> None:
    assert sorted(words for words, _ in offered(commands)) == OFFERED
    for words, command in offered(commands):
        result = CliRunner().invoke(command, ["--help"])
        assert result.exit_code == 0, words
        assert command.help, words


def test_the_help_names_nothing_internal() -> None:
    for words, command in offered(commands):
        text = CliRunner().invoke(command, ["--help"]).output
        assert re.findall(r"\([A-Z]{2,3}[0-9]+", text) == [], words
    assert re.findall(r"\([A-Z]{2,3}[0-9]+", CliRunner().invoke(commands, ["--help"]).output) == []


def test_every_option_explains_itself() -> None:
    for words, command in offered(commands):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{words} {parameter.name}"


def test_the_list_of_commands_fits_a_terminal() -> None:
    for words, command in [("haclient", commands), *offered(commands)]:
        if isinstance(command, click.Group):
            text = CliRunner().invoke(command, ["--help"], terminal_width=80).output
            assert "..." not in text.partition("Commands:")[2], words


def test_the_help_has_no_names_of_types() -> None:
    for words, command in offered(commands):
        text = CliRunner().invoke(command, ["--help"]).output
        assert " RANGE" not in text, words
        assert "WHOLE NUMBER" not in text, words


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["frobnicate"], "haclient"),
        (["ping", "--frobnicate"], "haclient ping"),
        (["queue", "move", "a", "a"], "haclient queue move"),
        (["sow", "t", "--skip-n", "1", "--top-n", "1"], "haclient sow"),
    ],
    ids=["group", "click", "nested", "ours"],
)
def test_a_usage_error_names_the_help(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, *(["-s", "tcp://localhost:1/amps"] if len(words) > 2 else [])]) == 2
    assert capsys.readouterr().err.endswith(f"; try '{command} --help'\n")


def test_jobs_without_the_extra_say_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("pyarrow") is not None:
        pytest.skip("not applicable: the extra is installed")
    assert run(["pyspark", "audit", "journal"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("haclient: error: pyspark is missing in ")
    assert "pip install 'haclient[pyspark]'" in line


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"haclient, version {__version__}\n"


def test_help_is_exit_code_0_and_no_command_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "Usage: haclient" in capsys.readouterr().out
    assert run([]) == 2
    assert "Usage: haclient" in capsys.readouterr().err


@pytest.mark.row("CLI9")
def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ping", "--frobnicate"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("haclient: error: ")
    assert err.count("\n") == 1


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AttributeError("oops")

    monkeypatch.setattr(commands, "main", broken)
    with pytest.raises(AttributeError, match="oops"):
        run([])


def test_warnings_look_like_errors_and_the_handler_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warns(*_: object, **__: object) -> int:
        logging.getLogger("haclient.somewhere").warning("the %s\nis torn", "tail")
        return 0

    before = list(logging.getLogger().handlers)
    monkeypatch.setattr(commands, "main", warns)
    assert run([]) == 0
    assert capsys.readouterr().err == "haclient: warning: the tail is torn\n"
    assert logging.getLogger().handlers == before


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], []),
        (["-v"], ["haclient: info: attempt"]),
        (["-vv"], ["haclient: info: TIME attempt", "haclient: debug: TIME > frame"]),
        (["-v", "--verbose"], ["haclient: info: TIME attempt", "haclient: debug: TIME > frame"]),
    ],
)
def test_more_is_said_on_request_and_only_of_our_own(
    words: list[str],
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command
    def noisy() -> int:
        logging.getLogger("haclient.transport").info("attempt")
        logging.getLogger("haclient.wire").debug("> frame")
        logging.getLogger("haclient.flight_recorder").warning("a line for\neach of the last frames")
        logging.getLogger("other").info("of somebody else")
        logging.getLogger("haclienthack").info("of somebody else")
        return 0

    add_verbose(noisy)
    monkeypatch.setitem(commands.commands, "noisy", noisy)
    for _ in range(2):  # nothing is left behind
        for command in ([*words, "noisy"], ["noisy", *words], [*words[:1], "noisy", *words[1:]]):
            assert run(command) == 0
            told = re.sub(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", capsys.readouterr().err
            )
            assert told.splitlines() == shown
    assert logging.getLogger("haclient").level == logging.NOTSET


def leaves(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below this one, with its words."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from leaves(each, *words, name)
    else:
        yield words, command


WITH_EMPTY_VALUES: Final = {
    *("messages", "data", "filter", "order_by", "select", "key", "logon_options"),
}


def takes_a_text(option: click.Parameter) -> bool:
    return option.nargs in {1, -1} and not (
        isinstance(option, click.Option) and (option.is_flag or option.count)
    )


def a_value_of(option: click.Parameter) -> str:
    if option.name == "servers":
        return "tcp://localhost:1/amps/json"
    return option.type.choices[0] if isinstance(option.type, click.Choice) else __file__


@pytest.mark.parametrize(
    ("words", "option"),
    [
        pytest.param(words, option, id=f"{'-'.join(words)}-{option.name}")
        for words, command in leaves(commands)
        for option in command.params
        if takes_a_text(option) and option.name not in WITH_EMPTY_VALUES
    ],
)
def test_an_option_whose_variable_is_not_set_is_named(
    words: tuple[str, ...], option: click.Parameter
) -> None:
    command = dict(leaves(commands))[words]
    arguments: list[str] = []
    for each in command.params:
        value = "" if each is option else a_value_of(each)
        if each is option or each.required or each.name == "servers":
            arguments += (
                [value] if isinstance(each, click.Argument) else [f"{each.opts[-1]}={value}"]
            )
    result = CliRunner().invoke(commands, [*words, *arguments])
    assert result.exit_code == 2, result.output
    name = option.opts[-1] if isinstance(option, click.Option) else option.human_readable_name
    assert re.search(f"Invalid value for .*{re.escape(name)}.*:", " ".join(result.output.split()))


@pytest.mark.parametrize(
    ("typed", "offered_words"),
    [
        ("haclient sub", {"subscribe"}),
        ("haclient queue ", {"browse", "consume", "depth", "move"}),
        ("haclient subscribe --boo", {"--bookmark"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_of_the_command_line_complete_in_a_shell(
    shell: str, typed: str, offered_words: set[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("_HACLIENT_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    *_, last = typed.split(" ")
    monkeypatch.setenv("COMP_CWORD", last if shell == "fish" else str(typed.count(" ")))
    with pytest.raises(SystemExit):
        run([])
    words = re.findall(r"(?:plain,)?([a-z-]+)", capsys.readouterr().out)
    assert offered_words <= set(words)
    monkeypatch.setenv("_HACLIENT_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit):
        run([])
    assert "_HACLIENT_COMPLETE" in capsys.readouterr().out
