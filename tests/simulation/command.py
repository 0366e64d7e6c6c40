"""The command line of the simulator: `nox -s simulate -- --help`."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic  # noqa: TID251  how long people wait for it
from typing import Final

from simulation.hunting import LIMIT, Hunt, hunt_all
from simulation.keeping import Kept, keep
from simulation.mutations import MUTATIONS, planted
from simulation.planning import plan_of
from simulation.plans import Plan
from simulation.progress import Progress, is_wanted
from simulation.shrinking import shrink
from simulation.simulator import Outcome, simulate

__all__ = ["Summary", "failures_of", "hunting_plan_of", "main", "run_seed"]

_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a run; it travels between processes."""

    seed: int
    failures: tuple[str, ...]
    messages: int
    failovers: int
    crashes: int
    virtual_s: float
    abandoned: int
    repeated: int
    redelivered: int
    passed_abandoned: int
    removed: int
    offlined: int


def run_seed(seed: int, mutation: str = "") -> Summary:
    """Run one seed, with a planted bug if one is named."""
    outcome = _simulated(plan_of(seed), mutation)
    counts, beyond = outcome.counts, outcome.beyond
    return Summary(
        seed=seed,
        failures=tuple(outcome.failures),
        messages=counts.messages,
        failovers=counts.failovers,
        crashes=counts.crashes,
        virtual_s=outcome.virtual_s,
        abandoned=beyond.abandoned,
        repeated=beyond.repeated_after_crash,
        redelivered=beyond.redelivered_undiscarded,
        passed_abandoned=beyond.passed_abandoned,
        removed=counts.removed,
        offlined=counts.offlined,
    )


def failures_of(plan: Plan, mutation: str = "") -> tuple[str, ...]:
    """Run a plan, with a planted bug if one is named: the complaints."""
    return tuple(_simulated(plan, mutation).failures)


def _simulated(plan: Plan, mutation: str) -> Outcome:
    before = logging.root.manager.disable
    logging.disable(
        logging.CRITICAL
    )  # everything goes wrong here, and the logs would be full of it
    try:
        with planted(mutation):
            return simulate(plan)
    finally:
        logging.disable(before)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 0 if no seed fails, and with `--mutations` if each bug is found."""
    options = _options(arguments)
    if options.mutations:
        return _check_mutations(options)
    if options.steps or options.trace:
        return _repeat(options)
    seeds = _seeds(options)
    shows_progress = is_wanted(seeds=len(seeds), terminal=sys.stderr.isatty())
    progress = Progress(len(seeds), _say_aside if shows_progress else lambda _: None, monotonic)
    summaries: list[Summary] = []
    for summary in _summaries(options):
        summaries.append(summary)
        progress.done(failed=bool(summary.failures))
        if summary.failures:
            _report(summary.seed, options)
    _tell(_totals(summaries), options)
    return int(any(summary.failures for summary in summaries))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nox -s simulate --",
        description="Run the whole system on a virtual clock, once for each seed.",
    )
    parser.add_argument("--seeds", type=int, default=None, help="how many seeds (200)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed, or the only one")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print all that happens in a seed")
    parser.add_argument("--steps", default="", help="keep these steps of the seed's script only")
    parser.add_argument("--enough", type=int, default=3, help="seeds that find a planted bug (3)")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="plant a bug")
    parser.add_argument(
        "--mutations", action="store_true", help="plant each bug in turn; each has to be found"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="keep the shrunk plan of each seed that fails there",
    )
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = 200 if options.seed is None or options.mutations else 1
    options.seed = 1 if options.seed is None else options.seed
    return options


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _say_aside(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _seeds(options: argparse.Namespace) -> range:
    return range(options.seed, options.seed + options.seeds)


def _summaries(options: argparse.Namespace) -> Iterator[Summary]:
    """What became of each seed, as soon as it is known."""
    seeds, mutation = _seeds(options), options.mutation
    if min(options.jobs, len(seeds)) < 2:
        yield from (run_seed(seed, mutation) for seed in seeds)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        runs = [pool.submit(run_seed, seed, mutation) for seed in seeds]
        yield from (run.result() for run in as_completed(runs))


def _totals(summaries: list[Summary]) -> dict[str, float]:
    return {
        "seeds": len(summaries),
        "failures": sum(1 for each in summaries if each.failures),
        "messages": sum(each.messages for each in summaries),
        "failovers": sum(each.failovers for each in summaries),
        "crashes": sum(each.crashes for each in summaries),
        "virtual_s": round(sum(each.virtual_s for each in summaries), 1),
        "passed_abandoned": sum(each.passed_abandoned for each in summaries),
        "removed": sum(each.removed for each in summaries),
        "offlined": sum(each.offlined for each in summaries),
    }


def _tell(totals: dict[str, float], options: argparse.Namespace) -> None:
    if options.json:
        _say(json.dumps(totals))
        return
    _say(
        "{seeds} seeds, {failures} failures: {messages} messages, {failovers} fail-overs and "
        "{crashes} crashes in {virtual_s} virtual seconds, {removed} messages removed and "
        "{offlined} clients taken offline; beyond the promise: {passed_abandoned} abandoned "
        "messages were passed by a recovery point".format(**totals)
    )


def _report(seed: int, options: argparse.Namespace) -> None:
    """Print what has failed; shrink it; print the short script, and how to repeat it."""
    plan = plan_of(seed)
    found = failures_of(plan, options.mutation)
    kinds = {text.partition(":")[0] for text in found}

    def fails(shorter: Plan) -> bool:
        again = failures_of(shorter, options.mutation)
        return any(text.partition(":")[0] in kinds for text in again)

    _say(f"seed {seed} failed:")
    for text in found[:_SHOWN]:
        _say(f"  {text}")
    short = shrink(plan, fails)
    _say(f"shrunk from {len(plan.script)} to {len(short.script)} steps:")
    for step in short.script:
        _say(f"  {step}")
    steps = ",".join(str(step.number) for step in short.script)
    planted_bug = f" --mutation {options.mutation}" if options.mutation else ""
    _say(f"repeat: nox -s simulate -- --seed {seed}{planted_bug}")
    _say(f"        nox -s simulate -- --seed {seed}{planted_bug} --trace --steps {steps or '-'}")
    if options.save is not None:
        path = options.save / f"{options.mutation or 'seed'}-{seed}.json"
        keep(Kept(what=found[0], plan=short, mutation=options.mutation), path)
        _say(f"saved: {path}")


def _repeat(options: argparse.Namespace) -> int:
    plan = plan_of(options.seed)
    if options.steps:
        plan = plan.keeping([int(each) for each in options.steps.split(",") if each.isdigit()])
    outcome = _simulated(plan, options.mutation)
    if options.trace:
        for line in outcome.lines():
            _say(line)
    for text in outcome.failures:
        _say(text)
    _say(f"seed {options.seed}: {len(outcome.failures)} failures; trace {outcome.digest}")
    return int(bool(outcome.failures))


def hunting_plan_of(seed: int, mutation: str) -> Plan:
    """The plan of a seed that is to find a planted bug: every second one is the bug's story."""
    story = MUTATIONS[mutation].story
    if story is None or seed % 2:
        return plan_of(seed)
    return story(seed, Random(f"story {seed}"))


def _failures(seed: int, mutation: str, planted: str) -> tuple[str, ...]:
    return failures_of(hunting_plan_of(seed, mutation), planted)


def _check_mutations(options: argparse.Namespace) -> int:
    """Each planted bug has to be found; print in how many seeds it was, and by whom."""
    names = [options.mutation] if options.mutation else list(MUTATIONS)
    hunts: list[Hunt] = []
    for found in hunt_all(
        _failures, names, _seeds(options), enough=options.enough, jobs=options.jobs
    ):
        hunts.append(found)
        _say(f"{found}")
        _say(f"    {MUTATIONS[found.name].what}")
    totals = {
        "mutations": len(hunts),
        "found": sum(1 for each in hunts if each.found),
        "runs": sum(each.seeds for each in hunts),
        "limits": sum(each.by[LIMIT] for each in hunts),
        "broken": sorted({seed for each in hunts for seed in each.broken}),
    }
    if totals["broken"]:
        _say(f"these seeds fail without a planted bug, too: {totals['broken']}")
    text = "{found} of {mutations} planted bugs found in {runs} runs".format(**totals)
    _say(json.dumps(totals) if options.json else text)
    return int(totals["found"] != totals["mutations"] or bool(totals["broken"]))
