"""Messages that were delivered twice: whoever holds one may discard it, and it stays discarded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.errors import UsageError
from haclient_stores.interfaces import SubscriptionLog

pytestmark = [
    pytest.mark.row("BS4"),
    pytest.mark.row("BS11"),
    pytest.mark.row("BS16"),
    pytest.mark.row("BS19"),
]

MESSAGES = ["7|1|", "7|2|", "7|3|"]


def killed(store: LoggedBookmarkStore) -> LoggedBookmarkStore:
    """The store as the next process finds it."""
    copy = store.path.with_name(store.path.name + "x")
    shutil.copy(store.path, copy)
    return LoggedBookmarkStore(copy)


def delivered_again(subscription: SubscriptionLog) -> list[str]:
    subscription.begin(acked=False, start=None)
    numbers = subscription.log_batch(MESSAGES)
    return [message for number, message in zip(numbers, MESSAGES, strict=True) if number]


@pytest.mark.parametrize("pruned", [False, True])
def test_a_redelivered_message_may_be_discarded_after_its_link_is_gone(
    tmp_path: Path, *, pruned: bool
) -> None:
    store = LoggedBookmarkStore(tmp_path / "b")
    subscription = store.subscription("s")
    subscription.log_batch(MESSAGES)
    subscription.ended()
    again = list(subscription.log_batch(MESSAGES))
    subscription.ended()
    if pruned:
        store.prune()
    subscription.discard(again[1])
    assert delivered_again(killed(store).subscription("s")) == ["7|1|", "7|3|"]
    assert delivered_again(subscription) == ["7|1|", "7|3|"]


def test_discarding_up_to_a_number_leaves_alone_what_did_not_come_again_yet() -> None:
    subscription = MemoryBookmarkStore().subscription("s")
    subscription.log_batch(MESSAGES)
    subscription.ended()
    (first,) = subscription.log_batch(MESSAGES[:1])
    subscription.discard_up_to(first)
    assert delivered_again(subscription) == ["7|2|", "7|3|"]


def test_discarding_up_to_a_number_survives_prune_and_kill(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "b")
    subscription = store.subscription("s")
    numbers = list(subscription.log_batch(MESSAGES))
    store.prune()
    subscription.discard_up_to(numbers[1])
    assert delivered_again(killed(store).subscription("s")) == ["7|3|"]


def test_discarding_redelivered_messages_up_to_a_number_survives_prune_and_kill(
    tmp_path: Path,
) -> None:
    store = LoggedBookmarkStore(tmp_path / "b")
    subscription = store.subscription("s")
    subscription.log_batch(MESSAGES)
    subscription.ended()
    again = list(subscription.log_batch(MESSAGES[:2]))
    store.prune()
    subscription.discard_up_to(again[0])
    assert delivered_again(killed(store).subscription("s")) == ["7|2|", "7|3|"]


def test_a_discard_after_the_end_says_so(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "b")
    subscription = store.subscription("s")
    (number,) = subscription.log_batch(MESSAGES[:1])
    store.close()
    store.close()
    with pytest.raises(UsageError, match="the store is closed"):
        subscription.discard(number)
    with pytest.raises(UsageError, match="the store is closed"):
        subscription.log_batch(MESSAGES[1:])
