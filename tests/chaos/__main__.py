"""Chaos runs from the command line; `make soak` is this.

    PYTHONPATH=tests python -m chaos [--stage tcp] [--seconds 60] [--seed N] [--threads 8]

Without --stage, all of them take turns. Prints what came of each run; exits 1 after the first one
with a fault, when the last lines say how to run it again and where its journal is.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from chaos.runner import Plan, Report, run
from chaos.stages import STAGES, open_stage

TURN_S = 60.0


def main() -> int:
    """Run; return the exit status."""
    arguments = _arguments()
    seed, left_s = arguments.seed, arguments.seconds
    stages = [arguments.stage] if arguments.stage else list(STAGES)
    turn_s = left_s / len(stages) if not arguments.stage else left_s
    turn_s = min(turn_s, TURN_S) if not arguments.stage else turn_s
    while left_s > 0:
        for name in stages:
            seconds = min(turn_s, left_s)
            if not one(name, Plan(seed=seed, seconds=seconds, threads=arguments.threads)):
                return 1
            left_s -= seconds
            if left_s <= 0:
                break
        seed += 1
    return 0


def one(name: str, plan: Plan) -> bool:
    """One run; whether it was without a fault."""
    started = time.monotonic()
    with open_stage(name, plan.seed) as stage:
        report = run(stage, plan)
        print(_told(name, plan, report, time.monotonic() - started), flush=True)
        if not report.journal.faults:
            return True
        path = Path(tempfile.gettempdir()) / f"kvferry-chaos-{name}-{plan.seed}.json"
        report.journal.write(
            path, stage=name, plan=vars(plan), outcomes=report.outcomes, errors=report.errors
        )
        for fault in report.journal.faults:
            print(f"FAULT {fault['kind']} at {fault['at_s']} s: {fault['text']}")
        print(f"journal: {path}")
        print(
            f"again: make soak STAGE={name} SEED={plan.seed} SOAK_SECONDS={plan.seconds:g} "
            f"SOAK_THREADS={plan.threads}",
            flush=True,
        )
        if "hang" in report.journal.kinds():
            os._exit(1)  # nothing here can be joined any more
        return False


def _told(name: str, plan: Plan, report: Report, took_s: float) -> str:
    lines = [f"{name}: seed {plan.seed}, {plan.threads} threads, {took_s:.0f} s"]
    for lane, outcomes in report.outcomes.items():
        counts = ", ".join(f"{what} {count}" for what, count in sorted(outcomes.items()))
        lines.append(f"  {lane}: {counts}")
    lines.append(f"  blows: {', '.join(f'{k} {n}' for k, n in sorted(report.blows.items()))}")
    lines.append(
        f"  {report.calls} keys asked for; longest way back {report.away_s_max:.2f} s; latest "
        f"return {report.overdue_s_max:.3f} s past its deadline; {report.peaces} times of peace, "
        f"{report.pardons} pardoned; {report.usage[0]!r} -> {report.usage[-1]!r}"
        if report.usage
        else "  it did not begin"
    )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Chaos runs against real servers.")
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--threads", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
