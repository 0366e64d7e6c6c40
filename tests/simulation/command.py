"""The command line of the simulator."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from simulation.planning import plan_of
from simulation.simulator import simulate

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    import time
    T={}
    bad=0
    tot=[0,0,0,0,0.0]
    for seed in range(options.seed, options.seed+options.seeds):
        t=time.perf_counter()
        o = simulate(plan_of(seed))
        d=time.perf_counter()-t
        if options.trace: print("\n".join(o.trace))
        tot[0]+=o.counts.messages; tot[1]+=o.counts.failovers; tot[2]+=o.counts.moves;tot[3]+=o.counts.crashes; tot[4]+=o.virtual_s
        bad+=bool(o.failures)
        if o.failures or options.seeds<10: print(seed, f"{d:.2f}s", o.counts, f"{o.virtual_s:.1f}", o.beyond, o.failures[:4], o.digest[:8])
        sys.stdout.flush()
    print(json.dumps({"seeds":options.seeds,"bad":bad,"tot":tot}))
    return 0
