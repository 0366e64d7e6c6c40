"""The table of names against the module, and the page against the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haclient import compat
from haclient.compat import errors
from haclient.compat.names import NAMES, Name, advice, table

pytestmark = pytest.mark.row("B18")
# Names from public documentation, or of another language in the spelling of Python, by class.
DOCUMENTED = {
    "": """
        Client Command Message MessageStream DefaultServerChooser FixedDelayStrategy
        ExponentialDelayStrategy MemoryPublishStore PublishStore HybridPublishStore
        MemoryBookmarkStore LoggedBookmarkStore RingBookmarkStore SOWRecoveryPointAdapter
        ConflatingRecoveryPointAdapter MemorySubscriptionManager DefaultAuthenticator
        ConnectionStateListener CompositeMessageBuilder CompositeMessageParser FIXBuilder
        NVFIXBuilder VersionInfo Reason CMessageHandler""",
    "Client": """
        connect logon disconnect close name get_name get_name_hash get_uri get_server_version
        get_connection_info set_logon_correlation_data get_logon_correlation_data publish
        delta_publish publish_flush get_unpersisted_count subscribe delta_subscribe
        bookmark_subscribe sow sow_and_subscribe sow_and_delta_subscribe Bookmarks sow_delete
        sow_delete_by_data sow_delete_by_keys unsubscribe execute execute_async discard ack
        flush_acks set_auto_ack get_auto_ack set_ack_batch_size get_ack_batch_size set_ack_timeout
        get_ack_timeout set_heartbeat set_publish_store get_publish_store set_bookmark_store
        get_bookmark_store set_exception_listener set_disconnect_handler set_failed_write_handler
        set_duplicate_message_handler set_last_chance_message_handler
        set_unhandled_message_handler set_global_command_type_message_handler
        add_connection_state_listener remove_connection_state_listener
        clear_connection_state_listeners set_default_max_depth get_default_max_depth
        set_transport_filter set_thread_created_callback add_http_preflight_header
        clear_http_preflight_headers set_publish_batching set_logon_options get_logon_options""",
    "HAClient": """
        create_memory_backed create_file_backed set_subscription_manager get_subscription_manager
        set_retry_on_disconnect get_retry_on_disconnect connect_and_logon set_server_chooser
        get_server_chooser set_reconnect_delay_strategy get_reconnect_delay_strategy
        set_reconnect_delay set_timeout get_timeout disconnected""",
    "DefaultServerChooser": """
        add add_all get_current_uri get_current_authenticator report_failure report_success
        get_error""",
    "FixedDelayStrategy": "get_connect_wait_duration reset",
    "ExponentialDelayStrategy": "get_connect_wait_duration reset",
    "PublishStore": """
        store discard_up_to replay replay_single unpersisted_count get_unpersisted_count
        get_lowest_unpersisted get_last_persisted flush set_resize_handler
        set_error_on_publish_gap""",
    "MMapBookmarkStore": """
        log discard get_most_recent is_discarded persisted purge get_oldest_bookmark_seq
        set_server_version set_resize_handler prune""",
    "MemorySubscriptionManager": """
        subscribe unsubscribe clear resubscribe set_failed_resubscribe_handler
        set_resubscription_timeout""",
    "SOWRecoveryPointAdapter": "update purge prune close",
    "ConflatingRecoveryPointAdapter": "update purge prune close",
    "Message": "get_bookmark_seq_no get_data get_data_raw discard ack",
}
# Each has a reason and a replacement in the table. Another one must not go missing.
MAY_BE_ABSENT = {
    "CMessageHandler",
    "Client.get_default_max_depth",
    "Client.set_default_max_depth",
    "Client.set_publish_batching",
    "Client.set_thread_created_callback",
    "HAClient.get_retry_on_disconnect",
    "HAClient.set_retry_on_disconnect",
    "MMapBookmarkStore.log",
    "MMapBookmarkStore.persisted",
    "MMapBookmarkStore.set_server_version",
    "PublishStore.discard_up_to",
    "PublishStore.replay",
    "PublishStore.replay_single",
    "PublishStore.store",
}
PAGE = Path(__file__).parents[3] / "docs/migration.md"


def found(official: str) -> bool:
    owner, _, member = official.rpartition(".")
    where = getattr(compat, owner) if owner else compat
    return member in dir(where)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.official)
def test_each_name_is_there_unless_the_table_says_absent(name: Name) -> None:
    assert found(name.official) is (name.status != "absent")
    assert bool(name.note) is (name.status != "same")


def test_each_documented_name_is_in_the_table_and_no_other_one_is_absent() -> None:
    documented = {
        f"{owner}.{member}" if owner else member
        for owner, members in DOCUMENTED.items()
        for member in members.split()
    }
    assert documented == {name.official for name in NAMES if name.source != "K"}
    assert {name for name in documented if not found(name)} == MAY_BE_ABSENT


def test_no_name_is_in_the_table_twice() -> None:
    officials = [name.official for name in NAMES]
    assert len(officials) == len(set(officials))


def test_a_missing_name_is_explained() -> None:
    assert "handlers are functions of Python" in advice("CMessageHandler")
    assert "docs/migration.md" in advice("nothing")


def test_the_page_on_migration_has_the_tables() -> None:
    page = PAGE.read_text()
    owners = {name.official.rpartition(".")[0] for name in NAMES}
    for owner in owners:
        assert table(owner) in page, f"docs/migration.md lacks the table of {owner or 'the module'}"


def test_the_page_names_each_exception() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert {name for name in errors.OFFICIAL_NAMES if name.endswith("Exception")} <= named
