"""`haclient subscribe` before it connects: where to begin, and as whom."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient.cli.exits import Interrupted
from haclient.cli.subscribe import SubscribeRequest, SubscribeRun, stopped
from haclient.errors import UsageError
from haclient_stores.bookmarks import EPOCH, MOST_RECENT, NOW, Bookmark, BookmarkRange, Timestamp


def request(
    *,
    bookmark: str | None = None,
    store: Path | None = None,
    sub_id: str | None = None,
    count: int | None = None,
) -> SubscribeRequest:
    return SubscribeRequest(
        servers=("tcp://a:1/amps",),
        client_name=None,
        topic="a,b*%",
        filter="",
        bookmark=bookmark,
        sub_id=sub_id,
        store=store,
        count=count,
        timeout=None,
        as_json=False,
    )


@pytest.mark.row("CLI3")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("epoch", type(EPOCH)),
        ("NOW", type(NOW)),
        ("0", type(EPOCH)),
        ("12|34|", Bookmark),
        ("20240102T030405Z", Timestamp),
        ("[0:12|34|)", BookmarkRange),
    ],
)
def test_a_replay_begins_where_the_bookmark_says(text: str, kind: type[object]) -> None:
    assert isinstance(request(bookmark=text).start, kind)


def test_recent_is_what_a_store_is_for() -> None:
    store = Path("store")
    assert request(store=store).start is MOST_RECENT
    assert request(store=store, bookmark="recent").start is MOST_RECENT
    assert request().start is None


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(("bookmark", "told"), [("recent", "--store"), ("yesterday", "yesterday")])
def test_a_bookmark_that_means_nothing_is_a_mistake(bookmark: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        _ = request(bookmark=bookmark).start


def test_the_sub_id_is_the_topic_without_what_the_wire_would_split() -> None:
    assert request().stable_sub_id == "a%2Cb%2A%25"
    assert request(sub_id="mine").stable_sub_id == "mine"


def test_sigterm_is_in_order_unless_messages_were_promised() -> None:
    assert stopped(SubscribeRun(request(), None, None), signal.SIGTERM) == 0
    with pytest.raises(Interrupted, match="after 0 messages"):
        stopped(SubscribeRun(request(count=3), None, None), signal.SIGTERM)
    with pytest.raises(Interrupted):
        stopped(SubscribeRun(request(), None, None), signal.SIGINT)


@pytest.mark.row("CLI9")
def test_the_mistake_comes_before_any_file_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    words = ("subscribe", "--server", "tcp://a:1/amps", "--topic", "t", "--bookmark", "soon")
    assert run([*words, "--store", str(store)]) == 2
    assert "soon" in capsys.readouterr().err
    assert not store.exists()
