"""The settings of a vLLM connector, and what it refuses."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import ConfigError, UsageError
from kvferry.config.integrations import VllmConnectorSettings
from kvferry.integrations.vllm.connector.rank_identity import (
    Shard,
    check_engine,
    identity_of,
    shard_layout,
)
from kvferry.integrations.vllm.connector.settings import (
    read_mp_settings,
    read_settings,
    rounded_chunk_size,
)


def test_the_file_of_lmcache_is_understood_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "lmcache.yaml"
    file.write_text(
        'chunk_size: 16\nremote_url: "resp://localhost:6379"\nremote_serde: "naive"\n'
        "local_cpu: false\nmax_local_cpu_size: 2\nuse_layerwise: true\n"
    )
    for variable in ("LMCACHE_CONFIG_FILE", "KVFERRY_CONFIG_FILE"):
        made = read_settings({}, 16, environ={variable: str(file)})
        assert made.cache.chunk_size == 16
        assert not made.cache.local_cpu
        assert made.cache.max_local_cpu_size == 2
        assert [store.address for store in made.cache.stores] == ["localhost:6379"]


def test_the_command_line_wins_over_the_file_and_that_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("cache:\n  chunk_size: 32\n  max_local_cpu_size: 2\n")
    single = {"KVFERRY_MAX_LOCAL_CPU_SIZE": "4", "KVFERRY_RETRIEVE_TIMEOUT_S": "3"}
    environ = {"KVFERRY_CONFIG_FILE": str(file), **single}
    extra = {"kvferry.chunk_size": 64, "somebody.else": 1, "lmcache.mp.port": 2}
    cache = read_settings(extra, 16, environ=environ).cache
    assert (cache.chunk_size, cache.max_local_cpu_size, cache.retrieve_timeout_s) == (64, 2.0, 3)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"kvferry.chunk_sise": 16}, "chunk_sise"),
        ({"kvferry.chunk_size": "many"}, "chunk_size"),
        ({"kvferry.save_generated": "often"}, "save_generated"),
        ({"kvferry.save_buffer_gb": 1}, "save_buffer_gb is gone"),
        ({"kvferry.layerwise": "perhaps"}, "layerwise"),
        ({"kvferry.remote_serde": "cachegen"}, "remote_serde"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_by_name(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_settings(extra, 16, environ={})


def test_settings_of_its_own() -> None:
    made = read_settings({}, 16, environ={})
    assert (made.save_generated, made.layerwise) == (True, "auto")
    extra = {
        "kvferry.save_generated": False,
        "kvferry.layerwise": "always",
    }
    made = read_settings(extra, 16, environ={})
    assert (made.save_generated, made.layerwise) == (False, "always")


def test_a_request_waits_for_stores_as_long_as_was_said_or_as_it_pays() -> None:
    assert read_settings({}, 16, environ={}).cache.lookup_timeout_s is None
    said = read_settings({"kvferry.lookup_timeout_s": 3.0}, 16, environ={})
    assert said.cache.lookup_timeout_s == 3.0
    theirs = read_settings({}, 16, environ={"LMCACHE_LOOKUP_TIMEOUT_MS": "500"})
    assert theirs.cache.lookup_timeout_s == 0.5


@pytest.mark.parametrize(
    ("asked", "block", "made"), [(16, 128, 128), (256, 16, 256), (100, 16, 112), (1, 1, 1)]
)
def test_chunks_are_rounded_up_to_blocks_and_that_is_said_once(
    asked: int, block: int, made: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvferry")
    extra = {"kvferry.chunk_size": asked}
    assert read_settings(extra, block, environ={}).cache.chunk_size == made
    read_settings(extra, block, environ={}, quiet=True)
    said = [record for record in caplog.records if "no multiple" in record.getMessage()]
    assert len(said) == (asked != made)
    assert rounded_chunk_size(asked, block) == made


# --- What an engine may be ---


@dataclass
class FullAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 4
    head_size: int = 32
    dtype: str = "torch.bfloat16"


@dataclass
class MLAAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 1
    head_size: int = 576
    dtype: str = "torch.bfloat16"


class SlidingWindowSpec(FullAttentionSpec): ...


def engine(heads: int = 4, **changes: Any) -> Any:
    parallel = {
        "tensor_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 1,
    }
    parallel |= {name: value for name, value in changes.items() if name in parallel}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        speculative_config=changes.get("speculative_config"),
        cache_config=SimpleNamespace(calculate_kv_scales=changes.get("scales", False)),
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: heads),
    )


def caches(*specs: Any) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return SimpleNamespace(kv_cache_groups=groups)


@pytest.mark.parametrize("spec", [FullAttentionSpec(), MLAAttentionSpec()])
def test_what_keeps_every_token_can_be_cached(spec: Any) -> None:
    assert check_engine(engine(), caches(spec)) is spec
    ngram = SimpleNamespace(method="ngram")
    assert check_engine(engine(speculative_config=ngram), caches(spec)) is spec


@pytest.mark.parametrize(
    ("made", "kept", "why"),
    [
        (engine(), caches(FullAttentionSpec(), SlidingWindowSpec()), "2 groups"),
        (engine(), caches(SlidingWindowSpec()), "SlidingWindowSpec"),
        (engine(), caches(), "0 groups"),
        (engine(decode_context_parallel_size=2), caches(FullAttentionSpec()), "decode_context"),
        (engine(prefill_context_parallel_size=2), caches(FullAttentionSpec()), "prefill_context"),
        (
            engine(speculative_config=SimpleNamespace(method="eagle")),
            caches(FullAttentionSpec()),
            "'eagle'",
        ),
        (engine(scales=True), caches(FullAttentionSpec()), "calculate_kv_scales"),
    ],
)
def test_what_cannot_be_cached_is_refused_with_one_sentence(made: Any, kept: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        check_engine(made, kept)
    assert "\n" not in str(error.value)


def test_ranks_that_keep_different_heads_have_different_identities() -> None:
    spec = FullAttentionSpec(num_kv_heads=2)
    layouts = [
        shard_layout(engine(tensor_parallel_size=2), spec, 3, 32, Shard(tp_rank=rank))
        for rank in range(2)
    ]
    assert [layout.head_range for layout in layouts] == [range(2), range(2, 4)]
    assert len({identity(layout, spec).digest for layout in layouts}) == 2


def test_ranks_that_keep_the_same_share_it() -> None:
    latent = [
        shard_layout(engine(tensor_parallel_size=2), MLAAttentionSpec(), 3, 32, Shard(tp_rank=rank))
        for rank in range(2)
    ]
    assert latent[0].chunk_shape == (3, 32, 576)
    assert len({identity(layout, MLAAttentionSpec()).digest for layout in latent}) == 1
    spec = FullAttentionSpec(num_kv_heads=1)
    doubled = [
        shard_layout(engine(2, tensor_parallel_size=4), spec, 3, 32, Shard(tp_rank=rank))
        for rank in range(4)
    ]
    digests = [identity(layout, spec).digest for layout in doubled]
    assert digests[0] == digests[1] != digests[2] == digests[3]


def test_ranks_of_a_pipeline_keep_different_layers() -> None:
    spec = FullAttentionSpec()
    layouts = [
        shard_layout(engine(), spec, count, 32, Shard(pp_rank=rank, pp_layers=(2, 3)))
        for rank, count in enumerate((2, 3))
    ]
    assert [layout.layer_range for layout in layouts] == [range(2), range(2, 5)]


@pytest.mark.parametrize(
    ("spec", "layers", "shard", "why"),
    [
        (FullAttentionSpec(num_kv_heads=3), 2, Shard(), "3 KV heads"),
        (FullAttentionSpec(), 2, Shard(pp_rank=1, pp_layers=(2, 3)), "2 layers"),
    ],
)
def test_parts_that_make_no_whole_are_refused(
    spec: Any, layers: int, shard: Shard, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        shard_layout(engine(), spec, layers, 32, shard)


def identity(layout: Any, spec: Any, name: str = "LBHNC", block_size: int = 16) -> Any:
    block_bytes = layout.token_bytes * block_size
    return identity_of({"model": "m"}, layout, block_size, name, block_bytes)


def test_whatever_orders_the_bytes_is_part_of_the_identity() -> None:
    spec = FullAttentionSpec()
    layout = shard_layout(engine(), spec, 3, 32, Shard())
    float16 = shard_layout(engine(), FullAttentionSpec(dtype="torch.float16"), 3, 32, Shard())
    made = {
        identity(layout, spec).digest,
        identity(layout, spec, "LBNHC").digest,
        identity(layout, spec, block_size=32).digest,
        identity(float16, spec).digest,
    }
    assert len(made) == 4


def test_a_block_with_more_in_it_than_the_layout_says_is_refused() -> None:
    layout = shard_layout(engine(), FullAttentionSpec(), 3, 32, Shard())
    with pytest.raises(UsageError, match="does not know this layout"):
        identity_of({"model": "m"}, layout, 16, "LBHNC", layout.token_bytes * 16 + 64)


@pytest.mark.parametrize("mp", [False, True])
@pytest.mark.parametrize("word", ["false", "true"])
def test_what_lmcache_is_told_of_generated_tokens_and_layers_counts(
    word: str, mp: bool, tmp_path: Path
) -> None:
    def read(extra: dict[str, Any], **environ: str) -> VllmConnectorSettings:
        if mp:
            return read_mp_settings(extra, 16, environ=environ).connector
        return read_settings(extra, 16, environ=environ)

    wanted = (word == "true", "always" if word == "true" else "auto")
    file = tmp_path / "lmcache.yaml"
    file.write_text(f"save_decode_cache: {word}\nuse_layerwise: {word}\n")
    single = {"LMCACHE_SAVE_DECODE_CACHE": word, "LMCACHE_USE_LAYERWISE": word.upper()}
    called = {"lmcache.save_decode_cache": word == "true", "lmcache.use_layerwise": word == "true"}
    opposite = dict.fromkeys(called, word == "false")
    for found in (
        read({}, LMCACHE_CONFIG_FILE=str(file)),
        read({}, KVFERRY_CONFIG_FILE=str(file)),
        read({}, **single),
        read(called),
        read({"lmcache.mp.port": 5, **called}, LMCACHE_CONFIG_FILE=str(file)),
    ):
        assert (found.save_generated, found.layerwise) == wanted
    ours = {"kvferry.save_generated": wanted[0], "kvferry.layerwise": wanted[1]}
    found = read({**opposite, **ours}, LMCACHE_CONFIG_FILE=str(file))
    assert (found.save_generated, found.layerwise) == wanted
    found = read(opposite, LMCACHE_CONFIG_FILE=str(file))
    assert found.save_generated != wanted[0]


def test_a_setting_of_lmcache_on_the_command_line_is_read_like_ours() -> None:
    found = read_settings({"lmcache.max_local_cpu_size": 2, "lmcache.mp.port": 2}, 16, environ={})
    assert found.cache.max_local_cpu_size == 2
    both = {"lmcache.chunk_size": 16, "kvferry.chunk_size": 64}
    assert read_settings(both, 16, environ={}).cache.chunk_size == 64
    with pytest.raises(ConfigError, match="priority_limit"):
        read_settings({"lmcache.priority_limit": 0}, 16, environ={})
