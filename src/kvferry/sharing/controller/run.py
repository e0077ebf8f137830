"""A controller as a process: ports, HTTP, signals, and what its log says first.

SIGTERM and SIGINT end it; a second one ends it at once. Nothing is written down, so there is
nothing to wait for: instances notice, and find the next controller by themselves.
"""

from __future__ import annotations

import logging
import os
import signal

from kvferry import __version__
from kvferry.base.errors import UnavailableError
from kvferry.base.process import log_to_stderr, signals_blocked
from kvferry.base.threads import Guarded
from kvferry.config.controller import ControllerConfig
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app

__all__ = ["run_controller"]

_log = logging.getLogger("kvferry.controller")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_controller(config: ControllerConfig, *, log_level: str = "info") -> None:
    """Serve until a signal says otherwise; in the main thread.

    Raises:
        UnavailableError: A port is taken; the text says which.
    """
    log_to_stderr(log_level)
    with signals_blocked(_SIGNALS):
        controller = Controller(config)
        listener = HttpListener(
            make_app(controller), config.host, config.port, "choose another --port"
        )
        controller.start()
        try:
            listener.start()
        except UnavailableError:
            controller.stop()
            raise
        ports = ", ".join(f"{name} {port}" for name, port in controller.ports.items())
        _log.info(
            "kvferry %s: controller at %s; instances at %s, ports: %s",
            *(__version__, listener.url, config.host, ports),
        )
        _log.info("ready")
        ended = signal.sigwait(_SIGNALS)
        _log.info("%s: ending", signal.Signals(ended).name)
        Guarded(_at_once, "second-signal").start()
        controller.ending.set()
        listener.stop(timeout_s=3.0)
        controller.stop()
        _log.info("ended")


def _at_once() -> None:
    os._exit(128 + signal.sigwait(_SIGNALS))
