"""`kvferry controller`: which instances there are, what each holds, and what they should do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvferry.cli.lazy import check_installed
from kvferry.cli.options import setting_options
from kvferry.config.controller import ControllerSettings

__all__ = ["controller"]

_NOT_SETTINGS = ("config", "log_level", "check")


@click.command(
    epilog="Every setting is also KVFERRY_CONTROLLER_ and its name in capitals "
    "(KVFERRY_CONTROLLER_PORT), and a line in the section 'controller' of the file.  "
    "SIGTERM and Ctrl-C end it.  "
    "Exit codes: 0 ended, 1 failed, 2 usage.  "
    "Example: kvferry controller --host localhost --port 9000 --monitor-ports "
    '\'{"pull": 8300, "reply": 8400, "heartbeat": 8082}\''
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="YAML with the section 'controller'.  [default: that of KVFERRY_CONFIG_FILE]",
)
@setting_options(ControllerSettings)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option("--check", is_flag=True, help="Print the settings as they take effect and end.")
def controller(**options: Any) -> None:
    """Know which instance holds which chunks, and show and steer them.

    Instances register and report by themselves. All of it is kept in memory and comes back after a
    restart, so killing a controller costs hints and no request.
    """
    from kvferry.config.controller import ControllerConfig

    given = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
    config = ControllerConfig.load(options["config"], **given)
    if options["check"]:
        _show(config)
        return
    check_installed("a controller", "starlette", "uvicorn")
    from kvferry.controller.run import run_controller

    run_controller(config, log_level=options["log_level"])


def _show(config: Any) -> None:
    import json

    from kvferry.config.setting import specs

    secrets = ("secret", "http_token")
    shown = {
        name: "***" if name in secrets and getattr(config, name) else getattr(config, name)
        for name in specs(ControllerSettings)
    }
    click.echo(json.dumps(shown, indent=1))
