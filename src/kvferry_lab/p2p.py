"""`kvferry lab p2p`: two instances that read each other's memory, and what the second saves by it.

A controller and two servers are started (`kvferry serve-demo`: the pace of a GPU, KV of a true
size, a real cache), with the settings of LMCache's P2P guide. The first one is asked for a number
of long documents, twice; then the second one for the same documents. What the second one does not
have to compute came from the memory of the first.

Source of the published figures: LMCache's guide to P2P KV cache sharing, Llama-3.1-8B, 50 documents
of 10,000 tokens, 4 at a time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from kvferry.config.setting import GB
from kvferry_lab.cli.options import option, options_of
from kvferry_lab.long_doc.run import LongDocPlan, LongDocRun, mean_ttft, run_long_doc
from kvferry_lab.openai_client import OpenAIClient

__all__ = ["p2p"]

_START_S = 120.0
_DOCUMENTS, _LENGTH = 50, 10_000
# Mean TTFT and time of the warm-up and the query round of each instance, in seconds.
PUBLISHED = {
    ("first", "warm-up"): (2.286, 37.957),
    ("first", "query"): (2.028, 38.323),
    ("second", "warm-up"): (1.036, 13.814),
    ("second", "query"): (0.490, 7.964),
}


@dataclass(frozen=True, kw_only=True)
class P2PPlan:
    """What to run."""

    scale: float = option(0.2, "Part of the 50 documents; their length stays.", above=0, most=1)
    output_len: int = option(20, "Tokens of an answer.", least=1)
    max_inflight_requests: int = option(4, "Requests at a time.", least=1)
    prefill_tokens_per_s: float = option(20_000.0, "The pace of the GPU.", above=0)
    bytes_per_token: int = option(8192, "Size of KV; 131072 is Llama-3.1-8B's.", least=1)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return max(1, round(self.scale * _DOCUMENTS))

    @property
    def workload(self) -> LongDocPlan:
        """The requests to each instance."""
        return LongDocPlan(
            num_documents=self.documents,
            document_length=_LENGTH,
            output_len=self.output_len,
            repeat_count=1,
            repeat_mode="tile",
            max_inflight_requests=self.max_inflight_requests,
            completions=True,
        )

    @property
    def memory_gb(self) -> float:
        """Of each instance: all documents, and something to spare."""
        return (self.documents + 2) * 1.05 * _LENGTH * self.bytes_per_token / GB


@dataclass(frozen=True)
class Measured:
    """One round of one instance, in seconds, and beside the first one's warm-up."""

    instance: str
    round: str
    prompts: int
    successful: int
    ttft_s: float
    time_s: float
    ttft_ratio: float
    time_ratio: float


def run_p2p(plan: P2PPlan, say: Callable[[str], None]) -> list[Measured]:
    """Start everything, ask, and end it.

    Raises:
        UnavailableError: A server did not start; the text has the end of its log.
    """
    from kvferry.config.controller import ControllerConfig
    from kvferry.sharing.controller.controller import Controller
    from kvferry_lab.servers.lab_server import served, wait_until

    with tempfile.TemporaryDirectory(prefix="kvferry-p2p-") as folder, ExitStack() as stack:
        any_port = {"pull": 0, "reply": 0, "heartbeat": 0}
        controller = Controller(ControllerConfig(port=0, monitor_ports=any_port))
        controller.start()
        stack.callback(controller.stop)
        urls = []
        for number in (1, 2):
            say(f"starting instance {number}")
            file = Path(folder, f"example{number}.yaml")
            file.write_text(_settings(plan, number, controller.ports))
            words = ["--config", str(file), "--bytes-per-token", str(plan.bytes_per_token)]
            pace = ["--prefill-tokens-per-s", str(plan.prefill_tokens_per_s)]
            urls.append(stack.enter_context(served(*words, *pace)))
        wait_until(
            "the instances to register",
            lambda: len(controller.members.living()) == len(urls),
            _START_S,
        )
        runs = []
        for name, url in zip(("first", "second"), urls, strict=True):
            client = OpenAIClient(f"{url}/v1", limit_s=600)
            model = client.model()
            say(f"asking the {name} one")
            runs.append(run_long_doc(plan.workload, client, model, say))
    return measured_rounds(*runs)


def measured_rounds(first: LongDocRun, second: LongDocRun) -> list[Measured]:
    """Both rounds of both, in order."""
    base_ttft, base_s = mean_ttft(first.warmup), first.round_s[0]
    rows = []
    for instance, run in (("first", first), ("second", second)):
        for part, records, took_s in run.parts:
            name = {"warmup": "warm-up"}.get(part, part)
            ttft_s = mean_ttft(records)
            good = sum(record.successful for record in records)
            ratios = ttft_s / base_ttft, took_s / base_s
            rows.append(Measured(instance, name, len(records), good, ttft_s, took_s, *ratios))
    return rows


def _settings(plan: P2PPlan, number: int, ports: dict[str, int]) -> str:
    settings = {
        "chunk_size": 256,
        "local_cpu": True,
        "max_local_cpu_size": plan.memory_gb,
        "enable_async_loading": True,
        "enable_p2p": True,
        "p2p_host": "localhost",
        "p2p_init_ports": 0,
        "p2p_lookup_ports": 0,
        "transfer_channel": "nixl",
        "enable_controller": True,
        "lmcache_instance_id": f"lmcache_instance_{number}",
        "controller_pull_url": f"localhost:{ports['pull']}",
        "controller_reply_url": f"localhost:{ports['reply']}",
        "lookup_backoff_time": 0.001,
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())


@click.command(
    epilog="Exit codes: 0 done, 1 a request failed, 2 usage.  "
    "Example: kvferry lab p2p --scale 0.2 --prefill-tokens-per-s 20000"
)
@options_of(P2PPlan)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def p2p(ctx: click.Context, /, plan: P2PPlan, as_json: bool) -> None:
    """Ask two instances for the same long documents, one after the other.

    A controller and both are started. What the second one need not compute comes from the memory of
    the first.
    """
    from kvferry.cli.table import console, table

    rows = run_p2p(plan, lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "rounds": [asdict(row) for row in rows]}))
    else:
        base = PUBLISHED["first", "warm-up"]
        columns = ("Instance", "Round", "Prompts", "Mean TTFT", "Time", "of first", "published")
        cells = []
        for row in rows:
            theirs = PUBLISHED[row.instance, row.round]
            published = (part / whole for part, whole in zip(theirs, base, strict=True))
            cells.append(
                [
                    *(row.instance, row.round, f"{row.successful} of {row.prompts}"),
                    *(f"{row.ttft_s:.3f} s", f"{row.time_s:.3f} s"),
                    f"{row.ttft_ratio:.2f}, {row.time_ratio:.2f}",
                    ", ".join(f"{part:.2f}" for part in published),
                ]
            )
        console().print(table(columns, cells))
        click.echo("The last two columns: mean TTFT and time as parts of the first warm-up.")
    ctx.exit(1 if any(row.successful < row.prompts for row in rows) else 0)
