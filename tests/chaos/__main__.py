"""Chaos runs from the command line; `make soak` is this.

    PYTHONPATH=tests python -m chaos [--stage tcp] [--seconds 60] [--seed N] [--threads 8]
        [--pure]

Without --stage, all of them take turns of at most TURN_S. Prints what came of each run; exits 1
after the first one with a fault, when the last lines say how to run it again and where its journal
is.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from chaos.peers import run_peers
from chaos.report import Plan, Report
from chaos.runner import run
from chaos.stages import STAGES, open_stage
from chaos.watch import return_large_blocks

TURN_S = 60.0
EVERY = (*STAGES, "peers")
JOURNALS = Path(__file__).resolve().parents[2] / "build" / "chaos"


def main() -> int:
    """Run; return the exit status."""
    arguments = _arguments()
    return_large_blocks()
    if arguments.stage:
        stages, turn_s = [arguments.stage], arguments.seconds
    else:
        stages, turn_s = list(EVERY), min(TURN_S, arguments.seconds / len(EVERY))
    for turn in range(round(arguments.seconds / turn_s)):
        seed = arguments.seed + turn // len(stages)
        plan = Plan(seed=seed, seconds=turn_s, threads=arguments.threads)
        if not one(stages[turn % len(stages)], plan, arguments.pure):
            return 1
    return 0


def one(name: str, plan: Plan, pure: bool) -> bool:
    """One run; whether it was without a fault."""
    if name == "peers":
        return _told(name, plan, pure, run_peers(plan))
    with open_stage(name, plan.seed, pure) as stage:
        well = _told(name, plan, pure, report := run(stage, plan))
        if "hang" in report.journal.kinds():
            os._exit(1)  # nothing here can be joined any more
        return well


def _told(name: str, plan: Plan, pure: bool, report: Report) -> bool:
    """Say what came of a run; whether it was without a fault."""
    print(report.told(name, plan), flush=True)
    if not report.journal.faults:
        return True
    path = JOURNALS / f"{name}-{plan.seed}.json"
    report.journal.write(
        path, stage=name, plan=vars(plan), outcomes=report.outcomes, errors=report.errors
    )
    for fault in report.journal.faults:
        print(f"FAULT {fault['kind']} at {fault['at_s']} s: {fault['text']}")
    print(f"journal: {path}")
    print(
        f"again: make soak STAGE={name} SEED={plan.seed} SOAK_SECONDS={plan.seconds:g} "
        f"SOAK_THREADS={plan.threads}{' PURE=1' if pure else ''}",
        flush=True,
    )
    return False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Chaos runs against real servers.")
    parser.add_argument("--stage", choices=list(EVERY))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--pure", action="store_true", help="the client in pure Python")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
