"""What `kvferry serve-demo` serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvferry.base.errors import UsageError
from kvferry_lab.cli.options import option

__all__ = ["ServeSettings"]


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The server, the size of its KV, its pace and its limits."""

    host: str = option("127.0.0.1", "The address where it listens.")
    port: int = option(8000, "Its port; 0 takes any that is free.", least=0, most=65535)
    cache: bool = option(
        True, "Compute everything.", "--no-cache", flag_value=False, show_default=False
    )
    client: Literal["ours", "in-turn"] = option(
        "ours",
        "How the store is asked: as kvferry does, or by an EXISTS for each chunk in turn and then "
        "GETs.",
    )
    model: str | None = option(
        None,
        "KV has its size: a name of `kvferry roi --list`, or a config.json.",
        metavar="NAME|FILE",
    )
    bytes_per_token: int | None = option(None, "Bytes of KV for a token, without a model.", least=1)
    prefill_tokens_per_s: float | None = option(None, "Prefill at the pace of a GPU.", above=0)
    prefill_calibration: Path | None = option(
        None,
        "Take a + c n + d n^2 seconds for n tokens instead: "
        '{"a_s": .., "c_s_per_token": .., "d_s_per_token2": ..}.',
    )
    decode_tokens_per_s: float = option(
        100.0, "Tokens a second of an answer, where there is a pace.", above=0
    )
    max_model_len: int = option(65_536, "Most tokens of a request.", least=1)
    max_num_seqs: int = option(8, "Most requests at a time.", least=1)
    step_tokens: int = option(
        2048, "Most tokens of prompts in a step.", "--max-num-batched-tokens", least=1
    )
    served_model_name: str = option("kvferry-demo", "The name of the model in requests.")
    seed: int = option(0, "Seed of the random weights.", least=0)

    def __post_init__(self) -> None:
        if self.prefill_calibration is not None and self.prefill_tokens_per_s is not None:
            raise UsageError("say --prefill-tokens-per-s or --prefill-calibration, not both")
        if self.model is not None and self.bytes_per_token is not None:
            raise UsageError("say --model or --bytes-per-token, not both")
