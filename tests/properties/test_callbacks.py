"""Every callback of an application, at every event, with every behaviour.

The tables name each callback that a client can be given, and what has to become of the client when
it misbehaves. A new option, kind of event, state or method without an entry is a failure here. What
has to hold in every case is in `problems_of`.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import haclient
from haclient import events, stores, workers
from haclient.errors import (
    DisconnectedError,
    ReconnectGaveUp,
    StoreError,
    TimedOut,
    UsageError,
)
from haclient.options import ClientOptions, HAOptions
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import MovingServerChooser, ServerChooser
from haclient.servers.delay import DelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.subscription_manager import SubscriptionManager
from haclient_stores.adapters.recovery_point import TimedAdapter
from haclient_stores.interfaces import BookmarkStore, PublishStore
from support.callback_world import BEHAVIOURS, JOURNEYS, Case, Oops, World, run

TESTS: Final = Path(__file__).parents[1]
LEAVING_S: Final = 15.0
"""The flush, the callbacks of what has happened, and those of the end: 5 seconds each."""

EVENTS: Final = {
    "StateChanged": "lost",
    "ConnectionMade": "lost",
    "LogonAccepted": "lost",
    "ConnectionLost": "lost",
    "AttemptFailed": "logon refused",
    "PublishesReplayed": "resent",
    "PublishesPersisted": "ack lost",
    "PublishRefused": "failed write",
    "Resubscribed": "moved",
    "SubscriptionEnded": "ended by the server",
    "SubscriptionSilent": "silent",
    "SubscriptionPaused": "slow",
    "SubscriptionResumed": "slow",
    "SubscriptionGap": "lost",
    "RecoveryPointMoved": "idle",
    "DuplicatesDropped": "lost",
    "MessagesUnrouted": "unrouted",
    "MessagesReceived": "received",
    "ExceptionRaised": "handler error",
}
"""A journey on which each kind of event is told."""

EVENTS_ELSEWHERE: Final = {"StorePruned"}  # of a file: tests/unit/transport/test_store_maintenance

STATES: Final = {
    "CONNECTED": "moved",
    "LOGGED_ON": "lost",
    "HEARTBEAT_INITIATED": "ack lost",
    "PUBLISH_REPLAYED": "resent",
    "RESUBSCRIBED": "lost",
    "DISCONNECTED": "disconnected",
    "RECONNECTING": "reconnecting",
    "SHUTDOWN": "backlog",
}

TOLD: Final[Mapping[str, str]] = {
    **{f"event.{name}": journey for name, journey in EVENTS.items()},
    **{f"state.{name}": journey for name, journey in STATES.items()},
    "option.on_event": "left at once",
    "option.on_failed_write": "failed write",
    "option.wire_tap": "lost",
    "watch.on_old": "lost",
    "handler.bookmark_subscribe": "resent",
    "handler.subscribe": "idle",
    "handler.queue_subscribe": "jobs",
    "queue.key": "jobs",
}
"""A journey for each callback that decides nothing: whatever it does, the client goes on."""

OWN: Final = {"raises": Oops, "raises ours": DisconnectedError, "raises a store error": StoreError}
GIVES_UP: Final = {"raises": Oops, "raises ours": ReconnectGaveUp}
STAYS: Final = {"raises": Oops, "raises ours": None}
STORES: Final = {"raises": Oops, "raises a store error": StoreError}

Outcomes = Mapping[str, type[Exception] | None]

ASKED: Final[Mapping[str, tuple[str, Outcomes]]] = {
    "option.on_handler_error": ("handler error", {**OWN, "hangs": None}),
    "option.on_resubscribe_failure": ("not taken back", {**OWN, "raises a group": Oops}),
    "chooser.current_uri": ("lost", {**GIVES_UP, "hangs": ReconnectGaveUp}),
    "chooser.current_authenticator": ("lost", {**GIVES_UP, "hangs": ReconnectGaveUp}),
    "chooser.report_success": ("lost", GIVES_UP),
    "chooser.report_failure": ("all down", GIVES_UP),
    "chooser.error": ("all down", GIVES_UP),
    "chooser.to_check": ("moved back", STAYS),
    "chooser.report_check": ("moved back", STAYS),
    "chooser.is_move_due": ("moved back", {**STAYS, "hangs": None}),
    "chooser.report_move": ("moved back", STAYS),
    "delay.delay_for": ("lost", GIVES_UP),
    "delay.reset": ("lost", GIVES_UP),
    "authenticator.authenticate": (
        "lost",
        {**GIVES_UP, "hangs": ReconnectGaveUp, "wrong": UsageError},
    ),
    "authenticator.completed": ("lost", GIVES_UP),
    "manager.add": ("idle", OWN),
    "manager.remove": ("jobs", OWN),
    "manager.entries": ("idle", OWN),
    "adapter.recover": ("idle", {**OWN, "hangs": TimedOut}),
    "adapter.update": ("idle", OWN),
    "adapter.poll": ("idle", OWN),
    "adapter.close": ("idle", {**OWN, "hangs": None}),
    "publish_store.close": ("idle", STORES),
    "publish_store.discard_up_to": ("ack lost", STORES),
    "publish_store.reconcile": ("ack lost", STORES),
    "publish_store.replay": ("resent", STORES),
    "publish_store.replay_single": ("failed write", STORES),
    "publish_store.store": ("idle", STORES),
    "bookmark_store.close": ("idle", STORES),
    "bookmark_store.discard": ("idle", STORES),
    "bookmark_store.is_discarded": ("lost", STORES),
    "bookmark_store.log": ("lost", STORES),
    "bookmark_store.most_recent": ("lost", STORES),
    "bookmark_store.oldest_undiscarded": ("all down", STORES),
    "bookmark_store.persisted": ("idle", STORES),
}
"""A journey for each callback whose answer is needed, and what leaves the block by its behaviour;
`None` for what leaves it without a misbehaviour."""

ASKED_ELSEWHERE: Final = {
    "authenticator.retry",  # no server here asks for other credentials: tests/unit/servers
    "manager.clear",  # by applications
    "adapter.purge",
    "adapter.prune",
    "publish_store.sync",  # by durability fsync: tests/unit/client/test_publishing
    "bookmark_store.discard_up_to",  # by applications
    "bookmark_store.purge",
    "bookmark_store.prune",
    *("publish_store.open_for", "publish_store.number_above", "bookmark_store.open_for"),  # at once
}

PROTOCOLS: Final[Mapping[str, tuple[type, ...]]] = {
    "chooser": (ServerChooser, MovingServerChooser),
    "delay": (DelayStrategy,),
    "authenticator": (Authenticator,),
    "manager": (SubscriptionManager,),
    "adapter": (TimedAdapter,),
    "publish_store": (PublishStore,),
    "bookmark_store": (BookmarkStore,),
}

OTHERS: Final[Mapping[str, str]] = {
    "Client.add_event_listener(listener)": "event.StateChanged",
    "Client.remove_event_listener(listener)": "event.StateChanged",
    "Client.bookmark_subscribe(handler)": "handler.bookmark_subscribe",
    "Client.subscribe(handler)": "handler.subscribe",
    "Client.queue_subscribe(handler)": "handler.queue_subscribe",
    "Client.queue_subscribe(handling)": "queue.key",
    "UndiscardedWatch(on_old)": "watch.on_old",
    "Client.sow_and_subscribe(handler)": "tests/unit/client/test_receiver.py",
    "Client.execute_async(handler)": "tests/unit/client/test_receiver.py",
    "Client.records(key)": "tests/unit/test_live_records.py",
    "HAClient.restore_subscriptions(handlers)": "tests/unit/test_subscription_file.py",
    "HAClient.restore_subscriptions(queues)": "tests/unit/test_subscription_file.py",
    "FilePublishStore(resize_handler)": "tests/unit/stores",
    "HybridPublishStore(resize_handler)": "tests/unit/stores",
    "MemoryPublishStore(resize_handler)": "tests/unit/stores",
    "LoggedBookmarkStore(resize_handler)": "tests/unit/stores",
    "LoggedBookmarkStore(on_progress)": "tests/unit/stores",
    "prune(on_progress)": "tests/unit/stores",
    "ProcessedMessages(clock_us)": "tests/unit/stores",
    "HealthAwareServerChooser(ask)": "tests/unit/servers/test_health.py",
    "TokenAuthenticator(token)": "tests/unit/servers/test_auth.py",
    "TokenAuthenticator(refresh)": "tests/unit/servers/test_auth.py",
    "SOWRecoveryPointAdapter(on_error)": "tests/unit/recovery_points",
    "SqliteRecoveryPointAdapter(on_error)": "tests/unit/recovery_points",
    "MessageStream.conflate(key)": "tests/unit/test_streams.py",
    "Topic.handler(handle)": "tests/unit/test_codecs.py",
    "Topic.handler(on_decode_error)": "tests/unit/test_codecs.py",
    "TypedStream(on_decode_error)": "tests/unit/test_typed_stream.py",
    "run(main)": "tests/unit/test_service.py",
    "run_workers(key)": "tests/unit/workers",
    "run_workers(on_handler_error)": "tests/unit/workers",
    "run_workers(on_result)": "tests/unit/workers",
    "run_workers(work)": "tests/unit/workers",
    "ProcessPool.open(work)": "tests/unit/workers",
    "ThreadPool.open(work)": "tests/unit/workers",
}
"""Every function that another call of the public API takes: its seat, or the tests that have it."""

OF_THE_CLIENT: Final = {f"MessageStream({name})" for name in ("open_", "close", "check_thread")}
CALLED: Final = re.compile(
    r"Callable|Handler|EventListener|HandlerErrorPolicy|TokenSource|Work\[|Key\b|OnDecodeError"
)
"""In the annotations of functions that are called."""

OPTION_OF: Final = {
    "server_chooser": "chooser",
    "delay_strategy": "delay",
    "subscription_manager": "manager",
}
VALUES: Final = {
    "ack_batch_size",
    "ack_timeout",
    "audit_log",
    "connect_timeout",
    "exit_timeout",
    "failover_overlap",
    "heartbeat",
    "logon_correlation_id",
    "logon_options",
    "max_queued_bytes",
    "max_unpersisted_bytes",
    "on_publish_gap",
    "on_rejected_frame",
    "preflight_headers",
    "progress_timeout",
    "servers",
    "ssl_context",
}
"""The options that are no callbacks."""

AS_BEFORE: Final = frozenset({"returns", "raises", "raises late", "wrong", "sleeps", "listens"})
"""Behaviours of a listener after which the others are told the same."""

VARIES: Final = (
    events.ExceptionRaised,
    events.PublishesPersisted,
    events.RecoveryPointMoved,
    events.SubscriptionPaused,
    events.SubscriptionResumed,
)
"""Events that may be told more or less often."""

PLAIN: Final = frozenset({"option.wire_tap", "queue.key", "watch.on_old"})  # never a coroutine


def is_possible(seat: str, behaviour: str) -> bool:
    return seat not in PLAIN or not inspect.iscoroutinefunction(BEHAVIOURS[behaviour])


@cache
def usual(journey: str) -> World:
    """The journey with callbacks that do nothing."""
    return run(Case("none.", "returns", journey))


def told(world: World) -> Counter[str]:
    names = [
        each.state.name if isinstance(each, events.StateChanged) else type(each).__name__
        for each in world.told
        if not isinstance(each, VARIES)
    ]
    return Counter(set(names) if world.case.journey == "not taken back" else names)


def problems_of(world: World) -> list[str]:
    """What never may be, whatever a callback does."""
    case, problems = world.case, [*world.problems]
    if world.outcome is None and not world.is_cancelled and world.took_s > LEAVING_S:
        problems.append(f"leaving took {world.took_s:g} s")
    missing = {*world.accepted} - {*world.logged}
    if len(missing) > world.left:
        problems.append(f"{sorted(missing)} are lost")
    if len({*world.logged}) < len(world.logged):
        problems.append(f"doubled in the log: {world.logged}")
    states = [each.state for each in world.told if isinstance(each, events.StateChanged)]
    if case.behaviour != "hangs" and not world.is_cancelled and states:
        ends = states[-2:], states.count(ConnectionState.SHUTDOWN)
        if ends != ([ConnectionState.DISCONNECTED, ConnectionState.SHUTDOWN], 1) and states[1:]:
            problems.append(f"the states end with {states[-3:]}")
    if world.health is None or world.health.is_alive or not world.health.reasons:
        problems.append(f"left with {world.health}")
    return problems


def check_told(case: Case) -> list[str]:
    """A callback that decides nothing."""
    world, before = run(case), usual(case.journey)
    problems, behaviour = problems_of(world), case.behaviour
    kind, _, name = case.seat.partition(".")
    is_ended = world.stop_reason is not None or behaviour in {"cancels", "ends", "disconnects"}
    if not is_ended and (type(world.outcome), world.is_cancelled) != (type(before.outcome), False):
        problems.append(f"ended with {world.outcome!r}")
    if behaviour in {"ends", "disconnects"} and not isinstance(
        world.outcome, DisconnectedError | None
    ):
        problems.append(f"ended with {world.outcome!r}")
    is_same = told(world) == told(before)
    if behaviour in AS_BEFORE and kind in {"event", "state", "option"} and not is_same:
        problems.append(f"told {told(world) - told(before)} less {told(before) - told(world)}")
    if behaviour in {"raises", "raises late"} and world.calls:
        names = {"state": "StateChanged", "event": name}
        raised = [each for each in world.texts if "Oops" in each]
        if not any(names.get(kind, "") in each for each in raised):
            problems.append(f"the log does not name it: {world.texts}")
        errors = [each.error for each in world.told if isinstance(each, events.ExceptionRaised)]
        is_told = any(isinstance(each, Oops) for each in errors)
        if not is_told and name not in {"ExceptionRaised", "on_old", "SHUTDOWN", "key"}:
            problems.append("its error was not told")
    return problems


def check_asked(case: Case, wanted: type[Exception] | None) -> list[str]:
    """A callback whose answer is needed."""
    world, before = run(case), usual(case.journey)
    problems = problems_of(world)
    if not world.calls:
        problems.append("was never called")
    outcome = world.outcome
    if isinstance(outcome, ExceptionGroup) and len({*map(type, outcome.exceptions)}) == 1:
        outcome = outcome.exceptions[0]  # it has failed in two tasks at once
    if type(outcome) is not (wanted or type(before.outcome)):
        problems.append(f"ended with {world.outcome!r}")
    return problems


def check(cases: list[Case]) -> None:
    found = {case: problems for case in cases if (problems := check_told(case))}
    assert not found, "\n".join(f"{case}: {problems}" for case, problems in found.items())


# -- the tables are complete ---------------------------------------------------------------------


def test_each_option_is_a_value_or_a_callback_of_the_tables() -> None:
    options = ClientOptions.__annotations__.keys() | HAOptions.__annotations__.keys()
    seats = {seat.removeprefix("option.") for seat in (*TOLD, *ASKED) if "option." in seat}
    assert options == VALUES | seats | OPTION_OF.keys()
    assert {*OPTION_OF.values()} <= {seat.partition(".")[0] for seat in ASKED}


def test_each_kind_of_event_and_each_state_is_in_the_tables_and_told_on_its_journey() -> None:
    kinds = {name for name in events.__all__ if name not in {"Event", "EventListener"}}
    assert kinds == EVENTS.keys() | EVENTS_ELSEWHERE
    assert {state.name for state in ConnectionState} == STATES.keys()
    for name, journey in EVENTS.items():
        assert any(type(each).__name__ == name for each in usual(journey).told), (name, journey)
    for name, journey in STATES.items():
        assert told(usual(journey))[name], (name, journey)


def test_each_method_that_an_application_can_write_is_in_the_tables() -> None:
    methods = {
        f"{kind}.{name}"
        for kind, protocols in PROTOCOLS.items()
        for protocol in protocols
        for name in protocol.__abstractmethods__  # type: ignore[attr-defined]  # of each of them
        if inspect.isfunction(inspect.getattr_static(protocol, name))
    }
    seats = {seat for seat in ASKED if not seat.startswith("option.")}
    assert methods == seats | ASKED_ELSEWHERE
    assert not seats & ASKED_ELSEWHERE


def callables_of(module: ModuleType) -> Iterator[str]:
    """The parameters of a module's public classes and functions that take a function."""
    for name in module.__dir__():
        part = getattr(module, name)
        members = inspect.getmembers_static(part) if inspect.isclass(part) else [("", part)]
        for member, function in members:
            bare = getattr(function, "__func__", function)  # of a class method
            is_open = not name.startswith("_") and not member.startswith("_")
            if not inspect.isfunction(bare) or not (is_open or member == "__init__"):
                continue
            where = f"{name}.{member}" if is_open and member else name
            for parameter in inspect.signature(bare).parameters.values():
                if CALLED.search(str(parameter.annotation)):
                    yield f"{where}({parameter.name})"


def test_each_function_that_a_call_takes_is_in_the_tables() -> None:
    found = {each for module in (haclient, stores, workers) for each in callables_of(module)}
    own = {each for each in found if each.replace("HAClient", "Client") in found - {each}}
    assert found - own - OF_THE_CLIENT == OTHERS.keys()
    for covered in OTHERS.values():
        assert covered in TOLD or (TESTS.parent / covered).exists(), covered


# -- what becomes of the client ------------------------------------------------------------------


@pytest.mark.row("OB7", "HA20")
def test_a_callback_that_decides_nothing_ends_nothing_and_loses_nothing() -> None:
    behaviours = itertools.cycle(BEHAVIOURS)
    cases = [Case(seat, next(behaviours), journey) for seat, journey in TOLD.items()]
    check([case for case in cases if is_possible(case.seat, case.behaviour)])


@pytest.mark.row("OB7")
@pytest.mark.parametrize("seat", ASKED)
def test_an_error_of_a_callback_that_is_needed_ends_the_client_as_documented(seat: str) -> None:
    journey, outcomes = ASKED[seat]
    found = {
        behaviour: problems
        for behaviour, wanted in outcomes.items()
        if (problems := check_asked(Case(seat, behaviour, journey), wanted))
    }
    assert not found


@pytest.mark.full
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_callbacks_that_decide_nothing_on_all_journeys(behaviour: str) -> None:
    source = random.Random(behaviour)
    seats = [seat for seat in TOLD if is_possible(seat, behaviour)]
    cases = [Case(seat, behaviour, j, at) for seat in seats for j in JOURNEYS for at in (1, 2)]
    check(source.sample(cases, 60))
