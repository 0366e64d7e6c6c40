"""`haclient broker run`: the reference broker as a process of its own."""

from __future__ import annotations

import gc
import math
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from haclient.cli.options import FilePath, with_request
from haclient.cli.output import print_result
from haclient.cli.termination import ExitCode, print_error, run_until_signal
from haclient.errors import UsageError

if TYPE_CHECKING:
    from haclient_fake_server.config import BrokerConfig

_FILE = FilePath(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokerRequest:
    config_file: Path | None
    listen: tuple[str, ...]
    data: Path | None
    name: str
    log_topics: tuple[str, ...]
    sow_topics: tuple[str, ...]
    queues: tuple[str, ...]
    message_types: tuple[str, ...]
    replicate_to: tuple[str, ...]
    user_file: Path | None
    entitlements: tuple[str, ...]
    event_log: Path | None
    parquet: bool
    parquet_compression: str
    archive: Path | None
    archive_after: float
    compress_after: float
    remove_after: float
    admin: str
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    fsync: str
    segment_bytes: int | None
    in_memory: bool
    faults_from_stdin: bool


def check_data_directory(path: Path) -> None:
    """Check that a directory is new, empty, or the data directory of a broker.

    Raises:
        UsageError: It holds something else: a mistyped path must not fill `/` with a log.
    """
    found = {each.name for each in path.iterdir()} if path.is_dir() else set[str]()
    names = sorted(found - {"lost+found"})  # which each new file system has
    if names and not any(name.startswith("journal.") for name in names):
        raise UsageError(
            f"--data {path}: it holds {names[0]!r} and no broker's log; "
            "give a new or an empty directory"
        )


def _config(request: _BrokerRequest) -> BrokerConfig:
    from haclient_fake_server import config  # noqa: PLC0415 - only this command needs a broker
    from haclient_fake_server.listener import check_reachable  # noqa: PLC0415 - as above

    if request.config_file is not None:
        return _config_of_file(request.config_file, request.user_file, request.entitlements)
    check_reachable(request.listen)
    if request.data is not None:
        check_data_directory(request.data)
    elif request.parquet:
        raise UsageError("--parquet: its files are in the directory of the log: give --data DIR")
    elif request.archive is not None:
        raise UsageError("--archive: the log is removed when the broker stops: give --data DIR")
    users = None if request.user_file is None else config.read_users(request.user_file)
    if request.tls_cert is None and any(each.startswith("tcps:") for each in request.listen):
        raise UsageError("--listen tcps://...: TLS needs a certificate: give --tls-cert FILE")
    log_topics = tuple(map(config.parse_log_topic, request.log_topics))
    parse_sow_topic = partial(config.parse_sow_topic, allow_user_keys=True)
    sow_topics = tuple(map(parse_sow_topic, request.sow_topics))
    queues = tuple(map(config.parse_queue, request.queues))
    tls = config.tls_files(request.listen, request.tls_cert, request.tls_key, request.tls_client_ca)
    replicate_to = tuple(map(config.parse_replicate_to, request.replicate_to))
    if request.in_memory and request.data is not None:
        raise UsageError("--in-memory keeps the log in memory, --data in files: give one of them")
    made_below = None if request.in_memory else Path()
    checked = config.BrokerConfig(
        name=request.name,
        listen=request.listen,
        data_dir=request.data or made_below,
        users=users,
        entitlements=tuple(map(config.parse_entitlement, request.entitlements)),
        log_topics=log_topics,
        sow_topics=sow_topics,
        queues=queues,
        message_types=request.message_types,
        replicate_to=replicate_to,
        parquet=request.parquet,
        parquet_compression=request.parquet_compression,
        archive_dir=request.archive,
        archive_after_s=request.archive_after,
        compress_after_s=request.compress_after,
        remove_after_s=request.remove_after,
        admin=request.admin,
        tls=tls,
        fsync=config.FsyncPolicy(request.fsync),
        segment_bytes=request.segment_bytes or config.BrokerConfig().segment_bytes,
    )
    if checked.data_dir == Path():  # a mistake must leave no temporary directory
        return replace(checked, data_dir=Path(tempfile.mkdtemp(prefix="haclient-broker-")))
    return checked


def _config_of_file(
    path: Path, user_file: Path | None, entitlements: tuple[str, ...]
) -> BrokerConfig:
    """The configuration in a file, which stands for all options but those of the users."""
    from haclient_fake_server import config  # noqa: PLC0415 - as above
    from haclient_fake_server.listener import check_reachable  # noqa: PLC0415 - as above
    from haclient_fake_server.xml_config import read_config  # noqa: PLC0415 - as above

    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        is_other = option.name in {"config_file", "user_file", "entitlements", "event_log"}
        if source is click.core.ParameterSource.COMMANDLINE and not is_other:
            what = f"--config and {option.opts[0]} exclude each other"
            raise UsageError(f"{what}: the file says it all but the users")
    users = None if user_file is None else config.read_users(user_file)
    found = read_config(path, users=users)
    check_reachable(found.listen)
    if found.data_dir is not None:
        check_data_directory(found.data_dir)
    return replace(found, entitlements=tuple(map(config.parse_entitlement, entitlements)))


@contextmanager
def _short_collections() -> Generator[None]:
    """Exempt objects that have survived a full garbage collection from later ones.

    With a million records a full collection would hold up all clients for a second. What the broker
    stores is in no reference cycles, so it is freed without the collector.
    """

    def freeze(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:  # noqa: PLR2004  # the oldest
            gc.freeze()

    gc.freeze()
    gc.callbacks.append(freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)
        gc.unfreeze()


async def _serve(config: BrokerConfig, request: _BrokerRequest) -> int:
    from haclient_fake_server.event_log import event_log  # noqa: PLC0415 - as above
    from haclient_fake_server.kill_points import KillPoints  # noqa: PLC0415 - as above
    from haclient_fake_server.server import BrokerServer  # noqa: PLC0415 - as above
    from haclient_fake_server.testing.processes import take_faults  # noqa: PLC0415 - as above

    is_temporary = request.data is None and request.config_file is None and not request.in_memory
    points = KillPoints()
    try:
        with (
            _short_collections(),
            nullcontext() if request.event_log is None else event_log(request.event_log),
        ):
            async with BrokerServer(config, kill_points=points) as server:
                if is_temporary:
                    what = (
                        f"the log is in {config.data_dir}, which is removed when the broker stops"
                    )
                    print_error(f"no --data: {what}", kind="note")
                print_result("\n".join(f"listening {uri}" for uri in server.uris), aside=True)
                if server.admin_uri:
                    print_result(f"admin {server.admin_uri}", aside=True)
                if request.faults_from_stdin:
                    await take_faults(points)
                await trio.sleep_forever()
    finally:
        if is_temporary and config.data_dir is not None:
            shutil.rmtree(config.data_dir, ignore_errors=True)
    return ExitCode.OK


_TOPIC_OPTIONS = (
    click.option(
        "--log-topic",
        "log_topics",
        multiple=True,
        default=(".*",),
        show_default=True,
        metavar="REGEX",
        help="Topics that are kept in the transaction log. May be given several times.",
    ),
    click.option(
        "--sow",
        "sow_topics",
        multiple=True,
        metavar="TOPIC:/key[,/key][,history][,pattern][,file_backed][,expiration=SECONDS]",
        help="A topic with a state of the world, its keys, whether it keeps its history, whether "
        "it is a regular expression, whether its records are kept in a database, and how long they "
        "live. May be given several times.",
    ),
    click.option(
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME[:TOPIC][,OPTION=VALUE]...",
        help="A message queue over a topic, by default the topic of its name, such as "
        "jobs,max_backlog=10,lease=30. Options: max_backlog (unacknowledged messages of one "
        "consumer; default: 1), queue_backlog (of all consumers), lease (seconds), semantics "
        "(at-least-once, at-most-once), delivery (proportional, round-robin, fast), leasing "
        "(sublet, strict), max_deliveries, max_cancels, expiration (seconds), priority "
        "(expression), barrier (filter), dead_letter (topic), recovery_point (epoch, now, a "
        "bookmark or a time), file_backed. May be given several times.",
    ),
    click.option(
        "--message-type",
        "message_types",
        multiple=True,
        metavar="NAME",
        help="A message type that clients may use besides those of AMPS. May be given several "
        "times.",
    ),
)


def topic_options(function: Callable[..., object]) -> Callable[..., object]:
    """Add the options that say what a broker does with topics."""
    for option in reversed(_TOPIC_OPTIONS):
        function = option(function)
    return function


@click.group()
def broker() -> None:
    """The reference broker."""


@broker.command("sample-config")
def sample_config() -> None:
    """Print a configuration file for `broker run --config`."""
    from haclient_fake_server.xml_config import SAMPLE  # noqa: PLC0415 - as above

    print_result(SAMPLE.rstrip())


@broker.command("verify-config")
@click.argument("path", metavar="FILE", type=_FILE)
@click.option("--user-file", type=_FILE, help="The file of users that the broker will be given.")
def verify_config(path: Path, user_file: Path | None) -> None:
    """Check a configuration file without starting a broker."""
    from haclient_fake_server.config import read_users  # noqa: PLC0415 - as above
    from haclient_fake_server.xml_config import read_config  # noqa: PLC0415 - as above

    read_config(path, users=None if user_file is None else read_users(user_file))
    print_result(f"{path}: ok")


@broker.command("run")
@click.option(
    "--config",
    "config_file",
    type=_FILE,
    help="A configuration file in the form of AMPS, in place of all other options but --user-file, "
    "--entitle and --event-log: see `haclient broker sample-config`.",
)
@click.option(
    "--listen",
    multiple=True,
    default=("tcp://127.0.0.1:9007",),
    show_default=True,
    help="Where to listen: tcp://HOST:PORT, where port 0 takes a free one, tcps:// or "
    "unix:///PATH. May be given several times.",
)
@click.option(
    "--data",
    type=FilePath(path_type=Path, file_okay=False),
    help="The directory of the log. Default: a temporary one, which is removed at the end.",
)
@click.option("--name", default="broker", show_default=True, help="The instance's name.")
@topic_options
@click.option(
    "--replicate-to",
    multiple=True,
    metavar="URI[,sync|async][,downgrade=SECONDS]",
    help="Another broker, with another --name, that gets everything that is logged; `sync`, the "
    "default, holds back confirmations until it has it, `downgrade` for how long at most. May be "
    "given several times.",
)
@click.option(
    "--user-file",
    type=FilePath(path_type=Path, dir_okay=False),
    help="File of the users that may log on, in lines user:password. Default: anyone may.",
)
@click.option(
    "--entitle",
    "entitlements",
    multiple=True,
    metavar="USER:ACCESS:TOPIC[:FILTER]",
    help="What a user (* for all) may do: read, publish, all (both) or replicate, with the topics "
    "that a pattern matches, and of their messages those that a filter matches. Default: "
    "everything. May be given several times.",
)
@click.option(
    "--event-log",
    type=_FILE,
    help="Append what happens to this file, one line each, in the form of AMPS.",
)
@click.option(
    "--parquet",
    is_flag=True,
    help="Write each closed file of the log to DIR/parquet too, for analytics; needs pyarrow.",
)
@click.option(
    "--parquet-compression",
    type=click.Choice(["zstd", "none"]),
    default="zstd",
    show_default=True,
    help="The compression of these files.",
)
@click.option(
    "--archive",
    type=FilePath(path_type=Path, file_okay=False),
    help="A directory to which closed files of the log can be moved.",
)
@click.option(
    "--archive-after",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    metavar="SECONDS",
    help="The age at which closed files of the log are moved there. Default: never.",
)
@click.option(
    "--compress-after",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    metavar="SECONDS",
    help="The age at which they are compressed. Default: never.",
)
@click.option(
    "--remove-after",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    metavar="SECONDS",
    help="The age at which they are removed, unless somebody needs them. Default: never.",
)
@click.option(
    "--admin",
    default="",
    metavar="HOST:PORT",
    help="Serve the state of the broker over HTTP, and let operators change it. Beyond loopback it "
    "needs --user-file.",
)
@click.option(
    "--tls-cert",
    type=_FILE,
    help="The certificate for addresses to --listen on that begin with tcps://, in PEM.",
)
@click.option("--tls-key", type=_FILE, help="Its key, unless that is in the same file.")
@click.option(
    "--tls-client-ca",
    type=_FILE,
    help="Accept only clients with a certificate of these authorities. Default: anyone.",
)
@click.option(
    "--fsync",
    type=click.Choice(["none", "interval", "batch"]),
    default="none",
    show_default=True,
    help="When the log is synced to the disk: never, now and then, or before each confirmation.",
)
@click.option("--segment-bytes", type=int, help="The size of a file of the log.")
@click.option("--in-memory", is_flag=True, help="Keep the log in memory, and none in files.")
@click.option("--faults-from-stdin", is_flag=True, hidden=True)  # of `testing.processes`
@with_request(_BrokerRequest)
def run_broker(request: _BrokerRequest) -> int:
    """Run one broker until SIGTERM."""
    return run_until_signal(
        partial(_serve, _config(request), request),
        lambda: "stopped" + "; everything that was confirmed is in the log" * bool(request.data),
        is_service=True,
    )
