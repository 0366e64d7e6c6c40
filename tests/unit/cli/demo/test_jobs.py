"""The verdict on the jobs of a queue must be able to be bad."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from haclient.cli.demo.jobs import (
    JobMark,
    JobMeasures,
    JobStep,
    JobTraceReader,
    JobTraceWriter,
    JobVerdict,
    Outage,
    WorkerLife,
    judge_jobs,
)

MEASURES = JobMeasures(outage_ms=[200.0, 400.0, 300.0], worker_kills=1, seconds=2.0)
MARKS = {"t": JobMark.TAKEN, "d": JobMark.DONE, "c": JobMark.CONFIRMED}


def life(text: str, *, killed: bool = False) -> WorkerLife:
    """Of `t0@1 d0@2`: job 0 was taken at 1, done at 2."""
    steps: list[JobStep] = []
    for word in text.split():
        number, _, at = word[1:].partition("@")
        steps.append(JobStep(MARKS[word[0]], int(number), int(at)))
    return WorkerLife(steps, was_killed=killed)


def judge(*lives: WorkerLife, outages: tuple[Outage, ...] = (), left: int = 0) -> JobVerdict:
    return judge_jobs(1, lives, outages, MEASURES, left=left)


def test_a_job_that_was_done_once_is_good() -> None:
    verdict = judge(life("t0@1 d0@2 c0@3"))
    assert verdict.is_good
    assert (verdict.done, verdict.redelivered, verdict.repeated) == (1, 0, 0)
    assert verdict.outage_ms_p50 == 300.0
    assert verdict.as_text().endswith("\nevery job done, none lost")


@pytest.mark.parametrize("text", ["", "t0@1"])
def test_a_job_that_nobody_has_done_is_lost(text: str) -> None:
    verdict = judge(life(text, killed=True))
    assert verdict.lost == 1
    assert verdict.as_text().endswith("NOT GOOD: 1 lost")


def test_a_job_that_stays_in_the_queue_is_not_good() -> None:
    verdict = judge(life("t0@1 d0@2 c0@3"), left=1)
    assert not verdict.is_good
    assert "1 left in the queue" in verdict.as_text()


@pytest.mark.parametrize(
    ("first", "killed", "outages", "redelivered", "repeated", "duplicated"),
    [
        # The worker that had it died.
        ("t0@1", True, (), 1, 0, 0),
        ("t0@1 d0@2", True, (), 1, 1, 0),
        # It died after its acknowledgement was confirmed, which is no reason.
        ("t0@1 d0@2 c0@3", True, (), 0, 1, 1),
        # It lives, and has the lease.
        ("t0@1 d0@2", False, (), 0, 1, 1),
        # The broker was killed while it had the job.
        ("t0@1 d0@2", False, (Outage(4, 5),), 1, 1, 0),
        # It acknowledges late, after the outage.
        ("t0@1 d0@2 c0@20", False, (Outage(4, 5),), 1, 1, 0),
        # The broker was killed after the confirmation: the removal has to last.
        ("t0@1 d0@2 c0@3", False, (Outage(4, 5),), 0, 1, 1),
        # The broker was killed before the job was taken, or after it was taken again.
        ("t0@6 d0@7", False, (Outage(4, 5),), 0, 1, 1),
        ("t0@6 d0@7", False, (Outage(14, 15),), 0, 1, 1),
    ],
)
def test_a_job_that_comes_again_needs_a_reason(  # the columns of the table
    first: str,
    *,
    killed: bool,
    outages: tuple[Outage, ...],
    redelivered: int,
    repeated: int,
    duplicated: int,
) -> None:
    # The later process is listed first: only the times count.
    verdict = judge(life("t0@10 d0@11 c0@12"), life(first, killed=killed), outages=outages)
    found = (verdict.redelivered, verdict.repeated, verdict.duplicated)
    assert found == (redelivered, repeated, duplicated)
    assert verdict.is_good == (not duplicated)


def test_the_same_worker_may_not_have_a_job_twice_either() -> None:
    assert judge(life("t0@1 t0@2 d0@3 c0@4")).duplicated == 1


def test_a_job_that_nobody_has_published_is_not_good() -> None:
    verdict = judge(life("t0@1 d0@2 c0@3 t7@4 d7@5 c7@6"))
    assert (verdict.done, verdict.duplicated) == (1, 1)


def test_a_trace_is_read_while_it_is_written(tmp_path: Path) -> None:
    reader = JobTraceReader(tmp_path / "trace")
    assert reader.read_new() == []
    with JobTraceWriter.create(tmp_path / "trace", 10_000) as trace:
        trace.add(JobMark.TAKEN, 0, 5)
        assert reader.read_new() == [JobStep(JobMark.TAKEN, 0, 5)]
        steps = [JobStep(JobMark.DONE, number, 1 << 62) for number in range(9000)]
        for step in steps:
            trace.add(*step)
        assert reader.read_new() == steps
    assert reader.read_new() == []


def test_a_run_without_outages_has_a_median_of_0() -> None:
    verdict = judge_jobs(
        0, [], [], JobMeasures(outage_ms=[], worker_kills=0, seconds=math.pi), left=0
    )
    assert (verdict.outage_ms_p50, verdict.seconds) == (0.0, 3.142)
