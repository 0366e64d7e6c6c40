"""What a client logs: below two names, without handlers of its own, and nothing secret."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.servers.chooser import DefaultServerChooser
from support.clock import in_virtual_time
from support.peer import Server, answering
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

BODY = "payload-of-a-message"
ROOTS = ("haclient",)


def failing(_: Message) -> None:
    raise ValueError("what the application says")


async def test_at_every_level_neither_bodies_nor_passwords_are_logged(
    server: Server, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    uri = server.uri.replace("secret", "swordfish")
    assert uri != server.uri
    client = HAClient.file_backed(
        "ha",
        publish_path=tmp_path / "p",
        bookmark_path=tmp_path / "b",
        server_chooser=DefaultServerChooser([uri]),
        heartbeat=None,
        exit_timeout=0,
        on_handler_error="continue",
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=failing)
            await client.publish("orders", BODY.encode())
            await peer.publish("b", BODY.encode(), BODY.encode(), bm="7|1|")
            await wait_all_tasks_blocked()
        number = await client.publish("orders", BODY.encode())
        await peer.expect("publish")
        await peer.ack(None, "persisted", s=number or 0, status="failure", reason="no")
        await peer.publish("nobody", BODY.encode())
        await wait_all_tasks_blocked()
        await drop(peer)
        refusing = await server.accept()
        await refusing.refuse(await refusing.expect("logon"), "not now")
        await refusing.expect_end()
        await wait_all_tasks_blocked()
    ours = [each for each in caplog.records if each.name.split(".")[0] in ROOTS]
    levels = {each.levelno for each in ours}
    assert levels >= {logging.DEBUG, logging.INFO, logging.WARNING}
    text = "\n".join(each.getMessage() + (each.exc_text or "") for each in ours)
    assert '"c":"logon"' in text
    assert '"pw":"***"' in text
    assert not any(word in text for word in (BODY, "swordfish", "secret"))


def test_no_handler_is_added_and_no_level_is_set() -> None:
    loggers = [
        logging.getLogger(name)
        for name in (*ROOTS, *logging.Logger.manager.loggerDict)
        if name.split(".")[0] in ROOTS
    ]
    assert len(loggers) > len(ROOTS)
    assert not any(not each.propagate or each.disabled for each in loggers)
    handlers = {type(handler) for each in loggers for handler in each.handlers}
    assert handlers == {logging.NullHandler}, "which prints nothing"
