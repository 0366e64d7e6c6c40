"""How much of a random test runs: all of it with `--full`, else a third."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["length", "load_profile"]

_ALL = 100  # the examples of a property that names no number
_THIRD = 33


def load_profile(*, full: bool) -> None:
    """Choose for the whole run how many examples Hypothesis tries."""
    settings.register_profile(
        "chosen",
        max_examples=_ALL if full else _THIRD,
        # How long an example takes depends on what else the machine does.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("chosen")


def length(full: int) -> int:
    """The number of examples, seeds or runs: `full` with `--full`, else a third of it."""
    return -(-full * settings().max_examples // _ALL)
