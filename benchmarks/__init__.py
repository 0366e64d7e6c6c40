"""What the hot paths cost, beside the raw socket and the peers, as ratios of one interleaved run.

`python -m benchmarks --rounds 5 --json results.json publish receive` runs the named groups (all
when none is named). The client under test runs in this process, pinned to core 0; whatever it
talks to runs in another process, pinned to core 1. Absolute figures are for orientation, ratios
are what counts: each is the quotient of two medians taken in the same run, with the target of the
design beside it.
"""
