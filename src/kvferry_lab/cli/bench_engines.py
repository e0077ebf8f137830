"""`kvferry bench engines`: what a cache is worth to a real vLLM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from kvferry.cli.numbers import Number
from kvferry_lab.output import DRAWING, OutputFile

_PATH = click.Path(exists=True, path_type=Path)
_INTEGRATIONS = "none,tier,connector,mp"


@click.command(
    epilog="Exit codes: 0 all measured, 1 one has no figures or wrong answers, 2 usage.  "
    "Example: kvferry bench engines --python venv/bin/python --model MODEL --json engines.json"
)
@click.option("--python", type=_PATH, required=True, help="Interpreter of vLLM's environment.")
@click.option("--model", type=_PATH, required=True, help="Folder of the model.")
@click.option(
    "--integrations", default=_INTEGRATIONS, show_default=True, help="Which ones, in this order."
)
@click.option(
    "--rival-python", type=_PATH, help="The interpreter of vLLM with LMCache, to compare it too."
)
@click.option("--store", type=_PATH, help="Server program.  [default: the wheel's Valkey]")
@click.option(
    "--prompt-tokens", type=int, default=4096, show_default=True, help="Length of a prompt."
)
@click.option("--prompts", type=int, default=2, show_default=True, help="Prompts in a round.")
@click.option(
    "--answer-tokens", type=int, default=16, show_default=True, help="Length of an answer."
)
@click.option("--rounds", type=int, default=2, show_default=True, help="How often all is repeated.")
@click.option("--chunk-tokens", type=int, default=256, show_default=True, help="Tokens of a chunk.")
@click.option(
    "--block-size", type=int, default=128, show_default=True, help="The block size of vLLM."
)
@click.option(
    "--memory-gb",
    type=Number(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Host memory of a cache.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="The type of vLLM's numbers.")
@click.option("--threads", type=int, help="Threads of the engine.  [default: all cores]")
@click.option(
    "--one-process",
    is_flag=True,
    help="Run the engine core in vLLM's process, which starts sooner.",
)
@click.option(
    "--tier-spec", default="", help="Class of the tier's spec, in the place of vLLM's: MODULE:NAME."
)
@click.option("--module-path", "paths", multiple=True, type=_PATH, help="Where that module is.")
@click.option(
    "--serve-bench", is_flag=True, help="Also run `vllm bench serve` with prefix_repetition."
)
@click.option(
    "--broken-store", is_flag=True, help="Also measure what a dead or silent store costs."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the figures to this file; - is stdout."
)
@click.option(
    "--plot",
    "plot_file",
    type=OutputFile(*DRAWING),
    help="Draw times to the first token into this file.",
)
@click.pass_context
def engines(ctx: click.Context, /, json_file: str | None, plot_file: str | None, **o: Any) -> None:
    """Start vLLM again and again, without a cache and with each of our integrations, and compare.

    kvferry has to be installed in vLLM's environment. The store is started for the run.
    """
    from rich.console import Console

    from kvferry.base.host import usable_cores
    from kvferry.embedded.program import find_server
    from kvferry_lab.bench.plot import check_plot
    from kvferry_lab.engines import report
    from kvferry_lab.engines.bench import EnginePlan, run
    from kvferry_lab.engines.broken import run_broken, say_broken_rows
    from kvferry_lab.engines.process import versions_of
    from kvferry_lab.engines.serve import run_serve_bench, say_serve_rows
    from kvferry_lab.output import write_json

    if plot_file:
        check_plot()
    integrations = o["integrations"].split(",")
    if o["rival_python"] and "lmcache" not in integrations:
        integrations.append("lmcache")
    module, _, spec = o["tier_spec"].rpartition(":")
    python = o["python"].absolute()
    plan = EnginePlan(
        python=python,
        model=o["model"].absolute(),
        environment=_environment(python, o["paths"]),
        store=find_server(o["store"]),
        integrations=integrations,
        rival_python=o["rival_python"] and o["rival_python"].absolute(),
        rival_environment=_environment(o["rival_python"] or python, o["paths"]),
        **{name: o[name] for name in ("prompt_tokens", "prompts", "answer_tokens", "rounds")},
        **{
            name: o[name]
            for name in ("chunk_tokens", "block_size", "memory_gb", "dtype", "one_process")
        },
        threads=o["threads"] or usable_cores(),
        tier_spec=(spec, module or None) if spec else None,
    )
    unknown = set(integrations) - {"none", "tier", "connector", "mp", "lmcache"}
    if unknown or ("lmcache" in integrations and not plan.rival_python):
        raise click.UsageError(
            f"no such integration, or no --rival-python for it: {sorted(unknown)}"
        )
    to_stderr = json_file == "-"
    wide = None if os.isatty(2 if to_stderr else 1) else 120  # a pipe has no width of its own
    console = Console(stderr=to_stderr, width=wide)
    facts = report.header(plan, versions_of(plan.python, plan.rival_python))
    report.say_header(console, facts)
    rows = run(plan, lambda text: console.print(text, highlight=False, markup=False))
    report.say_rows(console, rows)
    if o["serve_bench"]:
        served = run_serve_bench(plan, lambda text: console.print(text, highlight=False))
        say_serve_rows(console, served)
        facts["serve_bench"] = served
    if o["broken_store"]:
        broken = run_broken(plan, lambda text: console.print(text, highlight=False))
        say_broken_rows(console, broken)
        facts["broken_store"] = broken
    if json_file:
        write_json(json_file, {"run": facts, "integrations": [row.to_dict() for row in rows]})
    if plot_file:
        report.write_plot(plot_file, rows)
    ctx.exit(1 if any(row.error or row.wrong_answers for row in rows) else 0)


def _environment(python: Path, paths: tuple[Path, ...]) -> dict[str, str]:
    """Ours, plus where modules of the command line are."""
    known = [str(path.absolute()) for path in paths] + [os.environ.get("PYTHONPATH", "")]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment
