"""The tests of Valkey and of resp-compatibility, run on a node; `make conformance` is this.

    PYTHONPATH=tests python -m foreign_suites [--valkey CHECKOUT] [--resp CHECKOUT] [--show]

Both are checkouts of the user's own; nothing of them is in this tree. What is left out, and why,
stands in valkey.yaml and resp.yaml beside this file. Exits 1 when a test fails that is not left
out, and when an entry of a list fits nothing any more. --show prints what the suites print.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from foreign_suites import resp, valkey
from foreign_suites.outcome import Outcome
from support.node_server import NodeServer


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="foreign_suites")
    parser.add_argument("--valkey", type=Path, help="a checkout of valkey-io/valkey")
    parser.add_argument("--resp", type=Path, help="one of tair-opensource/resp-compatibility")
    parser.add_argument("--show", action="store_true", help="print what the suites print")
    arguments = parser.parse_args()
    if arguments.valkey is None and arguments.resp is None:
        parser.error("name a checkout: --valkey PATH, --resp PATH, or both")
    outcomes: list[Outcome] = []
    with NodeServer(size_gb=1) as node:
        if arguments.valkey is not None:
            outcomes += [valkey.run(arguments.valkey, node, unit) for unit in valkey.UNITS]
        if arguments.resp is not None:
            outcomes.append(resp.run(arguments.resp, node))
    for outcome in outcomes:
        if arguments.show:
            print(outcome.output)
        print(outcome.line())
        for name, why in outcome.failed.items():
            print(f"  failed: {name}: {why}")
    stale = [
        f"  {entry} in the list of {suite} fits no test"
        for suite in sorted({outcome.suite for outcome in outcomes})
        for entry in _stale([outcome for outcome in outcomes if outcome.suite == suite])
    ]
    print("\n".join(stale), end="\n" if stale else "")
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(len(outcome.failed) for outcome in outcomes)
    skipped = sum(len(outcome.skipped) for outcome in outcomes)
    print(f"{passed} of {passed + failed} passed, {skipped} left out")
    return 1 if failed or stale else 0


def _stale(outcomes: list[Outcome]) -> list[str]:
    left_out = [name for outcome in outcomes for name in outcome.skipped]
    return outcomes[0].skips.unused(left_out)


if __name__ == "__main__":
    raise SystemExit(main())
