"""`kvferry controller`: which instances there are, what each holds, and what they should do."""

from __future__ import annotations

import click

from kvferry.cli.lazy import check_installed
from kvferry.cli.serving import serving
from kvferry.config.controller import ControllerConfig
from kvferry.config.shown import shown_settings

__all__ = ["controller"]


@click.command(
    epilog="Every setting is also KVFERRY_CONTROLLER_ and its name in capitals "
    "(KVFERRY_CONTROLLER_PORT), and a line in the section 'controller' of the file.  "
    "SIGTERM and Ctrl-C end it.  "
    "Exit codes: 0 ended, 1 failed, 2 usage.  "
    "Example: kvferry controller --host localhost --port 9000 --monitor-ports "
    '\'{"pull": 8300, "reply": 8400, "heartbeat": 8082}\''
)
@serving(ControllerConfig, "the section 'controller'", ControllerConfig.load, shown_settings)
def controller(config: ControllerConfig, log_level: str) -> None:
    """Tell instances which of them holds which chunks, and show and steer them.

    Instances register and report by themselves. All of it is kept in memory and comes back after a
    restart, so killing a controller costs hints and no request.
    """
    check_installed("a controller", "starlette", "uvicorn")
    from kvferry.sharing.controller.run import run_controller

    run_controller(config, log_level=log_level)
