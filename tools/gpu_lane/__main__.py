"""What travels to a GPU machine, and the report that is made there.

PYTHONPATH=tools python -m gpu_lane pack --python python3.12
PYTHONPATH=tools python -m gpu_lane report --half 1 --out FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def _names(text: str) -> list[str]:
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog="gpu_lane", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack")
    pack.add_argument("--python", default="python3.12", help="of the machine's version")
    pack.add_argument("--only", default="", choices=["", "native", "vllm", "site"])
    for name in ("report", "part"):
        one = commands.add_parser(name)
        if name == "part":
            one.add_argument("part")
        else:
            one.add_argument("--half", choices=["1", "2", "smoke", "all"], default="all")
            one.add_argument("--parts", nargs="+", help="these, instead of a half")
        one.add_argument("--profile", choices=["gpu", "memory", "smoke", "cpu"], default="gpu")
        one.add_argument("--doors", type=_names, help="of hits, with commas; default: all")
        one.add_argument("--out", type=Path, required=True)
        one.add_argument("--python", type=Path, default=Path(sys.executable))
        one.add_argument("--slow", type=float, default=1.0, help="times longer limits")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    chosen = parser().parse_args(words)
    if chosen.command == "pack":
        from gpu_lane.pack import pack

        pack(chosen.python, chosen.only)
        return 0
    from gpu_lane.report import DOORS, HALVES, Options, run, run_part

    is_part = chosen.command == "part"
    parts = [chosen.part] if is_part else chosen.parts or HALVES[chosen.half]
    out, python = chosen.out.absolute(), chosen.python.absolute()
    doors = chosen.doors or DOORS
    options = Options(chosen.profile, parts, out, python, chosen.slow, doors)
    if is_part:
        run_part(chosen.part, options)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
