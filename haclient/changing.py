"""Changes of active subscriptions that the application asks for.

They are pauses, resumes and replaces, by methods or as commands. Each is sent by
`haclient.transport.subscription_changes`; here it is decided which subscriptions it is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from haclient.errors import UsageError
from haclient.protocol.codec import check_text, check_topic
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.messages import WIRE_NAMES
from haclient.protocol.options import Options
from haclient.session.subscriptions import LASTING, Subscription
from haclient.transport.commands import header_fields
from haclient.transport.core import Core
from haclient.transport.settings import TIMEOUT_S, seconds
from haclient_stores.checks import check_texts, check_utf8


class Changer:
    """Pauses, resumes and replaces the active subscriptions of one client."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def active(self, sub_id: str) -> Subscription | None:
        """The subscription with this id that lasts until `unsubscribe`."""
        for one in self._core.subscriptions():
            if one.sub_id == sub_id and one.request is not None and not one.is_query:
                return one
        return None

    def pauses(self, command: Command) -> bool | None:
        """Whether a command pauses active subscriptions; `False` if it resumes them."""
        if command.name is not CommandName.SUBSCRIBE:
            return None
        options = Options.parse(str(command.options))
        ids = [each.strip() for each in command.sub_id.split(",") if each.strip()]
        if options.resume:
            return False
        known = bool(ids) and all(self.active(each) is not None for each in ids)
        return True if options.pause and not options.replace and (known or len(ids) > 1) else None

    def replaces(self, command: Command) -> Subscription | None:
        """The active subscription that a command with the option `replace` is about."""
        if command.name not in LASTING or not Options.parse(str(command.options)).replace:
            return None
        return self.active(command.sub_id)

    async def pause(self, sub_ids: str | Iterable[str], *, paused: bool, timeout: float) -> None:
        """Pause bookmark subscriptions, or resume them, with one command.

        Args:
            sub_ids: One id, or several.
            paused: Whether to pause; else they are resumed.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: One of them is not active, or has no bookmark.
        """
        word = "pause" if paused else "resume"
        self._core.running(word)
        ids = check_texts("sub_ids", sub_ids)
        if not ids:
            raise UsageError(f"{word} needs the id of a subscription, or several")
        chosen: list[Subscription] = []
        for sub_id in dict.fromkeys(map(str.strip, ids)):
            active = self.active(sub_id)
            if active is None or active.request is None or not active.request.bookmark:
                raise UsageError(
                    f"{word} takes active bookmark subscriptions, and {sub_id!r} is none: "
                    "subscribe with a bookmark first"
                )
            chosen.append(active)

        async def command() -> None:
            self._check_not_ended(chosen)
            await self._core.changes.pause(chosen, paused=paused, timeout=timeout)

        late = f"{word} of {','.join(ids)}: no server accepted it"
        await self._core.until_answered(command, late, timeout)

    async def change(self, sub_id: str, changes: Mapping[str, object], *, timeout: float) -> None:
        """Replace topic, filter, order or options of an active subscription.

        Args:
            sub_id: Its id.
            changes: The new values by the names of `Command`; what is `None` stays as it was.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: It is not active, or a value can never work.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        if "options" in given:
            given["options"] = str(Options.parse(str(given["options"])))
        for name, value in given.items():
            check_text(name, value)
        check_topic(given.get("topic", ""))
        fields = {WIRE_NAMES[name]: str(value) for name, value in given.items()}
        await self.replace(sub_id, fields, timeout=timeout)

    async def replace(
        self,
        sub_id: str,
        fields: Mapping[str, str | int],
        *,
        on_replaced: Callable[[], object] = lambda: None,
        timeout: float,
    ) -> None:
        """Replace some fields of an active subscription; its handler or stream continues.

        Args:
            sub_id: Its id.
            fields: The new values by wire name; the others stay.
            on_replaced: See `SubscriptionChanges.replace`.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: It is not active.
        """
        self._core.running("replace")
        check_utf8("sub_id", sub_id)
        active = self.active(sub_id)
        if active is None or active.request is None:
            raise UsageError(f"there is no active subscription {sub_id!r} to replace")
        if fields.get("orderby") and not active.request.query_id:
            raise UsageError(f"the subscription {sub_id!r} has no query that could have an order")

        async def command() -> None:
            self._check_not_ended([active])
            request = active.request  # as it is then, after a wait for a connection
            assert request is not None  # noqa: S101  # as above
            if "opts" not in fields:  # it stays paused if it is, also when a resume is on its way
                request = request.paused(is_paused=False)
            changed, changes = request.changed(fields), self._core.changes
            await changes.replace(active, changed, on_replaced=on_replaced, timeout=timeout)

        late = f"replace of {sub_id}: no server accepted it"
        await self._core.until_answered(command, late, timeout)

    def _check_not_ended(self, subscriptions: Iterable[Subscription]) -> None:
        """Look again after a wait for a connection: an unknown id may mean a new one to a server.

        Raises:
            UsageError: One of them has ended meanwhile.
        """
        for one in subscriptions:
            if self.active(one.sub_id) is not one:
                raise UsageError(f"the subscription {one.sub_id!r} is not active any more")

    async def replace_with(
        self,
        active: Subscription,
        command: Command,
        on_replaced: Callable[[], object] = lambda: None,
    ) -> None:
        """Replace a subscription by a whole command; what it does not say is as it was."""
        if str(command.bookmark):
            raise UsageError(
                f"the subscription {active.sub_id!r} keeps its position when it is replaced: leave "
                "the bookmark out, or unsubscribe first to begin elsewhere"
            )
        options = dataclasses.replace(Options.parse(str(command.options)), replace=False)
        plain = dataclasses.replace(command, options=options)
        fields: dict[str, str | int] = {
            "filter": "",
            "orderby": "",
            "opts": "",
            **header_fields(plain),
        }
        timeout = timeout_of(command)
        await self.replace(active.sub_id, fields, on_replaced=on_replaced, timeout=timeout)


def timeout_of(command: Command) -> float:
    """Seconds to wait for the answer to a command."""
    return TIMEOUT_S if command.timeout is None else seconds(command.timeout)
