"""A line every ten seconds, and only where somebody reads it."""

from __future__ import annotations

from simulation.progress import Progress, is_wanted


def test_short_runs_tell_only_a_terminal() -> None:
    assert not is_wanted(seeds=100, terminal=False)
    assert is_wanted(seeds=101, terminal=False)
    assert is_wanted(seeds=1, terminal=True)


def test_it_tells_every_ten_seconds_how_far_it_is() -> None:
    said: list[str] = []
    now = 50.0
    progress = Progress(100, said.append, lambda: now)
    for second in range(1, 26):
        now = 50.0 + second
        progress.done(failed=second == 3)
    assert said == [
        "10 of 100 seeds in 10 s, 1 failed; about 90 s to go",
        "20 of 100 seeds in 20 s, 1 failed; about 80 s to go",
    ]
