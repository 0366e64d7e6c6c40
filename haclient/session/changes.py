"""What the commands that change active subscriptions mean to these. Pure.

Several such commands may be on their way for one subscription. What is in force afterwards follows
from the order in which they were sent (`haclient.session.pauses`), so it is noted as each answer
arrives, and not when the task that waits for it runs. The answer counts as well when nobody waits
for it any more, since the server has carried the command out all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from haclient.protocol.options import Options
from haclient.session.acks import PendingCommand, is_refusal
from haclient.session.pauses import PauseChange
from haclient.session.subscriptions import Router, SubscribeRequest, Subscription


def pauses(options: Options, sub_ids: Sequence[str], *, are_active: bool) -> bool | None:
    """Whether a subscribe pauses active subscriptions; `False` if it resumes them.

    Args:
        options: Its options.
        sub_ids: The ids that it names.
        are_active: Whether all of them are ids of active subscriptions.

    Returns:
        `None` if it does neither: with one unknown id it begins a subscription, paused or not.
    """
    if options.resume:
        return False
    if not options.pause or options.replace:
        return None
    return True if len(sub_ids) > 1 or (sub_ids and are_active) else None


class Change:
    """One command that changes active subscriptions.

    Args:
        subscriptions: The subscriptions that it changes.
        what: The command in words.
        pauses: Whether they are paused or resumed by it; `None` for neither.
        by_application: Whether the application has asked for it.
        replacement: The request that one subscription has from now on; `None` for no replacement.
        command_id: The id of a command that replaces another one.
        order: The number of a replacement, in the order of sending.
        on_replaced: Called as the consent to a replacement arrives, before the messages behind it.

    Attributes:
        subscriptions: As above.
        what: As above.
        by_application: As above.
        is_unanswered: Whether it was sent, and the server has not answered.
        is_accepted: Whether the server has accepted it.
    """

    __slots__ = (
        "_command_id",
        "_on_replaced",
        "_order",
        "_pauses",
        "_replacement",
        "_sent",
        "by_application",
        "is_accepted",
        "is_unanswered",
        "subscriptions",
        "what",
    )

    def __init__(  # noqa: PLR0913  # the parts of one command
        self,
        subscriptions: Sequence[Subscription],
        what: str,
        *,
        pauses: bool | None,
        by_application: bool = True,
        replacement: SubscribeRequest | None = None,
        command_id: str = "",
        order: int = 0,
        on_replaced: Callable[[], object] | None = None,
    ) -> None:
        self.subscriptions = subscriptions
        self.what = what
        self.by_application = by_application
        self._pauses = pauses
        self._replacement = replacement
        self._command_id = command_id
        self._order = order
        self._on_replaced = on_replaced
        self.is_unanswered = False
        self.is_accepted = False
        self._sent: list[tuple[Subscription, PauseChange]] = []

    @property
    def replaces(self) -> Subscription | None:
        """The subscription whose command it replaces."""
        return None if self._replacement is None else self.subscriptions[0]

    def sent(self, now: float) -> None:
        """Note that the command is being sent."""
        self.is_unanswered = True
        if self._pauses is None:
            return
        for one in self.subscriptions:
            change = one.pauses.sent(pauses=self._pauses, by_application=self.by_application)
            self._sent.append((one, change))
            one.note_held(now)

    def answered(self, pending: PendingCommand, router: Router, now: float) -> None:
        """Note the server's answer; does nothing if the wait has ended without one.

        Args:
            pending: The command, with its answer.
            router: The active subscriptions of the connection.
            now: The time, in seconds.
        """
        if pending.ack is None and not (pending.error and is_refusal(pending.error)):
            return  # a lost connection is no refusal
        self.is_unanswered, self.is_accepted = False, pending.ack is not None
        if pending.ack is not None and self._replacement is not None:
            self._replace(self._replacement, router, pending.ack.options)
        for one, change in self._sent:
            one.pauses.answered(change, is_accepted=self.is_accepted)
            one.note_held(now)
        for one in self.subscriptions:
            one.keep_paused()

    def _replace(self, request: SubscribeRequest, router: Router, granted: str) -> None:
        subscription = self.subscriptions[0]
        if subscription not in router:
            return  # ended meanwhile
        if self._order < subscription.replaced_by:
            return  # a later one, whose answer came first, is in force
        subscription.replaced_by = self._order
        router.name_command(subscription, self._command_id)
        subscription.request = request
        if self._on_replaced is not None:
            self._on_replaced()
        if subscription.leases is not None:
            subscription.leases.granted(granted)
