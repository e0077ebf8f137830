"""`kvferry doctor`: what holds this store back, why that matters, and the line that mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from kvferry.base.errors import UnavailableError
from kvferry.cli.numbers import Number

__all__ = ["doctor"]


@click.command(
    epilog="Exit codes: 0 healthy (notes at most), 1 there are warnings or faults, 2 usage, or no "
    "server can be reached.  Example: kvferry doctor redis://cache:6379 --model config.json "
    "--gpu h100"
)
@click.argument("url", required=False)
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="File of settings.  [default: KVFERRY_CONFIG_FILE, then LMCACHE_CONFIG_FILE, if set]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--all", "everything", is_flag=True, help="Also list the checks that are fine.")
@click.option("--quick", is_flag=True, help="A short look at bandwidth: seconds, 2 GiB at most.")
@click.option("--no-bandwidth", is_flag=True, help="Write nothing and measure no rate.")
@click.option("--peer", metavar="HOST[:PORT]", help="Where --serve runs: compare with bare TCP.")
@click.option(
    "--serve",
    metavar="[ADDRESS[:PORT]]",
    is_flag=False,
    flag_value="127.0.0.1",
    help="Be such a peer, for ten minutes; this host alone reaches it without an address.",
)
@click.option(
    "--model",
    metavar="NAME|FILE",
    help="A name of `kvferry roi --list`, a config.json, or its directory.",
)
@click.option("--gpu", metavar="NAME", help="What computes that model, e.g. h100.")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="How many GPUs.")
@click.option(
    "--prefill-tokens-s",
    type=Number(0, min_open=True),
    help="What your engine was measured to prefill; wins over --gpu.",
)
@click.option(
    "--prefix-tokens",
    type=click.IntRange(1),
    default=8192,
    show_default=True,
    help="The prefix to compare.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    url: str | None,
    file: str | None,
    as_json: bool,
    everything: bool,
    quick: bool,
    no_bandwidth: bool,
    peer: str | None,
    serve: str | None,
    model: str | None,
    gpu: str | None,
    gpus: int,
    prefill_tokens_s: float | None,
    prefix_tokens: int,
) -> None:
    """Look at a server, the way to it and this host; say what to change.

    URL is the client's, with all of its settings; without it they come from the environment
    (KVFERRY_RESP_URL and others) or a file. Nothing is changed; the bandwidth probe writes keys
    under kvferry:doctor: only, for seconds, and deletes them.
    """
    if serve is not None:
        if url or peer:
            raise click.UsageError("--serve looks at no server: it takes no URL and no --peer")
        _serve(serve)
        return
    from kvferry.cli.table import console
    from kvferry.config import load_client_config
    from kvferry.config.file import FILE_VARIABLES, find_config_file
    from kvferry_lab.doctor.examine import worst
    from kvferry_lab.doctor.facts import Severity
    from kvferry_lab.doctor.prefill import Engine
    from kvferry_lab.doctor.report import as_json as to_json
    from kvferry_lab.doctor.report import say
    from kvferry_lab.doctor.run import DoctorPlan, run_doctor
    from kvferry_lab.doctor.traffic import Limits
    from kvferry_lab.roi.models import find_model

    shape = find_model(model) if model else None
    engine = Engine(
        gpu=gpu.lower() if gpu else None,
        gpus=gpus,
        prefill_tokens_s=prefill_tokens_s,
        prefix_tokens=prefix_tokens,
    )
    if shape is not None:
        engine.compute_s(shape)  # an unknown GPU is told before the work
    limits = None if no_bandwidth else Limits.quick() if quick else Limits()
    config = load_client_config(find_config_file(file, None, FILE_VARIABLES), url=url)
    del url  # it may carry a password, and error reporters show variables
    plan = DoctorPlan(
        config=config,
        limits=limits,
        model=shape,
        engine=engine,
        peer=_endpoint("--peer", peer) if peer else None,
    )
    try:
        with _progress() as progress:
            facts, findings = run_doctor(plan, progress)
    except UnavailableError as error:
        click.echo(f"kvferry: {error}", err=True)
        ctx.exit(2)
    if as_json:
        click.echo(json.dumps(to_json(facts, findings), indent=1))
    else:
        say(console(), facts, findings, everything=everything)
    ctx.exit(1 if worst(findings) >= Severity.WARN else 0)


def _serve(address: str) -> None:
    """Answer those who measure the way to this host."""
    from kvferry_lab.doctor.bare_tcp import SERVED_S, BareServer

    with BareServer(*_endpoint("--serve", address)) as server:
        click.echo(
            f"kvferry: serving bare TCP on {server.address} for {SERVED_S / 60:.0f} minutes; "
            "anyone who reaches it can fill this host's network",
            err=True,
        )
        server.serve()


def _endpoint(option: str, text: str) -> tuple[str, int]:
    from kvferry.config.url import parse_endpoint
    from kvferry_lab.doctor.bare_tcp import PORT

    try:
        host, port = parse_endpoint(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if not host:
        raise click.UsageError(f"{option}: no address")
    return host, port or PORT


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """The current step on standard error, on a terminal; silence elsewhere."""
    from kvferry.cli.table import console

    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("starting") as status:
        yield status.update
