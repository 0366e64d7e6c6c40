"""The public types of `haclient.compat`, checked by mypy and pyright.

Nothing in here is ever run. A change that makes a user's correct program fail its type check fails
here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from haclient import compat as AMPS  # noqa: N812  # as programs of the official client have it


def handle(message: AMPS.Message) -> None:
    message.discard()


def connecting() -> None:
    chooser = AMPS.DefaultServerChooser()
    chooser.add("tcp://127.0.0.1:9007/amps/json", AMPS.DefaultAuthenticator())
    client = AMPS.HAClient.create_file_backed("orders-7", "orders.pub", "orders.bm")
    assert_type(client, AMPS.HAClient)
    client.set_server_chooser(chooser)
    client.set_reconnect_delay_strategy(AMPS.ExponentialDelayStrategy(200, 20_000))
    client.set_disconnect_handler(lambda lost: assert_type(lost.name(), str))
    client.set_exception_listener(print)
    client.set_transport_filter(lambda data, direction: data.startswith(bytes(direction)))
    client.connect_and_logon()
    assert_type(client.disconnected(), bool)
    assert_type(client.get_timeout(), int)
    assert_type(client.get_server_version_info() >= "5.3", bool)
    with AMPS.Client("orders-7") as plain:
        plain.connect("tcp://127.0.0.1:9007/amps/json")
        plain.logon(5000)


def commanding(client: AMPS.Client) -> None:
    assert_type(client.publish("orders", "{}"), int)
    client.publish_flush(2000)
    assert_type(client.subscribe(handle, "orders", "/id > 1"), str)
    assert_type(client.subscribe("orders", "/id > 1"), AMPS.MessageStream)
    assert_type(client.sow(handle, "orders", top_n=1), str)
    assert_type(client.sow_delete("orders", "/id > 1"), AMPS.Message)
    bookmark = AMPS.Client.Bookmarks.MOST_RECENT
    for message in client.bookmark_subscribe("orders", bookmark, sub_id="s1").timeout(500):
        assert_type(message, AMPS.Message | None)
    command = AMPS.Command("sow").set_topic("orders").set_filter("/id > 1").set_timeout(500)
    assert_type(command, AMPS.Command)
    assert_type(command.set_command("subscribe").set_sub_ids("s1"), AMPS.Command)
    assert_type(client.execute(command), AMPS.MessageStream)
    assert_type(client.execute_async(command, handle), str)
    client.sow("orders", topn=1)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]  # misspelt
    client.set_default_max_depth(3)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # it is absent


def reading(message: AMPS.Message) -> None:
    assert_type(message.get_data(), str)
    assert_type(message.get_data_raw(), bytes)
    assert_type(message.get_matches(), int | None)
    assert_type(message.get_reason() == AMPS.Reason.BadFilter, bool)
    assert_type(message.set_topic("orders").set_data("{}").set_matches(3), AMPS.Message)
    message.set_topic(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # no text


def building() -> None:
    fix, nvfix = AMPS.FIXBuilder(), AMPS.NVFIXBuilder("|")
    fix.append(55, "IBM")
    fix.append("55", "IBM")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # a tag is a number
    nvfix.append("px", 10.5)
    assert_type(fix.get_string(), str)
    assert_type(AMPS.FixShredder().to_map(fix.get_string()), dict[int, str | bytes])
    assert_type(AMPS.NvfixShredder().to_map(nvfix.get_bytes()), dict[str, str | bytes])
    composite, parser = AMPS.CompositeMessageBuilder(), AMPS.CompositeMessageParser()
    composite.append("{}")
    assert_type(parser.parse(composite.get_data()), int)
    assert_type(parser.get_part(0), bytes)


class Points:
    """An adapter of the application."""

    def __iter__(self) -> Iterator[AMPS.RecoveryPoint]:
        return iter([AMPS.RecoveryPoint("s1", "1|2|")])

    def update(self, point: AMPS.RecoveryPoint) -> None:
        assert_type(point.get_bookmark(), str)

    def purge(self, sub_id: str | None = None) -> None: ...

    def prune(self) -> None: ...

    def close(self) -> None: ...


def may_grow(_store: object, size: int) -> bool:
    return size < 2**30


def storing(client: AMPS.HAClient, points: AMPS.Client) -> None:
    adapter = AMPS.SOWRecoveryPointAdapter(points, client.name(), timeout=5000)
    assert_type(list(adapter), list[AMPS.RecoveryPoint])
    client.set_bookmark_store(AMPS.MemoryBookmarkStore(adapter))
    conflating = AMPS.ConflatingRecoveryPointAdapter(Points(), 100, 2000)
    store = AMPS.MMapBookmarkStore("orders.bm", adapter=conflating)
    store.set_resize_handler(may_grow)
    assert_type(store.get_most_recent("s1"), str)
    client.set_bookmark_store(store)
    publishes = AMPS.PublishStore("orders.pub")
    publishes.set_resize_handler(may_grow)
    publishes.set_error_on_publish_gap(True)
    client.set_publish_store(publishes)
    client.set_publish_store("orders.pub")


def remembering(client: AMPS.HAClient) -> None:
    manager = AMPS.MemorySubscriptionManager()
    manager.subscribe(handle, AMPS.Command("subscribe").set_topic("orders").set_sub_id("s1"))
    manager.set_resubscription_timeout(10_000)
    client.set_subscription_manager(manager)
    manager.resubscribe(client)
    assert_type(manager.get_resubscription_timeout(), int | None)


def refusing(client: AMPS.Client) -> None:
    try:
        client.sow("orders").close()
    except AMPS.BadFilterException as error:
        assert_type(error.reason, str)
    except AMPS.TimedOutError:
        pass
