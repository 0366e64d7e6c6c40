"""Planned moves: a client leaves a server that works for another one, without loss.

The chooser may prefer another server, or the application may name one (`move_to`). The client
checks the new server first, by a logon under another name. Then the old server has to take what was
sent to it, the connection is closed, and the recovery begins as after a loss, but without a delay.
`haclient.session.recovery` has the table of what becomes of a move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeAlias, TypeVar

import trio

from haclient.errors import DisconnectedError, HAClientError
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import AsyncServerChooser, MovingServerChooser, ServerChooser
from haclient.session.recovery import EXPECTED, Move, MoveEvent, MoveState, check_may_move
from haclient.transport.core import Core

Check: TypeAlias = Callable[[str, Authenticator, float], Awaitable[HAClientError | None]]
"""Logs on to a server under another name, within so many seconds; returns the error, if any."""

CHOOSING_LIMIT_S: Final = 60.0
"""How long a chooser may take for an answer, in seconds."""

_T = TypeVar("_T")


async def answer_of(answer: _T | Awaitable[_T]) -> _T:
    """What a chooser answers, at once or after a while.

    Raises:
        DisconnectedError: It has failed, or does not answer in time.
    """
    if not isawaitable(answer):
        return answer
    with trio.move_on_after(CHOOSING_LIMIT_S):
        try:
            return await answer
        except EXPECTED as error:
            raise DisconnectedError(f"the server chooser failed: {error}") from error
    raise DisconnectedError(f"the server chooser did not answer within {CHOOSING_LIMIT_S:g} s")


class Moves:
    """The planned moves of one client, one at a time.

    Args:
        core: The client.
        chooser: Its servers.
        check: Checks whether a server is healthy.
        timeout_s: How long a check for the chooser, and each wait for the old server, may take.
    """

    def __init__(
        self,
        core: Core,
        chooser: ServerChooser | AsyncServerChooser,
        *,
        check: Check,
        timeout_s: float,
    ) -> None:
        self._core = core
        self._chooser = chooser
        self._check = check
        self._timeout_s = timeout_s
        self._move = Move("", MoveState.ENDED)  # the last one
        self._ended = trio.Event()  # of the last one that the application has asked for
        self._left = ""  # address of the server that was left, until it or another is live

    @property
    def has_left(self) -> bool:
        """Whether the client has left a server, and not yet tried the next one."""
        return self._move.state is MoveState.LEFT

    @property
    def uri(self) -> str:
        """The server that the next attempt is at; empty for the one that the chooser says."""
        return self._move.uri if self.has_left else ""

    @property
    def is_moving(self) -> bool:
        """Whether a server was left that worked, and none has been live since."""
        return bool(self._left)

    # -- the beginning of a move ------------------------------------------------------------------

    async def move_to(self, uri: str, *, timeout: float) -> None:
        """Leave the server for another one; returns when the client is live there.

        Raises:
            UsageError: The URI is wrong, or another move is under way.
            DisconnectedError: The client is reconnecting, or could not leave; or it could not use
                the new server, and reconnects to the others.
            HAClientError: What a logon at the new server raises; the client has stayed.
        """
        status = self._core.status
        self._core.running("move_to")
        if not check_may_move(status, uri, self._move):
            return
        self._move = move = Move(uri, MoveState.CHECKING)
        self._ended = ended = trio.Event()
        try:
            await self._check_before(uri, timeout=timeout)
            # A client that stops ends its recovery before its connection.
            if not (status.is_live and status.expects_connection):
                raise DisconnectedError("move_to: the connection was lost before the move began")
            if Uri.parse(uri).address == status.address:  # where it has come by itself meanwhile
                return
            move.next(MoveEvent.CHECKED)
            if await self._drain(move):
                self._leave(move, f"the client moves to {move.target}, as it was asked to")
            await ended.wait()
        finally:
            move.next(MoveEvent.GIVEN_UP)
        if move.error is not None:
            raise move.error

    async def _check_before(self, uri: str, *, timeout: float) -> None:
        try:
            authenticator = await answer_of(self._chooser.current_authenticator())
            error = await self._check(uri, authenticator, timeout)
        except DisconnectedError as failed:  # of the chooser
            error = DisconnectedError(f"move_to: {failed}")
        if error is not None:
            error.add_note(f"the client stays at {self._core.reporter.safe_uri}")
            raise error

    async def watch(self) -> None:
        """Check the servers that the chooser prefers, and leave for one of them in time."""
        core, chooser, reporter = self._core, self._chooser, self._core.reporter
        while isinstance(chooser, MovingServerChooser):
            await trio.sleep(chooser.check_every)
            try:
                await self._watch_once(chooser)
            except EXPECTED as error:  # of the chooser; the connection works
                reporter.log.warning(
                    "client %s stays at %s: %s", core.name, reporter.safe_uri, error
                )

    async def _watch_once(self, chooser: MovingServerChooser) -> None:
        core, reporter = self._core, self._core.reporter
        for uri, authenticator in chooser.to_check():
            error = await self._check(uri, authenticator, self._timeout_s)
            if error is not None:
                safe = Uri.parse(uri).safe
                reporter.log.info("client %s: %s: %s", core.name, safe, error)
            chooser.report_check(uri, error, trio.current_time())
        is_due = await answer_of(chooser.is_move_due(trio.current_time()))
        if is_due and self._move.state is MoveState.ENDED:
            self._move = move = Move("", MoveState.DRAINING)
            if await self._drain(move):
                try:
                    chooser.report_move()
                except EXPECTED as error:
                    self._next(MoveEvent.FAILED, error)
                    raise
                self._leave(move, f"the client moves to {move.target}")

    # -- what becomes of it -----------------------------------------------------------------------

    async def _drain(self, move: Move) -> bool:
        """Have the server take what was sent to it; return whether it may be left now.

        What is published meanwhile stays in the log, and goes to the next server.
        """
        await self._core.flusher.drain(limit_s=self._timeout_s)
        if self._core.connection is None:  # lost: the recovery says so
            return False
        move.next(MoveEvent.DRAINED)
        return move.state is MoveState.LEFT

    def _leave(self, move: Move, why: str) -> None:
        """Close a connection that works."""
        core = self._core
        core.reporter.log.info(
            "client %s leaves %s for %s", core.name, core.reporter.safe_uri, move.target
        )
        self._left = core.status.address
        core.publisher.is_moving = True
        core.check_connected().close(DisconnectedError(why))

    def failed(self, uri: str, error: HAClientError) -> None:
        """A step of the recovery at this server has failed, or the connection to it was lost."""
        self._core.publisher.move_failed()
        if self._left and uri and Uri.parse(uri).address == self._left:  # and it fails now
            self._left = ""
        self._next(MoveEvent.FAILED, error)

    def live(self) -> None:
        """A connection is live."""
        self._left = ""
        self._next(MoveEvent.LIVE)

    def _next(self, event: MoveEvent, error: HAClientError | None = None) -> None:
        if self._move.next(event, error):
            self._ended.set()
