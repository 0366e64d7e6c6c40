"""Pools of threads or processes for handlers that need the processor.

A function that computes for a second holds the client up for a second: no heartbeat, no ack, no
other subscription. `run_workers` takes the messages of a stream and calls the function elsewhere,
in threads or in processes of their own::

    async with client.bookmark_stream("orders", sub_id="pricing") as messages:
        await run_workers(messages, price, ProcessPool(4), key=lambda message: message.sow_key)

**Order.** With a key, the messages of each key are processed in order and one at a time; keys are
processed in parallel. Without a key there is no order.

**Discard.** A message is discarded, or acknowledged to its queue, after its function has returned,
in whatever order they do: a bookmark store's recovery point stops at the first message that is not
finished. So after a crash of the client each message that was not finished comes again; its
function may have run before.

**Bounds.** No more than `max_waiting` messages wait for the workers. Then the stream fills, and the
server waits.

**End.** When the stream has ended, everything that was taken from it is finished. A cancellation,
or an error that the policy raises, drops what waits and gives the calls under way `exit_timeout`
seconds. What is not finished by then stays undiscarded: a process is killed, a thread is abandoned.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

import trio

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.streams import MessageStream
from haclient.transport.message_queue import HandlerErrorPolicy, check_policy
from haclient.transport.tasks import call_in_thread, open_nursery
from haclient.workers.message_runner import KeyedPool, MessageKey, MessageRunner, Work, call
from haclient_stores.checks import check_count, check_seconds
from haclient_stores.logs import logger_of

DEFAULT_MAX_WAITING: Final = 256
"""How many messages wait for the workers of a pool by default."""

DEFAULT_EXIT_TIMEOUT_S: Final = 5.0
"""Seconds for the calls under way when a pool is cancelled, by default."""

_T = TypeVar("_T")
_logger = logger_of(__name__)

_Call: TypeAlias = Callable[[Message], Awaitable[_T]]


@dataclass(frozen=True, slots=True)
class _Pool:
    workers: int

    def __post_init__(self) -> None:
        check_count("workers", self.workers, 1)


class ThreadPool(_Pool):
    """Worker threads: for functions that wait, or compute outside the interpreter's lock.

    Args:
        workers: How many.

    Raises:
        UsageError: It is below 1.
    """

    __slots__ = ()

    @asynccontextmanager
    async def open(self, work: Work[_T], limit_s: float) -> AsyncGenerator[list[_Call[_T]]]:
        """Have the workers call a function.

        Args:
            work: Called in them.
            limit_s: Not needed: threads that still work are abandoned.

        Yields:
            Calls the function with a message, in a thread; one for each worker.
        """
        del limit_s
        limiter = trio.CapacityLimiter(self.workers)

        async def run(message: Message) -> _T:
            return await call_in_thread(
                call, work, message, limiter=limiter, abandon_on_cancel=True
            )

        yield [run] * self.workers


class ProcessPool(_Pool):
    """Worker processes: for functions that compute in Python.

    They are spawned, so each imports the modules that the function needs. The function and what it
    returns have to be picklable. It gets a copy of the message, whose `discard` and `ack` do
    nothing. A process that dies is replaced, and its message is processed again.

    Args:
        workers: How many.

    Raises:
        UsageError: It is below 1.
    """

    __slots__ = ()

    @asynccontextmanager
    async def open(self, work: Work[_T], limit_s: float) -> AsyncGenerator[list[_Call[_T]]]:
        """Have the workers call a function; they end with the block.

        Args:
            work: Called in them.
            limit_s: Seconds that an idle process has to end by itself.

        Yields:
            Calls the function with a message, in a process; one for each worker.

        Raises:
            UsageError: It cannot be pickled.
        """
        from haclient.workers.process import (  # noqa: PLC0415  # it loads multiprocessing
            WorkerProcess,
            check_picklable,
        )

        check_picklable(work)
        processes = [WorkerProcess(work) for _ in range(self.workers)]
        try:
            async with open_nursery() as nursery:
                for each in processes:
                    nursery.start_soon(each.start)
            yield [each.call for each in processes]
        finally:
            with trio.CancelScope(shield=True):
                async with open_nursery() as nursery:
                    for each in processes:
                        nursery.start_soon(each.close, limit_s)


ResultHandler: TypeAlias = Callable[[Message, _T], Awaitable[None] | None]
"""Called in the client's thread with a message and what the worker returned for it."""


def run_workers(  # noqa: PLR0913  # by keyword, all but the first three
    stream: MessageStream,
    work: Work[_T],
    pool: ThreadPool | ProcessPool,
    *,
    key: MessageKey | None = None,
    on_result: ResultHandler[_T] | None = None,
    on_handler_error: HandlerErrorPolicy | None = None,
    max_waiting: int = DEFAULT_MAX_WAITING,
    exit_timeout: float = DEFAULT_EXIT_TIMEOUT_S,
) -> Coroutine[object, None, None]:
    """Process the messages of a stream in threads or processes, until it ends.

    A message is discarded, and one of a queue acknowledged, when `work` and `on_result` have
    returned. An error of `work`, `on_result` or `key` follows `on_handler_error`.

    Args:
        stream: An open stream of any kind. A queue stream must not have `auto_ack`, and needs a
            `max_backlog` above the number of workers.
        work: A plain function, called with each message in a worker.
        pool: The workers.
        key: A function of a message: messages of equal keys are processed in order, one at a time.
            `None`, the default, keeps no order.
        on_result: Called in the client's thread with the message and what `work` returned, in the
            order of each key; a plain function or a coroutine function.
        on_handler_error: `"raise"`, `"continue"`, `"discard"` or a callable, as of the client; by
            default that of the client, and for a queue `"continue"`. A queue message is given back
            by `"continue"`, after a delay that grows with its failures, and expired by `"discard"`.
        max_waiting: How many messages wait for the workers; from 1 on.
        exit_timeout: Seconds for the calls under way when this call is cancelled or fails; 0 for
            none.

    Raises:
        Exception: What `work`, `on_result` or `key` raised, if the policy is `"raise"`.
        HAClientError: The stream raised it; what came before was processed.
        UsageError: An argument can never work, or no worker thread could be started.
        WorkerError: A worker process could not be started; or, if the policy is `"raise"`, `work`
            called `sys.exit`.
    """
    _check_stream_and_work(stream, work)
    check_count("max_waiting", max_waiting, 1)
    check_seconds("exit_timeout", exit_timeout, zero=True)
    if on_handler_error is not None:
        check_policy(on_handler_error)

    async def process() -> None:
        with stream.working() as queue:
            policy = on_handler_error or queue.error_policy
            runner = MessageRunner(queue, policy, discards=True, acks=True)
            shared = KeyedPool(max_waiting + pool.workers, key, runner)
            async with pool.open(work, exit_timeout) as calls:
                await _Run(stream, shared, on_result).run(calls, exit_timeout)

    return process()


def _check_stream_and_work(stream: MessageStream, work: Work[object]) -> None:
    # Checked in the call: a program with a stream of `haclient.blocking` does not await the result.
    if not isinstance(stream, MessageStream):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            "run_workers takes a stream of haclient.Client or haclient.HAClient, not one of "
            f"{type(stream).__module__}: use a pool of concurrent.futures with it"
        )
    if inspect.iscoroutinefunction(work):
        raise UsageError(
            "work is a plain function, which runs in a worker: give a coroutine function as "
            "on_result, or to subscribe as the handler"
        )


class _Run(Generic[_T]):
    """One call of `run_workers`.

    The distributing task is cancelled from outside; the workers are shielded and see the end of
    their pool.
    """

    def __init__(
        self, stream: MessageStream, pool: KeyedPool, on_result: ResultHandler[_T] | None
    ) -> None:
        self._stream = stream
        self._pool = pool
        self._on_result = on_result
        self._error: Exception | None = None
        self._calls = trio.CancelScope(shield=True)

    async def run(self, calls: list[_Call[_T]], exit_timeout: float) -> None:
        try:
            async with open_nursery() as nursery:
                nursery.start_soon(self._distribute, exit_timeout)
                with self._calls:
                    async with open_nursery() as workers:
                        for each in calls:
                            workers.start_soon(self._work, each, nursery.cancel_scope)
                nursery.cancel_scope.cancel()
        finally:
            if self._pool.count:
                _logger.warning(
                    "%d messages were not processed within %g s, and stay undiscarded",
                    self._pool.count,
                    exit_timeout,
                )
        if self._error is not None:
            raise self._error

    async def _distribute(self, exit_timeout: float) -> None:
        """Give messages to the pool; at a cancellation give the calls under way a limit."""
        try:
            try:
                async for message in self._stream:
                    await self._pool.put(message)
            except Exception as error:  # of the stream, or of the policy: after what came before it
                self._error = self._error or error
            self._pool.end()
            await trio.sleep_forever()  # until the workers are done
        finally:
            self._calls.deadline = trio.current_time() + exit_timeout
            self._pool.drop_waiting()

    async def _work(self, call: _Call[_T], run_scope: trio.CancelScope) -> None:
        try:
            await self._pool.work(partial(self._handle, call))
        except Exception as error:  # raised by `run`, after the other calls
            self._error = self._error or error
            self._pool.count -= 1
            self._pool.drop_waiting()  # at once: no worker may take another before the cancellation
            run_scope.cancel()

    async def _handle(self, call: _Call[_T], message: Message) -> None:
        result = await call(message)
        if self._on_result is not None:
            finishing = self._on_result(message, result)
            if inspect.isawaitable(finishing):
                await finishing
