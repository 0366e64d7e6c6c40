"""The official names as data: the counterpart of each in `haclient.compat` and in `haclient`.

One table has three uses: the page on migration shows it, `python -m haclient.compat` looks up the
names of programs in it, and the error for a missing attribute quotes it. Its sources are public:
`D` is documentation or public code of users, `M` a name from another language in Python spelling,
`K` general knowledge, to be checked before anyone relies on it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Status = Literal["same", "differs", "absent"]


class Name(NamedTuple):
    """One official name.

    Attributes:
        official: A class or function of the module, or `Class.member`.
        source: `D`, `M` or `K`.
        native: The counterpart in a program that uses `haclient` itself.
        status: Whether `haclient.compat` has the same, has it with a difference, or lacks it.
        note: The difference, or what to do instead.
    """

    official: str
    source: Literal["D", "M", "K"]
    native: str
    status: Status = "same"
    note: str = ""


def _n(
    official: str, source: Literal["D", "M", "K"], native: str, note: str = "", *, has: bool = True
) -> Name:
    status: Status = "absent" if not has else "differs" if note else "same"
    return Name(official, source, native, status, note)


NAMES: Final[tuple[Name, ...]] = (
    # -- classes
    _n("Client", "D", "`Client(name)` in `async with`"),
    _n("HAClient", "K", "`HAClient(name, servers=[...])` in `async with`",
       "without stores both are in memory, unless `no_store`"),
    _n("HAClient.create_memory_backed", "D", "`HAClient.memory_backed(name, ...)`"),
    _n("HAClient.create_file_backed", "D", "`HAClient.file_backed(name, ...)`",
       "the publish store is a directory; files of the official client cannot be read"),
    _n("Command", "D", "`Command(name, topic=...)`", "only `set_timeout` takes milliseconds"),
    _n("Message", "D", "`Message`", "`get_data` refuses what is not UTF-8"),
    _n("Message.Options", "K", "`Options(...)`", "the options are keyword arguments"),
    _n("MessageStream", "D", "`MessageStream`", "ends with its connection, without an exception"),
    _n("DefaultServerChooser", "D", "`DefaultServerChooser`"),
    _n("FixedDelayStrategy", "D", "`FixedDelayStrategy(seconds)`"),
    _n("ExponentialDelayStrategy", "D", "`ExponentialDelayStrategy(initial=seconds, ...)`"),
    _n("MemoryPublishStore", "D", "`MemoryPublishStore()`", "no size: it grows up to its limit"),
    _n("PublishStore", "D", "`FilePublishStore(path)`",
       "a directory; files of the official client cannot be read"),
    _n("HybridPublishStore", "M", "`HybridPublishStore(path)`",
       "a directory; what is kept in memory is limited in bytes"),
    _n("MemoryBookmarkStore", "D", "`MemoryBookmarkStore()`"),
    _n("LoggedBookmarkStore", "D", "`LoggedBookmarkStore(path)`",
       "files of the official client cannot be read"),
    _n("MMapBookmarkStore", "K", "`LoggedBookmarkStore(path)`",
       "files of the official client cannot be read"),
    _n("RingBookmarkStore", "D", "`RingBookmarkStore(path)`",
       "files of the official client cannot be read"),
    _n("SOWRecoveryPointAdapter", "D", "`SOWRecoveryPointAdapter(client)`",
       "given to a bookmark store as `adapter=`; its records have three fields more"),
    _n("ConflatingRecoveryPointAdapter", "M", "`ConflatingRecoveryPointAdapter(adapter)`",
       "`max_updates` and `max_age` (milliseconds) are its limits"),
    _n("RecoveryPoint", "K", "`RecoveryPoint` of `haclient.stores`"),
    _n("MemorySubscriptionManager", "M", "`MemorySubscriptionManager()`",
       "the client calls its `add` and `remove`, of `haclient`"),
    _n("DefaultAuthenticator", "D", "`DefaultAuthenticator`"),
    _n("ConnectionStateListener", "D", "`ConnectionState`"),
    _n("CompositeMessageBuilder", "D", "`CompositeCodec`"),
    _n("CompositeMessageParser", "D", "`CompositeCodec`", "refuses what is no composite message"),
    _n("FIXBuilder", "D", "`FixCodec`", "refuses what cannot be a field"),
    _n("NVFIXBuilder", "D", "`NvfixCodec`", "refuses what cannot be a field"),
    _n("FixShredder", "K", "`FixCodec`", "refuses what is no FIX"),
    _n("NvfixShredder", "K", "`NvfixCodec`", "refuses what is no NVFIX"),
    _n("VersionInfo", "M", "`client.connection_info['server_version']`",
       "made from a text; compares with texts, too"),
    _n("Reason", "M", "the classes of `haclient.errors`",
       "its constants are the texts; a server may add words"),
    _n("CMessageHandler", "D", "a function", "handlers are functions of Python", has=False),
    _n("ssl_init", "K", "`ssl_context=`, or `ca`, `cert`, `key` in the URI",
       "put `?ca=...` into the URI of a `tcps` server", has=False),
    # -- the client
    _n("Client.connect", "D", "`await client.connect(uri)`"),
    _n("Client.logon", "D", "`await client.logon(timeout=seconds)`",
       "options are set before `connect`, with `set_logon_options`"),
    _n("Client.disconnect", "D", "`await client.disconnect()`"),
    _n("Client.close", "D", "the end of `async with`"),
    _n("Client.name", "M", "`client.name`"),
    _n("Client.get_name", "M", "`client.name`"),
    _n("Client.get_name_hash", "M", "`haclient.publisher_id(client.name)`"),
    _n("Client.get_uri", "M", "`client.uri`", "without the password"),
    _n("Client.get_server_version", "M", "`client.connection_info['server_version']`",
       "text, no number"),
    _n("Client.get_server_version_info", "K", "`client.connection_info['server_version']`"),
    _n("Client.get_connection_info", "M", "`client.connection_info`"),
    _n("Client.set_logon_correlation_data", "M", "`logon_correlation_id=`", "before connecting"),
    _n("Client.get_logon_correlation_data", "M", "`logon_correlation_id=`"),
    _n("Client.publish", "D", "`await client.publish(topic, data)`"),
    _n("Client.delta_publish", "M", "`await client.publish(topic, data, delta=True)`"),
    _n("Client.publish_flush", "D", "`await client.publish_flush(timeout=seconds)`"),
    _n("Client.flush", "K", "`await client.flush(timeout=seconds)`"),
    _n("Client.get_unpersisted_count", "D", "`client.unpersisted_count`"),
    _n("Client.subscribe", "D", "`client.stream(topic)`, `client.subscribe(topic, handler=)`"),
    _n("Client.delta_subscribe", "M", "`client.stream`, `client.subscribe` with `delta=True`"),
    _n("Client.bookmark_subscribe", "D", "`client.bookmark_stream`, `client.bookmark_subscribe`"),
    _n("Client.sow", "D", "`client.sow(topic)`",
       "after the filter all arguments are given by name"),
    _n("Client.sow_and_subscribe", "D", "`client.sow_and_stream`, `client.sow_and_subscribe`",
       "after the filter all arguments are given by name"),
    _n("Client.sow_and_delta_subscribe", "M",
       "`client.sow_and_stream`, `client.sow_and_subscribe` with `delta=True`",
       "after the filter all arguments are given by name"),
    _n("Client.Bookmarks", "D", "`EPOCH`, `NOW`, `MOST_RECENT`, `Bookmark.at(datetime)`"),
    _n("Client.sow_delete", "M", "`await client.sow_delete(topic, filter=)`"),
    _n("Client.sow_delete_by_data", "M", "`await client.sow_delete(topic, data=)`"),
    _n("Client.sow_delete_by_keys", "M", "`await client.sow_delete(topic, keys=[...])`"),
    _n("Client.unsubscribe", "D", "`await client.unsubscribe(sub_id)`"),
    _n("Client.execute", "D", "`await client.execute(command)`",
       "a publish has no stream: use `execute_async`"),
    _n("Client.execute_async", "D", "`await client.execute_async(command, handler)`",
       "the acks of a publish have no handler: use `publish` and `wait_persisted`"),
    _n("Client.discard", "D", "`message.discard()`"),
    _n("Client.get_most_recent", "K", "`bookmark_store.most_recent(sub_id)`"),
    _n("Client.prune_store", "K", "`bookmark_store.prune()`, `haclient store prune`",
       "the name of another file is not needed"),
    _n("Client.ack", "M", "`message.ack()`, `await client.ack(topic, bookmark)`"),
    _n("Client.flush_acks", "M", "`await client.flush_acks()`"),
    _n("Client.set_auto_ack", "D", "`queue_stream(auto_ack=True)`, `queue_subscribe`"),
    _n("Client.get_auto_ack", "D", "`queue_stream(auto_ack=True)`"),
    _n("Client.set_ack_batch_size", "D", "`ack_batch_size=`", "before connecting"),
    _n("Client.get_ack_batch_size", "D", "`ack_batch_size=`"),
    _n("Client.set_ack_timeout", "D", "`ack_timeout=seconds`", "before connecting"),
    _n("Client.get_ack_timeout", "D", "`ack_timeout=seconds`"),
    _n("Client.set_heartbeat", "D", "`heartbeat=seconds`",
       "an `HAClient` takes it before connecting; both times are seconds"),
    _n("Client.set_publish_store", "D", "`publish_store=`", "before connecting"),
    _n("Client.get_publish_store", "M", "`client.publish_store`"),
    _n("Client.set_bookmark_store", "D", "`bookmark_store=`", "before connecting"),
    _n("Client.get_bookmark_store", "M", "`client.bookmark_store`"),
    _n("HAClient.set_subscription_manager", "M", "`subscription_manager=`", "before connecting"),
    _n("HAClient.get_subscription_manager", "M", "`subscription_manager=`"),
    _n("Client.set_exception_listener", "D", "`ExceptionRaised` of `on_event=`"),
    _n("Client.set_disconnect_handler", "M", "`ConnectionLost` of `on_event=`",
       "on an `HAClient` it does not replace the reconnecting"),
    _n("Client.set_failed_write_handler", "M", "`on_failed_write=`"),
    _n("Client.set_duplicate_message_handler", "M", "`DuplicatesDropped` of `on_event=`"),
    _n("Client.set_last_chance_message_handler", "D", "`MessagesUnrouted` of `on_event=`"),
    _n("Client.set_unhandled_message_handler", "M", "`MessagesUnrouted` of `on_event=`"),
    _n("Client.set_global_command_type_message_handler", "M",
       "`client.add_event_listener(listener, MessagesReceived)`"),
    _n("Client.add_connection_state_listener", "D",
       "`client.add_event_listener(listener, StateChanged)`"),
    _n("Client.remove_connection_state_listener", "M", "`client.remove_event_listener(listener)`"),
    _n("Client.clear_connection_state_listeners", "M", "`client.remove_event_listener(listener)`"),
    _n("HAClient.set_retry_on_disconnect", "M", "`publish_store=`",
       "give the client a publish store: a publish without one raises while there is no connection",
       has=False),
    _n("HAClient.get_retry_on_disconnect", "M", "`publish_store=`",
       "give the client a publish store: a publish without one raises while there is no connection",
       has=False),
    _n("Client.set_default_max_depth", "M", "`max_queued_bytes=`",
       "remove it: what waits in the client is limited in bytes, and the server waits beyond that",
       has=False),
    _n("Client.get_default_max_depth", "M", "`max_queued_bytes=`",
       "remove it: what waits in the client is limited in bytes, and the server waits beyond that",
       has=False),
    _n("Client.set_transport_filter", "M", "`wire_tap=`",
       "before connecting; it gets headers without passwords, and changes nothing"),
    _n("Client.set_thread_created_callback", "M", "none",
       "remove it: the client has one thread, named after it", has=False),
    _n("Client.add_http_preflight_header", "M", "`preflight_headers={...}`", "before connecting"),
    _n("Client.clear_http_preflight_headers", "M", "`preflight_headers={...}`",
       "before connecting"),
    _n("Client.set_publish_batching", "M", "`client.publish_many(topic, bodies)`",
       "remove it: what is published while the link is busy is sent together, without a delay",
       has=False),
    # -- the subscription manager
    _n("MemorySubscriptionManager.subscribe", "M", "`client.subscribe(topic, handler=)`",
       "placed by `resubscribe`, or when the client connects"),
    _n("MemorySubscriptionManager.unsubscribe", "M", "`manager.remove(sub_id)`"),
    _n("MemorySubscriptionManager.clear", "M", "`manager.clear()`"),
    _n("MemorySubscriptionManager.resubscribe", "M", "`client.restore_subscriptions(handlers)`",
       "after a lost connection the client subscribes again by itself"),
    _n("MemorySubscriptionManager.set_failed_resubscribe_handler", "M",
       "`on_resubscribe_failure=`", "called when every server has refused"),
    _n("MemorySubscriptionManager.set_resubscription_timeout", "M",
       "`connect_timeout=seconds`",
       "before connecting; it lengthens each step of an attempt, if it is longer than that"),
    # -- HAClient, choosers, strategies
    _n("HAClient.connect_and_logon", "D", "entering `async with`"),
    _n("HAClient.set_server_chooser", "D", "`server_chooser=`", "before connecting"),
    _n("HAClient.get_server_chooser", "D", "`server_chooser=`"),
    _n("HAClient.set_reconnect_delay_strategy", "D", "`delay_strategy=`", "before connecting"),
    _n("HAClient.get_reconnect_delay_strategy", "D", "`delay_strategy=`"),
    _n("HAClient.set_reconnect_delay", "D", "`delay_strategy=FixedDelayStrategy(seconds)`"),
    _n("HAClient.set_timeout", "D", "`connect_timeout=seconds`", "before connecting"),
    _n("HAClient.get_timeout", "D", "`connect_timeout=seconds`"),
    _n("Client.set_logon_options", "D", "`logon_options=`", "before connecting"),
    _n("Client.get_logon_options", "D", "`logon_options=`"),
    _n("HAClient.disconnected", "M", "`not client.state.is_logged_on`"),
    _n("DefaultServerChooser.add", "D", "`chooser.add(uri, authenticator)`"),
    _n("DefaultServerChooser.add_all", "D", "`DefaultServerChooser(uris)`"),
    _n("DefaultServerChooser.next", "K", "`chooser.report_failure(error, info)`"),
    _n("DefaultServerChooser.remove", "K", "`chooser.remove(uri)`"),
    _n("DefaultServerChooser.get_current_uri", "D", "`chooser.current_uri()`"),
    _n("DefaultServerChooser.get_current_authenticator", "D", "`chooser.current_authenticator()`"),
    _n("DefaultServerChooser.report_failure", "D", "`chooser.report_failure(error, info)`"),
    _n("DefaultServerChooser.report_success", "D", "`chooser.report_success(info)`"),
    _n("DefaultServerChooser.get_error", "D", "`chooser.error()`"),
    _n("ExponentialDelayStrategy.get_connect_wait_duration", "D", "`strategy.delay_for(uri, now)`"),
    _n("ExponentialDelayStrategy.reset", "D", "`strategy.reset()`"),
    _n("FixedDelayStrategy.get_connect_wait_duration", "D", "`strategy.delay_for(uri, now)`"),
    _n("FixedDelayStrategy.reset", "D", "`strategy.reset()`"),
    # -- stores
    _n("PublishStore.unpersisted_count", "D", "`store.unpersisted_count`"),
    _n("PublishStore.get_unpersisted_count", "M", "`store.unpersisted_count`"),
    _n("PublishStore.get_lowest_unpersisted", "D", "`store.lowest_unpersisted`"),
    _n("PublishStore.get_last_persisted", "D", "`store.last_persisted`"),
    _n("PublishStore.flush", "D", "`await client.publish_flush(timeout=seconds)`"),
    _n("PublishStore.store", "D", "the `PublishStore` interface", "only the client calls it",
       has=False),
    _n("PublishStore.discard_up_to", "D", "the `PublishStore` interface",
       "only the client calls it", has=False),
    _n("PublishStore.replay", "D", "the `PublishStore` interface", "only the client calls it",
       has=False),
    _n("PublishStore.replay_single", "D", "the `PublishStore` interface",
       "only the client calls it", has=False),
    _n("PublishStore.set_resize_handler", "D", "`resize_handler=` of the store",
       "called in the thread of the client, with store and bytes; it must not use the store"),
    _n("PublishStore.set_error_on_publish_gap", "D",
       "`error_on_publish_gap=` of the store, `on_publish_gap=`",
       "where it was not called, an `HAClient` tries another server"),
    _n("MMapBookmarkStore.discard", "D", "`message.discard()`"),
    _n("MMapBookmarkStore.get_most_recent", "D", "`store.most_recent(sub_id)`"),
    _n("MMapBookmarkStore.is_discarded", "D", "`store.is_discarded(sub_id, bookmark)`"),
    _n("MMapBookmarkStore.get_oldest_bookmark_seq", "D", "`store.oldest_undiscarded(sub_id)`"),
    _n("MMapBookmarkStore.purge", "D", "`store.purge(sub_id)`"),
    _n("MMapBookmarkStore.prune", "D", "`store.prune()`, `haclient store prune`"),
    _n("MMapBookmarkStore.log", "D", "the `BookmarkStore` interface", "only the client calls it",
       has=False),
    _n("MMapBookmarkStore.persisted", "D", "the `BookmarkStore` interface",
       "only the client calls it", has=False),
    _n("MMapBookmarkStore.set_server_version", "M", "none",
       "remove it: the store is told by its client", has=False),
    _n("MMapBookmarkStore.set_resize_handler", "M", "`resize_handler=` of the store",
       "called in the thread of the client, with store and bytes; it must not use the store. The "
       "other bookmark stores do not have it"),
    # -- adapters
    _n("SOWRecoveryPointAdapter.update", "M", "`adapter.update(point)`"),
    _n("SOWRecoveryPointAdapter.purge", "M", "`adapter.purge(sub_id)`"),
    _n("SOWRecoveryPointAdapter.prune", "M", "`await adapter.prune()`"),
    _n("SOWRecoveryPointAdapter.close", "M", "`await adapter.close()`"),
    _n("ConflatingRecoveryPointAdapter.update", "M", "`adapter.update(point)`"),
    _n("ConflatingRecoveryPointAdapter.purge", "M", "`adapter.purge(sub_id)`"),
    _n("ConflatingRecoveryPointAdapter.prune", "M", "`await adapter.prune()`"),
    _n("ConflatingRecoveryPointAdapter.close", "M", "`await adapter.close()`"),
    # -- builders
    _n("CompositeMessageBuilder.append", "K", "`CompositeCodec().encode(parts)`"),
    _n("CompositeMessageBuilder.get_data", "K", "`CompositeCodec().encode(parts)`"),
    _n("CompositeMessageBuilder.clear", "K", "a new list of parts"),
    _n("CompositeMessageParser.parse", "K", "`CompositeCodec().decode(message.data)`"),
    _n("CompositeMessageParser.size", "K", "`len(parts)`"),
    _n("CompositeMessageParser.get_part", "K", "`parts[index]`", "bytes"),
    _n("FIXBuilder.append", "K", "`FixCodec().encode(fields)`"),
    _n("FIXBuilder.get_string", "K", "`FixCodec().encode(fields)`"),
    _n("NVFIXBuilder.append", "K", "`NvfixCodec().encode(fields)`"),
    _n("NVFIXBuilder.get_string", "K", "`NvfixCodec().encode(fields)`"),
    _n("FixShredder.to_map", "K", "`dict(FixCodec().decode(message.data))`"),
    _n("NvfixShredder.to_map", "K", "`dict(NvfixCodec().decode(message.data))`"),
    # -- messages and streams
    _n("Message.get_bookmark_seq_no", "D", "`message.number`"),
    _n("Message.get_data", "D", "`message.text`, `message.json()`"),
    _n("Message.get_data_raw", "D", "`message.data`"),
    _n("Message.discard", "M", "`message.discard()`"),
    _n("Message.ack", "M", "`message.ack()`"),
    _n("MessageStream.timeout", "K", "`messages.with_timeout(seconds)`"),
    _n("MessageStream.conflate", "K", "`messages.conflate()` before it is opened",
       "ask the server: `conflation=1s,conflation_key=[/id]` in the options", has=False),
    _n("MessageStream.close", "K", "leaving `async with`"),
    _n("MessageStream.max_depth", "K", "`max_queued_bytes=`",
       "remove it: what a subscription may hold is limited in bytes", has=False),
    _n("MessageStream.get_depth", "K", "`client.metrics`", "see `client.metrics` of `haclient`",
       has=False),
)  # fmt: skip

_BY_MEMBER: Final = {each.official.rpartition(".")[2]: each for each in NAMES}


def advice(name: str) -> str:
    """Why a name is missing, and what to do.

    Args:
        name: A class or a member that somebody looked for.

    Returns:
        One line.
    """
    known = _BY_MEMBER.get(name)
    if known is None or known.status != "absent":
        return f"haclient.compat has no {name!r}: see docs/migration.md for the names that it has"
    return f"haclient.compat has no {name!r}: {known.note} (in haclient: {known.native})"


def table(prefix: str = "") -> str:
    """The names as a table in Markdown, for the page on migration.

    Args:
        prefix: Only those of this class; empty for those of the module.

    Returns:
        The table, ending with a line break.
    """
    rows = [
        each
        for each in NAMES
        if (each.official.startswith(f"{prefix}.") if prefix else "." not in each.official)
    ]
    lines = ["| Official | Source | `haclient.compat` | `haclient` |", "|---|---|---|---|"]
    for each in rows:
        here = {"same": "the same", "differs": each.note, "absent": f"**absent:** {each.note}"}
        lines.append(f"| `{each.official}` | {each.source} | {here[each.status]} | {each.native} |")
    return "\n".join(lines) + "\n"
