"""Options that commands share."""

from __future__ import annotations

from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from haclient.cli.options import (
    POSITIVE_NUMBER,
    client_name_option,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)


@dataclass(frozen=True)
class Request:
    servers: tuple[str, ...]
    client_name: str | None
    timeout: float | None


@click.command()
@server_option
@client_name_option
@timeout_option(help="how long")
@with_request(Request)
def command(request: Request) -> None:
    """Show."""
    click.echo(repr(request))


def shown(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(command, arguments, env=environment)
    return result.output


def test_a_command_gets_its_options_as_one_value() -> None:
    uri = "tcp://a:1/amps/json"
    expected = Request((uri, "tcp://b:2/amps"), "me", 1.5)
    given = ("--server", f"{uri}, tcp://b:2/amps,", "--client-name", "me", "--timeout", "1.5")
    assert shown(*given) == f"{expected!r}\n"


def test_the_server_may_come_from_the_environment() -> None:
    assert "tcp://c:3/amps" in shown(AMPS_URI="tcp://c:3/amps")


@pytest.mark.row("CLI9")
def test_a_bad_uri_is_named_without_its_password() -> None:
    told = shown("--server", "tcp://me:secret@host/amps")
    assert "host and port" in told
    assert "secret" not in told


@pytest.mark.row("AT12", "CLI9")
@pytest.mark.parametrize("server", ["tcp://joe:se,cret@h:1/amps", "tcp://h:1/amps,cret@h:1/amps"])
def test_a_comma_in_a_password_is_not_shown_and_told_how_to_write(server: str) -> None:
    output = shown("--server", server)
    assert "%2C" in output
    assert "joe" not in output
    assert "cret" not in output


def test_no_server_at_all_is_a_mistake() -> None:
    assert "--server" in shown()
    assert "no server is named" in shown("--server", ",")


@dataclass(frozen=True)
class TopicRequest:
    topic: str


@click.command()
@topic_option
@with_request(TopicRequest)
def about(request: TopicRequest) -> None:
    """Show."""
    click.echo(request.topic)


@pytest.mark.parametrize("words", [("orders",), ("-t", "orders"), ("--topic", "orders")])
def test_a_topic_is_an_argument_or_an_option(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(about, words).output == "orders\n"


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no topic: give --topic TOPIC, or 'about TOPIC'"),
        (("a", "-t", "b"), "two topics: the argument 'a' and --topic 'b'"),
        (("-topic", "orders"), "long options begin with two dashes"),
        (("",), "it is empty"),
    ],
)
def test_which_topic_is_meant_must_be_clear(words: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(about, words)
    assert (result.exit_code, told in result.output) == (2, True), result.output


@pytest.mark.parametrize("scheme", ["http", "mem", "nonsense"])
def test_only_what_another_process_can_serve_is_a_server(scheme: str) -> None:
    told = shown("--server", f"{scheme}://me:secret@host:1/amps/json")
    assert f"{scheme}:// is no scheme of a server: wanted an address such as tcp://" in " ".join(
        told.split()
    )
    assert "unix" not in told
    assert "secret" not in told


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "0", "-1", "x"])
def test_a_positive_number_is_a_number(text: str) -> None:
    with pytest.raises(click.BadParameter):
        POSITIVE_NUMBER.convert(text, None, None)
    assert POSITIVE_NUMBER.convert("2", None, None) == float("2")
