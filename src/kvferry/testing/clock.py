"""A clock for upper bounds, which is slow while somebody waits for a processor.

    started = clock.now_s()
    ...
    assert clock.now_s() - started < 0.5    # of a machine that has time for us

What a bound forbids is that the code waits. That it is kept waiting, because tests run beside each
other on few processors, or because the machine has other work, is no fault of it. Linux says for
how long that was the case: in /proc/pressure/cpu (its Documentation/accounting/psi.rst), counted
for all processes, because servers are waited for as well. Where it does not say, this is a usual
clock.

A bound is therefore strict on an idle machine, and SLOWEST times as long on one that is full.
Lower bounds, and for how long a test does something, are measured with time.monotonic().
"""

from __future__ import annotations

import re
import time
from pathlib import Path

__all__ = ["now_s"]

SLOWEST = 10
_PRESSURE = Path("/proc/pressure/cpu")


def now_s() -> float:
    """Seconds since some moment; those in which a process waited for a processor are shorter."""
    return time.monotonic() - (1 - 1 / SLOWEST) * _kept_waiting_s()


def _kept_waiting_s() -> float:
    try:
        said = _PRESSURE.read_text()
    except OSError:  # an old kernel, or one that was told not to count
        return 0.0
    total = re.match(r"some .*total=(\d+)", said)
    return int(total[1]) / 1e6 if total else 0.0
