"""The entry point: finds the command, and turns every failure into one line with an exit code.

Exit codes of all commands:

    0    done
    1    the command ran and the answer is no, or something outside failed; the reason is printed
    2    the command line or a setting cannot be right
    70   a bug of ours; KVFERRY_TRACEBACK=1 shows where
    130  interrupted with Ctrl-C
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from kvferry import __version__
from kvferry.base.errors import KVFerryError, UsageError
from kvferry.base.shown import reason_of
from kvferry.cli.lazy import lazy_group

__all__ = ["COMMANDS", "main", "run_command"]

# name -> (where it is, its line in --help): listing commands must not import them
COMMANDS = {
    "bench": (
        "kvferry_lab.cli.bench:bench",
        "Measure clients against a server, with verified bytes.",
    ),
    "clear": ("kvferry.cli.clear:clear", "Have every engine on a store forget what it has there."),
    "config": ("kvferry.cli.config:config", "Show or check the settings of an engine."),
    "controller": (
        "kvferry.cli.controller:controller",
        "Tell instances which of them holds which chunks.",
    ),
    "demo": (
        "kvferry_lab.cli.demo:demo",
        "Show KV surviving its process: same tokens, far sooner.",
    ),
    "doctor": (
        "kvferry_lab.cli.doctor:doctor",
        "Say what holds a store back, and the line to fix it.",
    ),
    "explain": (
        "kvferry.integrations.vllm.connector.explain_command:explain",
        "Say where a prompt's chunks are, or why not.",
    ),
    "node": ("kvferry.cli.node:node", "Serve chunks from memory to any Redis or Valkey client."),
    "roi": ("kvferry_lab.cli.roi:roi", "Say whether a cache pays, for a model, a GPU and a store."),
    "lab": ("kvferry_lab.cli.lab:lab", "Run the known load tests against an inference server."),
    "serve-demo": (
        "kvferry_lab.cli.serve_demo:serve_demo",
        "Serve OpenAI's API without a GPU, the cache for real.",
    ),
    "server": ("kvferry.cli.server:server", "Run one cache for all engine processes of this host."),
    "top": ("kvferry.cli.top:top", "Watch a running server."),
    "trace": (
        "kvferry_lab.cli.trace:trace",
        "Replay recorded requests: hit rates by policy and size.",
    ),
    "tune": ("kvferry_lab.cli.tune:tune", "Measure the best settings for a server and write them."),
}


@click.group(
    cls=lazy_group(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 no or failed, 2 usage, 70 a bug of ours, 130 interrupted.",
)
@click.version_option(__version__, prog_name="kvferry")
def cli() -> None:
    """KV-cache storage for LLM inference.

    Begin with `kvferry demo`: it needs no server, no GPU and no model.
    """


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run_command(cli, argv, "kvferry")


def run_command(command: click.Command, argv: list[str] | None, name: str) -> int:
    """As `main`, for one command: a failure is a line and the exit code that it has everywhere."""
    try:
        code = command.main(argv, prog_name=name, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:  # `kvferry ... | head`: nobody is left to talk to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        return _say(str(error), 2)
    except KVFerryError as error:
        return _say(str(error), 1)
    except OSError as error:
        named = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return _say(named + reason_of(error), 1)
    except Exception as error:
        if os.environ.get("KVFERRY_TRACEBACK"):
            traceback.print_exc()
        return _say(
            f"{type(error).__name__}: {error} (this is a bug; KVFERRY_TRACEBACK=1 shows where)", 70
        )


def _say(text: str, code: int) -> int:
    click.echo(f"kvferry: {text}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
