"""Plans that were kept: as JSON, whole, so that they outlive every change of the planning.

A kept plan names the bug that it has exposed, and the mutation that plants it again if there is
one. A plan fixes everything but the order of steps that happen at the same moment, which is drawn
from its seed and changes with any change of the code: so a planted bug is looked for with some
other seeds, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from simulation.plans import Plan

__all__ = ["FOLDER", "Kept", "keep", "kept_in"]

FOLDER: Final = Path(__file__).with_name("kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A plan worth keeping.

    Attributes:
        what: The bug that it has exposed, in words.
        mutation: The mutation that plants it again; empty if none does.
        plan: The plan.
    """

    what: str
    plan: Plan
    mutation: str = ""

    def reseeded(self, count: int) -> list[Plan]:
        """The plan, and the same with other seeds."""
        return [replace(self.plan, seed=self.plan.seed + more) for more in range(count)]


def keep(kept: Kept, path: Path) -> None:
    """Write it to a file that people can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def kept_in(path: Path) -> Kept:
    """Read it back.

    Raises:
        ValueError: It is no kept plan of this version.
    """
    return msgspec.json.decode(path.read_bytes(), type=Kept, strict=True)
