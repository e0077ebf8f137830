"""Install engines and make models.

    PYTHONPATH=tools python -m engine_lane [ENGINE ...]     all engines by default
    PYTHONPATH=tools python -m engine_lane --models tiny small

Prints the interpreter of each engine, and the folder of each model. Exits 1 if one cannot be had.
"""

from __future__ import annotations

import argparse
import sys

from engine_lane.install import InstallError, install
from engine_lane.models import MODELS, model
from engine_lane.recipes import RECIPES


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="engine_lane", description=__doc__)
    parser.add_argument("engines", nargs="*", choices=[[], *RECIPES], metavar="ENGINE")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=[], metavar="MODEL")
    chosen = parser.parse_args()
    try:
        for name in chosen.engines or ([] if chosen.models else RECIPES):
            print(install(name))
        for name in chosen.models:
            print(model(name))
    except InstallError as error:
        print(f"engines: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
