"""Formats of traces: what requests share is kept, what is malformed is named with its line."""

from __future__ import annotations

import gzip
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry.chunks import keys
from kvferry_lab.trace.format import HASH_BYTES, Trace, TraceOptions, load_trace

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join((i if isinstance(i, str) else json.dumps(i)) + "\n" for i in items))
    return path


def cut(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]


def session(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "requests": list(requests), **fields}


def test_mooncake_ids_are_the_blocks(tmp_path: Path) -> None:
    ids = [[0, 1, 2], [0, 1, 2**40], [], [7]]
    file = write(tmp_path / "t.jsonl", *({"timestamp": 0, "hash_ids": one} for one in ids))
    trace = load_trace(file)
    assert (trace.form, trace.chunk_tokens, trace.name) == ("mooncake", 512, "t.jsonl")
    first, second, third = map(cut, trace.requests)
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert len(third) == 1
    assert (trace.chunks, trace.distinct) == (7, 5)
    assert (trace.prefix_hits_max, trace.block_hits_max) == (2, 2)
    # The function that names chunks of tokens is the one that names these.
    assert first == keys.chunk_hashes([0, 1, 2], 1)


def test_chunks_may_be_several_blocks(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", {"hash_ids": [0, 1, 2, 3, 4]}, {"hash_ids": [0, 1, 2, 9]})
    trace = load_trace(file, TraceOptions(chunk_tokens=1024))
    first, second = map(cut, trace.requests)
    assert (len(first), len(second)) == (2, 2)  # the fifth block is no full chunk
    assert first[0] == second[0]
    assert first[1] != second[1]
    with pytest.raises(UsageError, match="no multiple"):
        load_trace(file, TraceOptions(chunk_tokens=700))
    assert load_trace(file, TraceOptions(block_tokens=16)).chunk_tokens == 16


def test_blocks_of_bailian_have_16_tokens(tmp_path: Path) -> None:
    item = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "hash_ids": [1, 2]}
    assert load_trace(write(tmp_path / "t.jsonl", item)).chunk_tokens == 16


def test_mooncake_extract_is_prefix_chained_as_its_publisher_says() -> None:
    trace = load_trace(DATA / "mooncake_conversation.jsonl.gz")
    with gzip.open(DATA / "mooncake_conversation.jsonl.gz") as file:
        ids = {one for line in file for one in json.loads(line)["hash_ids"]}
    assert len(trace.requests) == 2000
    assert trace.distinct == len(ids)
    assert trace.prefix_hits_max == trace.block_hits_max


def test_agentic_ids_hold_inside_one_session(tmp_path: Path) -> None:
    one = session({"t": 0, "model": "m", "hash_runs": [[1, 6]]})
    options = TraceOptions(chunk_tokens=64, warm=0.0)
    trace = load_trace(write(tmp_path / "t.jsonl", one, one), options)
    assert trace.distinct == 12


def test_what_sessions_share_is_warm(tmp_path: Path) -> None:
    def of(model: str) -> dict[str, Any]:
        request = {"t": 0, "model": model, "hash_runs": [[1, 6]]}
        return session(request, tool_tokens=300, system_tokens=90)

    file = write(tmp_path / "t.jsonl", of("a"), of("a"), of("b"))
    trace = load_trace(file, TraceOptions(chunk_tokens=64, warm=0.5))
    first, second, third = map(cut, trace.requests)
    assert first[:3] == second[:3]  # 195 tokens are three blocks
    assert first[3] != second[3]
    assert not set(first) & set(third)
    assert load_trace(file, TraceOptions(chunk_tokens=64, warm=1)).prefix_hits_max == 6


def test_users_take_sessions_and_sub_agents_run_beside(tmp_path: Path) -> None:
    def request(time: float, first: int) -> dict[str, Any]:
        return {"t": time, "model": "m", "hash_runs": [[first, 1]]}

    agent = {"t": 5, "type": "subagent", "requests": [request(0, 10), request(7, 11)]}
    long = session(request(0, 1), agent, request(10, 2))
    short = session(request(0, 1), request(1, 2))
    file = write(tmp_path / "t.jsonl", long, short, short)

    def order(users: int) -> list[int]:
        """The requests by their places in the file, sub-agents where they stand."""
        alone = load_trace(file, TraceOptions(chunk_tokens=64, users=1, warm=0))
        numbers = {hashes: index for index, hashes in enumerate(alone.requests)}
        woven = load_trace(file, TraceOptions(chunk_tokens=64, users=users, warm=0))
        return [numbers[hashes] for hashes in woven.requests]

    assert order(1) == list(range(8))
    # The long one at 0, 5, 10 and 12; the second at 0 and 1; then its user's next at 1 and 2.
    assert order(2) == [0, 4, 5, 6, 7, 1, 2, 3]


def test_text_is_cut_alike_everywhere(tmp_path: Path) -> None:
    text = "the quick brown fox, and so on. " * 40
    items = [
        {"timestamp": 2, "input": text + "later", "session_id": "a"},
        {"timestamp": 1, "input": text, "session_id": "b"},
    ]
    trace = load_trace(write(tmp_path / "t.jsonl", *items), TraceOptions(chunk_tokens=16))
    first, second = map(cut, trace.requests)
    assert first == second[: len(first)]
    assert first[0].hex() == "718298e45085c9415120d7fad97dce31"


def test_gzip_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(b'{"hash_ids": [1]}\n' * 600))
    heard: list[int] = []
    assert len(load_trace(path, progress=heard.append).requests) == 600
    assert heard == [256, 512]
    assert len(load_trace(path, TraceOptions(limit=3)).requests) == 3


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        ([], "is empty"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "x,1,2"], "holds lengths only"),
        (["num_prefill_tokens,num_decode_tokens", "1,2"], "holds lengths only"),
        (["# a page"], "no trace that we know: its first line is no JSON object"),
        (["[1]"], "no trace that we know"),
        ([{"prompt": "x"}], "its objects hold 'prompt'"),
        ([{"hash_ids": [1]}, "{"], "t:2 is no JSON"),
        ([{"hash_ids": [1]}, "[]"], "t:2 is no JSON object"),
        ([{"hash_ids": [1]}, {"hash_ids": [1.5]}], "t:2: hash_ids is no list of whole numbers"),
        ([{"hash_ids": 3}], "t:1: hash_ids"),
        ([session({"t": 0, "hash_runs": [[1, -1]]})], "t:1 is no session"),
        ([session({"t": 0, "hash_runs": [[1, 10**9]]})], "t:1 is no session"),
        ([session({"t": 0, "hash_runs": [[2**40, 1]]})], "t:1 is no session"),
        ([session({"t": 0, "hash_runs": "x"})], "t:1 is no session"),
        ([{"input": "a", "session_id": "s"}, {"input": 3}], "t:2 has no text"),
    ],
    ids=str,
)
def test_what_is_no_trace_is_said_with_the_line(
    tmp_path: Path, lines: list[Any], advice: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_trace(write(tmp_path / "t", *lines))
    assert advice in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_trace(tmp_path / "missing")
    broken = tmp_path / "broken"
    broken.write_bytes(gzip.compress(b'{"hash_ids": [1]}\n' * 100)[:-9])
    with pytest.raises(UsageError, match="cannot be read"):
        load_trace(broken)


def test_shares_are_counted_as_an_engine_could_use_them() -> None:
    a, b, c = (bytes([n]) * HASH_BYTES for n in range(3))
    trace = Trace.of("t", "f", 1, [a + b, a + c + b, b])
    assert (trace.chunks, trace.distinct) == (6, 3)
    assert (trace.prefix_hits_max, trace.block_hits_max) == (2, 3)
    assert array("I").itemsize == 4  # what hash_chunks is given
