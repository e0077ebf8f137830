"""`kvferry doctor`: what holds this store back, why that matters, and the line that mends it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from kvferry.base.errors import UnavailableError
from kvferry_lab.cli.options import option, options_of
from kvferry_lab.output import progress

__all__ = ["doctor"]


@dataclass(frozen=True, kw_only=True)
class _Examination:
    """What is looked at, and how it is shown."""

    file: str | None = option(
        None,
        "File of settings.  [default: KVFERRY_CONFIG_FILE, then LMCACHE_CONFIG_FILE, if set]",
        "--config",
        metavar="FILE",
    )
    as_json: bool = option(False, "One JSON object on standard output.", "--json")
    everything: bool = option(False, "Also list the checks that are fine.", "--all")
    quick: bool = option(False, "A short look at bandwidth: seconds, 2 GiB at most.")
    no_bandwidth: bool = option(False, "Write nothing and measure no rate.")
    peer: str | None = option(
        None, "Where --serve runs: compare with bare TCP.", metavar="HOST[:PORT]"
    )
    serve: str | None = option(
        None,
        "Be such a peer, for ten minutes; this host alone reaches it without an address.",
        metavar="[ADDRESS[:PORT]]",
        is_flag=False,
        flag_value="127.0.0.1",
    )
    model: str | None = option(
        None,
        "A name of `kvferry roi --list`, a config.json, or its directory.",
        metavar="NAME|FILE",
    )
    gpu: str | None = option(None, "What computes that model, e.g. h100.", metavar="NAME")
    gpus: int = option(1, "How many GPUs.", least=1)
    prefill_tokens_s: float | None = option(
        None, "What your engine was measured to prefill; wins over --gpu.", above=0
    )
    prefix_tokens: int = option(8192, "The prefix to compare.", least=1)


@click.command(
    epilog="Exit codes: 0 healthy (notes at most), 1 there are warnings or faults, 2 usage, or no "
    "server can be reached.  Example: kvferry doctor redis://cache:6379 --model config.json "
    "--gpu h100"
)
@click.argument("url", required=False)
@options_of(_Examination)
def doctor(ctx: click.Context, /, o: _Examination, url: str | None) -> None:
    """Look at a server, the way to it and this host; say what to change.

    URL is the client's, with all of its settings; without it they come from the environment
    (KVFERRY_RESP_URL and others) or a file. Nothing is changed; the bandwidth probe writes keys
    under kvferry:doctor: only, for seconds, and deletes them.
    """
    if o.serve is not None:
        if url or o.peer:
            raise click.UsageError("--serve looks at no server: it takes no URL and no --peer")
        _serve(o.serve)
        return
    from kvferry.cli.table import console
    from kvferry.config import load_client_config
    from kvferry.config.file import FILE_VARIABLES, find_config_file
    from kvferry_lab.doctor.examine import worst
    from kvferry_lab.doctor.facts import Severity
    from kvferry_lab.doctor.prefill import Engine
    from kvferry_lab.doctor.report import as_json, say
    from kvferry_lab.doctor.run import DoctorPlan, run_doctor
    from kvferry_lab.doctor.traffic import Limits
    from kvferry_lab.roi.models import find_model

    shape = find_model(o.model) if o.model else None
    engine = Engine(
        gpu=o.gpu.lower() if o.gpu else None,
        gpus=o.gpus,
        prefill_tokens_s=o.prefill_tokens_s,
        prefix_tokens=o.prefix_tokens,
    )
    if shape is not None:
        engine.compute_s(shape)  # an unknown GPU is told before the work
    config = load_client_config(find_config_file(o.file, None, FILE_VARIABLES), url=url)
    del url  # it may carry a password, and error reporters show variables
    plan = DoctorPlan(
        config=config,
        limits=None if o.no_bandwidth else Limits.quick() if o.quick else Limits(),
        model=shape,
        engine=engine,
        peer=_endpoint("--peer", o.peer) if o.peer else None,
    )
    try:
        with progress() as say_step:
            facts, findings = run_doctor(plan, say_step)
    except UnavailableError as error:
        click.echo(f"kvferry: {error}", err=True)
        ctx.exit(2)
    if o.as_json:
        click.echo(json.dumps(as_json(facts, findings), indent=1))
    else:
        say(console(), facts, findings, everything=o.everything)
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
