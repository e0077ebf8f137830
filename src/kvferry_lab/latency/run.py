"""A run from its plan to its report."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.latency.cell_figures import LatencyRow, row_of
from kvferry_lab.latency.distance import FarStore, far_store, proxied
from kvferry_lab.latency.experiment import LatencyPlan, run_cells
from kvferry_lab.latency.report import LatencyReport
from kvferry_lab.output import command_line, machine_facts, machine_line

__all__ = ["remove_left", "run_latency"]

_PREFIX = "kvferry-latency-"


def run_latency(
    plan: LatencyPlan,
    *,
    link: str,
    store_url: str | None,
    listen_port: int | None,
    say: Callable[[str], None],
) -> LatencyReport:
    """Make the distance, ask, and take all of it down.

    Args:
        plan: What to ask.
        link: Its kind; see distance.py.
        store_url: The store of the server at `base_url`, which reaches it through a proxy of ours.
        listen_port: Where that proxy listens.
        say: Is told what is being done.

    Raises:
        UsageError: What is said contradicts itself.
        UnavailableError: A part of it cannot be had, and no cell was measured.
    """
    remove_left()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as name:
        folder, rows = Path(name), list[LatencyRow]()
        with _link(plan, link, store_url, listen_port, folder) as far:
            if far is not None:
                say(f"link: {far.kind}, {far.store}")
            stopped = ""
            try:
                for run in run_cells(plan, far, folder, say):
                    rows.append(row_of(run))
            except UnavailableError as error:
                if not rows:
                    raise
                stopped = str(error)
            return LatencyReport(
                plan=plan,
                rows=rows,
                command=command_line(),
                machine=machine_line(machine_facts()),
                link=far.way if far else "somebody else's",
                store=far.store if far else "a store",
                stopped=stopped,
            )


def remove_left() -> None:
    """The files of runs that were killed; all else of them has ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _link(
    plan: LatencyPlan, kind: str, store_url: str | None, port: int | None, folder: Path
) -> AbstractContextManager[FarStore | None]:
    if plan.base_url is None:
        if store_url is not None or port is not None:
            raise UsageError("--store and --listen are for a server at --base-url")
        return far_store(kind, folder)
    if store_url is None and port is None:
        if len(plan.rtt_ms) != 1:
            raise UsageError(
                "without --store and --listen the distance is somebody else's: name one --rtt-ms"
            )
        return nullcontext(None)
    if store_url is None or port is None:
        raise UsageError("--store and --listen belong together")
    config = ClientConfig.from_url(store_url)
    if config.unix_path is not None or config.tls:
        raise UsageError("--store is reached over TCP, without TLS")
    return proxied(config, port, folder)
