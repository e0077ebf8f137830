"""Parts (c) to (f): real vLLM behind each door to KV.

(c) one prompt after the other: computed, out of vLLM's own cache, out of the host's memory, and by
    new engines out of four servers on this host
(d) documents that many requests begin with, more of them than the device's KV has room for
(e) the time between tokens of other requests, while a prompt is computed and saved, or loaded
(f) latent attention and sleep: the same tokens
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from gpu_lane.doors import Door, Engines, Lane, write_model
from gpu_lane.sheet import Sheet, spread
from gpu_lane.stores import Stores
from kvferry.embedded.program import ServerBinary
from kvferry_lab.bench.clients import config_url
from kvferry_lab.bench.intervals import percentile
from kvferry_lab.engines.engine_process import EngineProcess

__all__ = ["DOORS", "Sizes", "documents", "hits", "same_tokens"]

_WORDS = range(300, 31_000)  # token ids
_SAVE_S = 0.3  # to save 8,192 tokens, and more in proportion
_OTHERS, _OTHERS_TOKENS, _LATE = 8, 100, 20
_Any = TypeVar("_Any")


@dataclass(frozen=True)
class Sizes:
    """How much is asked.

    Attributes:
        lengths: Tokens of a prompt in (c), and in how many rounds.
        memory_gb, small_gb: Host memory of an engine in (c): for all of a round, and for less than
            a round, so that its prompts come out of the store every time; 0: not out of stores.
        kv_gb: Of the device, in (c).
        document, documents, answer: Of (d), tokens each.
        documents_kv_gb: Of the device, in (d).
        documents_gb: Host memory that holds all documents.
        busy: Tokens of the prompt in (e) that is computed or loaded.
    """

    lengths: dict[int, int]
    memory_gb: float
    small_gb: float
    kv_gb: float
    document: int
    documents: int
    answer: int
    documents_kv_gb: float
    documents_gb: float
    busy: int


DOORS = ("vllm", "connector", "mp", "tier", "none")


def hits(
    sheet: Sheet, lane: Lane, binary: ServerBinary, sizes: Sizes, kinds: Sequence[str] = DOORS
) -> None:
    """(c), at these doors."""
    longest = max(sizes.lengths) + 64
    rounds = max(sizes.lengths.values())
    with Stores(binary) as stores:
        url = config_url(stores.config)
        first, *_ = groups = _groups(list(kinds), lane.room(sizes.kv_gb))
        for group in groups:
            doors = [Door(kind, sizes.memory_gb, "" if kind == "vllm" else url) for kind in group]
            with Engines(lane, doors, sheet, kv_gb=sizes.kv_gb, longest=longest) as engines:
                _warm(engines, sizes)
                found: _Found = defaultdict(lambda: defaultdict(list))
                for turn in range(rounds):
                    if turn + 1 < rounds or group is not first:
                        stores.clear()  # the last round of the first group stays in the store
                    for length, times in sizes.lengths.items():
                        if turn >= rounds - times and not sheet.is_over(length / 3000):
                            _round(engines, turn, length, found)
                    _tell(sheet, found)  # the newest row of a door has all rounds
                    if sheet.is_over(5.0):
                        break
            if sheet.is_over(30.0):
                return
            if group is first and sizes.small_gb:
                ours = [kind for kind in group if kind not in ("vllm", "none")]
                _from_stores(sheet, lane, sizes, ours, url, rounds - 1)
            if sheet.is_over(60.0):
                return


_Found = defaultdict[tuple[str, int], defaultdict[str, list[float]]]


def _round(engines: Engines, turn: int, length: int, found: _Found) -> None:
    """One prompt of a length at each door, one after the other."""
    for name, engine in list(engines.each(turn)):
        asked = _prompt(name, turn, length)
        row = found[name, length]
        try:
            row["cold"].append(_ttft(engine, asked)[0])
            row["own"].append(_ttft(engine, asked)[0])
            if name == "none":
                continue
            _let_save(engine, length)
            for _ in range(2):
                engine.forget()
                ttft_s, cached = _ttft(engine, asked)
                row["memory"].append(ttft_s)
                row["memory_tokens"].append(cached)
        except Exception as error:
            engines.give_up(name, error)


def _from_stores(
    sheet: Sheet, lane: Lane, sizes: Sizes, kinds: Sequence[str], url: str, turn: int
) -> None:
    """New engines with less memory than a round has bytes, and the prompts of that round."""
    doors = [Door(kind, sizes.small_gb, url) for kind in kinds]
    longest = max(sizes.lengths) + 64
    found: _Found = defaultdict(lambda: defaultdict(list))
    with Engines(lane, doors, sheet, kv_gb=sizes.kv_gb, longest=longest) as engines:
        _warm(engines, sizes)
        for lap in range(3):
            for length in sizes.lengths:
                for name, engine in list(engines.each(lap)):
                    if sheet.is_over(4.0):
                        break
                    try:
                        engine.forget()
                        ttft_s, cached = _ttft(engine, _prompt(name, turn, length))
                    except Exception as error:
                        engines.give_up(name, error)
                        continue
                    found[name, length]["store"].append(ttft_s)
                    found[name, length]["store_tokens"].append(cached)
        _tell(sheet, found)


def _tell(sheet: Sheet, found: _Found) -> None:
    """A row for each door and length: milliseconds, and the tokens that were not computed."""
    for (name, length), row in sorted(found.items(), key=lambda item: item[0][1]):
        figures: dict[str, float | int | str | None] = {}
        for what in ("cold", "own", "memory", "store"):
            figures |= spread(f"{what}_ms", row[what], 1e3)
            if row[f"{what}_tokens"]:
                figures[f"{what}_tokens_least"] = min(row[f"{what}_tokens"])
        theirs = found["vllm", length]["memory"] if ("vllm", length) in found else []
        if row["memory"] and theirs:
            figures["memory_of_vllm"] = (
                sorted(row["memory"])[len(row["memory"]) // 2] / (sorted(theirs)[len(theirs) // 2])
            )
        sheet.row(f"{name}, {length} tokens", **figures)


def documents(sheet: Sheet, lane: Lane, binary: ServerBinary, sizes: Sizes) -> None:
    """(d), and (e) on the same engines."""
    longest = sizes.document + sizes.answer + 64
    with Stores(binary) as stores:
        url = config_url(stores.config)
        doors = [
            Door("none"),
            Door("connector", sizes.documents_gb),
            Door("mp", sizes.documents_gb),
            Door("connector", sizes.small_gb, url, name="connector, stores"),
        ]
        for group in _groups(doors, min(3, lane.room(sizes.documents_kv_gb))):
            if sheet.is_over(40.0):
                return
            with Engines(  # all at once would keep more than the machine has memory
                lane, group, sheet, kv_gb=sizes.documents_kv_gb, longest=longest
            ) as engines:
                _warm(engines, sizes)
                for work in (_three_rounds, _between):
                    for name, engine in list(engines.open.items()):
                        try:
                            work(sheet, name, engine, sizes)
                        except Exception as error:
                            engines.give_up(name, error)


def _three_rounds(sheet: Sheet, name: str, engine: EngineProcess, sizes: Sizes) -> None:
    """Each document with another question behind it, all at once, three times.

    Without a cache once: its rounds are alike.
    """
    texts = [_prompt("document", number, sizes.document) for number in range(sizes.documents)]
    for turn in range(1 if name == "none" else 3):
        if sheet.is_over(10.0):
            return
        asked = [text[:-16] + _prompt("question", turn, 16) for text in texts]
        said = engine.generate(asked, sizes.answer)
        ttfts = [output.ttft_s for output in said.outputs if output.ttft_s is not None]
        rate = sum(said.cached) / sum(len(prompt) for prompt in asked)
        sheet.row(
            f"documents, round {turn + 1}, {name}",
            round_s=said.seconds,
            hit_rate=rate,
            **spread("ttft_s", ttfts),
        )


def _between(sheet: Sheet, name: str, engine: EngineProcess, sizes: Sizes) -> None:
    """(e): alone; while a prompt is computed, and saved; while it comes from a cache."""
    others = [_prompt("other", number, 32) for number in range(_OTHERS)]
    late = _prompt(f"late {name}", 0, sizes.busy)
    for what, comes in (("alone", []), ("a new prompt", late), ("a hit", late)):
        if sheet.is_over(15.0):
            return
        values: dict[str, object] = {"prompts": others, "tokens": _OTHERS_TOKENS, "late": comes}
        found = engine.call("gpu_lane.inside:gaps", after=_LATE, **values)
        _let_save(engine, sizes.busy)
        engine.forget()
        sheet.row(
            f"between tokens of {_OTHERS}, {what}, {name}",
            p50_ms=percentile(found, 50) * 1e3,
            p99_ms=percentile(found, 99) * 1e3,
            most_ms=max(found) * 1e3,
        )


def same_tokens(sheet: Sheet, lane: Lane, sizes: Sizes) -> None:
    """(f): what is said of a cache is what was said without one."""
    tokens = 2048 if lane.device == "cuda" else 256
    for what, shape, settings in (
        ("latent attention", "mla", {}),
        ("sleep", "tiny", {"enable_sleep_mode": True}),
    ):
        if sheet.is_over(30.0):
            return
        model = write_model(lane.model.parent / shape, shape, tokens + 128)
        doors = [Door(kind, sizes.small_gb, settings=settings) for kind in ("connector", "mp")]
        there = replace(lane, model=model)
        with Engines(there, doors, sheet, kv_gb=1.0, longest=tokens + 64) as engines:
            for name, engine in list(engines.open.items()):
                asked = _prompt(name, 0, tokens)
                try:
                    cold = engine.generate([asked], 12)
                    _let_save(engine, tokens)
                    if what == "sleep" and lane.device == "cuda":
                        engine.call("gpu_lane.inside:sleep")
                    engine.forget()
                    again = engine.generate([asked], 12)
                    sheet.row(
                        f"{what}, {name}",
                        same=int(cold.tokens == again.tokens),
                        cached=again.cached[0],
                        of=tokens,
                    )
                except Exception as error:
                    engines.give_up(name, error)


def _groups(all_of_them: list[_Any], each: int) -> list[list[_Any]]:
    return [all_of_them[at : at + each] for at in range(0, len(all_of_them), each)]


def _warm(engines: Engines, sizes: Sizes) -> None:
    """First steps compile kernels: of a short and of a long prompt."""
    for name, engine in list(engines.open.items()):
        try:
            for length in (64, min(sizes.lengths)):
                engine.generate([_prompt(f"warm {name}", length, length)], 2)
        except Exception as error:
            engines.give_up(name, error)


def _ttft(engine: EngineProcess, asked: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and the prompt tokens that were not computed."""
    said = engine.generate([asked], 1)
    return said.seconds, said.cached[0]  # of one token; not every door has statistics


def _let_save(engine: EngineProcess, length: int) -> None:
    """Engines work only while they have requests."""
    until = time.monotonic() + _SAVE_S * max(1.0, length / 8192)
    while time.monotonic() < until:
        engine.generate([[5, 6, 7]], 1)
        time.sleep(0.05)


def _prompt(name: str, number: int, length: int) -> list[int]:
    """Words of a name: other names, other words. One more than whole blocks have."""
    return Random(f"{name} {number} {length}").choices(_WORDS, k=length + 1)
