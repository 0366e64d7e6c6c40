from __future__ import annotations

import pytest
import trio

from haclient.errors import DisconnectedError, StoreFull
from haclient.transport.tasks import call_handlers, is_of_handler, open_nursery, unwrapped


def test_nested_groups_with_one_error_are_that_error() -> None:
    error = StoreFull("no room")
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [error])])
    assert unwrapped(group) is error


def test_several_errors_stay_together() -> None:
    group = BaseExceptionGroup("", [StoreFull("a"), StoreFull("b")])
    assert unwrapped(group) is group
    assert unwrapped(BaseExceptionGroup("", [group])) is group


def test_who_was_told_of_an_error_adds_nothing_to_it() -> None:
    error = StoreFull("no room")
    told = DisconnectedError("flush: not confirmed")
    told.__cause__ = DisconnectedError("closed")
    told.__cause__.__cause__ = error
    group = BaseExceptionGroup("", [told, BaseExceptionGroup("", [error, error])])
    assert unwrapped(group) is error
    several = BaseExceptionGroup("", [group, StoreFull("another")])
    assert unwrapped(several) is several


def test_an_error_that_is_its_own_cause_ends_the_search() -> None:
    error, other = DisconnectedError("lost"), DisconnectedError("lost as well")
    error.__cause__ = error
    assert unwrapped(BaseExceptionGroup("", [error])) is error
    error.__cause__, other.__cause__ = other, error
    group = BaseExceptionGroup("", [DisconnectedError("a"), error])
    assert unwrapped(group) is group


@pytest.mark.row("CC37")
async def test_an_error_of_a_task_leaves_the_block_as_itself() -> None:
    async def fail() -> None:
        raise DisconnectedError("lost") from OSError("reset")

    with pytest.raises(DisconnectedError, match="lost") as caught:  # noqa: PT012  # the block is it
        async with open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, OSError)


async def test_an_error_of_the_body_leaves_the_block_as_itself() -> None:
    with pytest.raises(DisconnectedError, match="lost"):  # noqa: PT012  # the block is it
        async with open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise DisconnectedError("lost")


async def test_errors_of_two_tasks_leave_as_a_group() -> None:
    async def fail() -> None:
        raise StoreFull("full")

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012  # the block is what is tested
        async with open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)
            await trio.sleep_forever()
    assert len(caught.value.exceptions) == 2


async def test_a_block_without_errors_is_just_a_nursery() -> None:
    async with open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)


@pytest.mark.row("HA24")
async def test_a_task_that_a_handler_starts_in_another_nursery_is_one_of_the_handler() -> None:
    found: list[bool] = []

    async def job() -> None:
        found.append(is_of_handler())

    async def serve() -> None:
        call_handlers()
        program.start_soon(job)

    async with trio.open_nursery() as program:
        program.start_soon(serve)
    assert found == [True]
    assert not is_of_handler()
