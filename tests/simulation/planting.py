"""How bugs are planted: functions of the product are replaced, and put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias, TypeVar

from simulation.plans import Plan

__all__ = ["Mutation", "Ours", "Registering", "Story", "replace_attribute"]

Story: TypeAlias = Callable[[int, Random], Plan]
"""The plan of a seed that brings about what chance alone would rarely do."""

Ours: TypeAlias = Any
"""An object of the product, inside and all."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug.

    Attributes:
        what: What is wrong, in words.
        plant: Plants it; called with the stack that takes it out again.
        story: Finds it within few seeds, where random plans rarely do.
    """

    what: str
    plant: Callable[[contextlib.ExitStack], None]
    story: Story | None = None


class Registering:
    """A decorator that registers what plants a bug, under its name.

    Args:
        mutations: Where it registers.
    """

    def __init__(self, mutations: dict[str, Mutation]) -> None:
        self._mutations = mutations

    def __call__(self, what: str, story: Story | None = None) -> Callable[[_F], _F]:
        """Say what is wrong, and which story finds it."""

        def register(plant: _F) -> _F:
            self._mutations[plant.__name__.strip("_")] = Mutation(what, plant, story)
            return plant

        return register


def replace_attribute(stack: contextlib.ExitStack, owner: object, name: str, value: object) -> Ours:
    """Replace an attribute for as long as the stack is open.

    Returns:
        What it was.
    """
    original = getattr(owner, name)
    own = vars(owner).get(name)  # a static method as such; none where it is inherited
    setattr(owner, name, value)
    if own is None:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, own)
    return original
