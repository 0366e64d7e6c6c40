"""Options that several commands share, and how a command receives them.

A command is a function of one frozen dataclass: `with_request(Request)` builds it from the parsed
options, whose names are the dataclass's fields.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Final, TypeVar, cast
from urllib.parse import quote, urlencode

import click
from click.core import ParameterSource
from typing_extensions import override

from haclient.cli.termination import one_line
from haclient.errors import UsageError
from haclient.options import DEFAULT_LOGON_OPTIONS
from haclient.protocol.options import Options
from haclient.protocol.uri import Uri

Request = TypeVar("Request")
Result = TypeVar("Result")


class Count(click.IntRange):
    """A whole number within limits."""

    name = "whole number"


class _PositiveNumber(click.FloatRange):
    """A number above zero; "nan" is refused, since no comparison with it is true."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    @override
    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it takes texts
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


POSITIVE_NUMBER = _PositiveNumber()


_TLS: Final = "haclient.tls"  # where the options for TLS are until the servers are parsed


def _note_tls(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = str(option.name).removeprefix("tls_")
        context.meta.setdefault(_TLS, {})[name] = value


def _with_tls(servers: tuple[str, ...], files: Mapping[str, str]) -> tuple[str, ...]:
    """The URIs with the files as options of those that use TLS."""
    added = urlencode(files, quote_via=quote)
    if not any(uri.startswith("tcps:") for uri in servers):
        given = ", ".join(f"--tls-{name}" for name in files)
        raise click.UsageError(f"{given}: no server uses TLS: wanted tcps://HOST:PORT/amps/json")
    return tuple(
        f"{uri}{'&' if '?' in uri else '?'}{added}" if uri.startswith("tcps:") else uri
        for uri in servers
    )


def _parse_servers(
    context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Server URIs separated by commas."""
    if value is None:
        raise click.UsageError("no server: give --server URI[,URI...] or set AMPS_URI")
    servers = tuple(part.strip() for part in value.split(",") if part.strip())
    if not servers:
        raise click.BadParameter("no server is named")
    if files := context.meta.get(_TLS):
        servers = _with_tls(servers, files)
    if len(servers) > 1 and any("://" not in each for each in servers):  # the rest of a password?
        raise click.BadParameter(
            "each connection string has '://': write ',' in a user or password as %2C"
        )
    for server in servers:
        scheme, found, _ = server.partition("://")
        if found and scheme.lower() not in _SCHEMES:
            raise click.BadParameter(
                f"{scheme}:// is no scheme of a server: wanted an address such as "
                "tcp://localhost:9007/amps/json, or tcps:// with TLS"
            )
        try:
            Uri.parse(server)
        except UsageError as error:
            raise click.BadParameter(str(error)) from error
    return servers


_SCHEMES: Final = frozenset({"tcp", "tcps", "unix"})
"""The schemes under which another process can be a server."""

_EMPTY: Final = "it is empty"  # the usual cause is an unset shell variable


class FilePath(click.Path):
    """The name of a file or directory; an empty one would be the working directory."""

    @override
    def convert(
        self, value: str | PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | PathLike[str]:
        if not str(value):
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


_server = click.option(
    "-s",
    "--server",
    "servers",
    metavar="URI[,URI...]",
    callback=_parse_servers,
    envvar="AMPS_URI",
    help="Servers to try in this order, such as tcp://host:9007/amps/json. Default: $AMPS_URI.",
)
_tls_option = functools.partial(
    click.option,
    type=FilePath(exists=True, dir_okay=False),
    is_eager=True,  # before the servers, whose URIs get them
    expose_value=False,
    callback=_note_tls,
)
_TLS_OPTIONS: Final = (
    _tls_option(
        "--tls-ca",
        help="The authorities that tcps:// servers are trusted by, in PEM. "
        "Default: those of the system.",
    ),
    _tls_option("--tls-cert", help="A certificate of ours for tcps:// servers, in PEM."),
    _tls_option("--tls-key", help="Its key, unless that is in the same file."),
)


_LOGON_OPTIONS: Final = "haclient.logon_options"


def _note_logon_options(
    context: click.Context, _option: click.Parameter, value: str | None
) -> None:
    if value is not None:
        _check_utf8(value)
        context.meta[_LOGON_OPTIONS] = value


_logon_options = click.option(
    "--logon-options",
    metavar="OPTIONS",
    expose_value=False,
    callback=_note_logon_options,
    help="The options of the logon, for servers that misread ours; '' sends none. "
    f"Default: {DEFAULT_LOGON_OPTIONS}.",
)


def logon_options() -> str:
    """What the command that is being carried out was given as `--logon-options`."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_LOGON_OPTIONS)
    return DEFAULT_LOGON_OPTIONS if found is None else str(found)


def server_option(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add `--server` to a command, and what TLS and the logon need."""
    for option in (_logon_options, *reversed(_TLS_OPTIONS), _server):
        function = option(function)
    return function


_TOPIC_ARGUMENT: Final = "topic_argument"


def topic_option(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the topic as an argument and as an option; `with_request` accepts one of them."""
    option = click.option("-t", "--topic", help="The topic; or give it as the argument TOPIC.")
    argument = click.argument(_TOPIC_ARGUMENT, metavar="[TOPIC]", required=False)
    return argument(option(function))


def _take_topic(context: click.Context, options: dict[str, object]) -> None:
    """Store the topic from the argument or the option under `topic`."""
    if _TOPIC_ARGUMENT not in options:
        return
    argument, option = options.pop(_TOPIC_ARGUMENT), options["topic"]
    if argument is None and option is None:
        raise click.UsageError(
            f"no topic: give --topic TOPIC, or '{context.command_path} TOPIC'", context
        )
    if argument is not None and option is not None:
        raise click.UsageError(
            f"two topics: the argument {argument!r} and --topic {option!r}: give one of them; "
            "long options begin with two dashes",
            context,
        )
    topic = str(option if argument is None else argument)
    if any(character < " " for character in topic):  # such as the line feed at a file's end
        raise click.UsageError(f"the topic {topic!r} has a control character", context)
    options["topic"] = topic


filter_option = click.option(
    "-f", "--filter", default="", help="A content filter, such as '/px > 10'."
)

order_by_option = click.option("--order-by", default="", help="How to sort, such as '/px DESC'.")
top_n_option = functools.partial(click.option, "--top-n", type=Count(min=0), metavar="N")


def _needs_top_n(context: click.Context, _option: click.Parameter, value: int | None) -> int | None:
    if value is not None and context.params.get("top_n") is None:
        raise click.UsageError("--skip-n needs --top-n, the number of records of a page")
    return value


skip_n_option = functools.partial(
    click.option, "--skip-n", type=Count(min=0), metavar="N", callback=_needs_top_n
)


def _parse_select(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    directives = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    try:
        return Options(select=directives).select
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


select_option = click.option(
    "--select",
    metavar="LIST",
    callback=_parse_select,
    help="Print these fields only, such as '-/,+/id,+/px', or all but some: '-/address'.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON objects, one per line."
)
client_name_option = click.option(
    "--client-name",
    help="The client name. Default: the owner of the store if there is one, else host and process "
    "id.",
)
timeout_option = functools.partial(
    click.option, "--timeout", type=POSITIVE_NUMBER, metavar="SECONDS"
)
count_option = click.option(
    "-n",
    "--count",
    type=Count(min=1),
    metavar="N",
    help="End after so many messages.",
)
MAX_BATCH: Final = 10_000
"""The largest batch that a server accepts, in records."""

delta_option = click.option(
    "--delta", is_flag=True, help="Of each update of a record, only the fields that have changed."
)
batch_size_option = click.option(
    "--batch-size",
    type=Count(1, MAX_BATCH),
    metavar="N",
    default=10,
    show_default=True,
    help="Records per frame on the wire.",
)
max_backlog_option = functools.partial(
    click.option, "--max-backlog", type=Count(min=1), metavar="N", show_default=True
)


_RAW: Final = frozenset({"messages", "delimiter", "file", "user_file", "data"})
"""Options with bodies and names of files, which may be any bytes."""


_MAY_BE_EMPTY: Final = frozenset({"messages", "data", "filter", "order_by", "select", "key"})
"""Options whose value may be empty: an empty body, or the same as leaving the option out."""


def _check_utf8(text: str, option: click.Parameter | None = None) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(
            f"character {error.start + 1} is not UTF-8: wanted text in UTF-8", param=option
        ) from None


def _check_texts(context: click.Context) -> None:
    """Check that no text is empty, and that texts for the server are UTF-8.

    Raises:
        click.BadParameter: A text is empty, or it is not UTF-8 and would be sent as other bytes or
            not at all. Names of files may be any bytes.
    """
    for option in context.command.params:
        if not isinstance(option.type, click.types.StringParamType):
            continue
        name = str(option.name)
        value: object = context.params.get(name)
        texts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if is_given and name not in _MAY_BE_EMPTY:
            for text in texts:
                if isinstance(text, str) and not (text if name in _RAW else text.strip()):
                    raise click.BadParameter(_EMPTY, param=option)
        if name in _RAW:
            continue
        for text in texts:
            _check_utf8(str(text), option)


def with_request(
    request: Callable[..., Request],
) -> Callable[[Callable[[Request], Result]], Callable[..., Result]]:
    """Hand a command its options as one value: `request(**options)`."""

    def decorate(function: Callable[[Request], Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def callback(**options: object) -> Result:
            context = click.get_current_context()
            _check_texts(context)
            _take_topic(context, options)
            try:
                return function(request(**options))
            except UsageError as error:  # click's own errors name their command; so shall ours
                raise click.UsageError(one_line(error), context) from error

        return callback

    return decorate
