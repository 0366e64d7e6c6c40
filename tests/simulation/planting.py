"""How bugs are planted: functions of the product are replaced, and put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

__all__ = ["Mutation", "Ours", "registering", "replace_attribute"]

Ours: TypeAlias = Any
"""An object of the product, inside and all."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug.

    Attributes:
        what: What is wrong, in words.
        plant: Plants it; called with the stack that takes it out again.
    """

    what: str
    plant: Callable[[contextlib.ExitStack], None]


def registering(mutations: dict[str, Mutation]) -> Callable[[str], Callable[[_F], _F]]:
    """Make a decorator that registers what plants a bug, under its name, with what is wrong."""

    def mutation(what: str) -> Callable[[_F], _F]:
        def register(plant: _F) -> _F:
            mutations[plant.__name__.strip("_")] = Mutation(what, plant)
            return plant

        return register

    return mutation


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
