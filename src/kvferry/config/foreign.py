"""Settings of LMCache's files and environment that kvferry names otherwise, ignores or refuses.

A setting that kvferry has under another name counts (`ALIASES`), also where a vLLM connector has it
(`ENGINE`). A setting that is not here is refused where it would forbid something: a hit, a write,
memory. A switch for a feature that is not here must be off. Settings that belong to such a switch
have no effect, and neither have those that LMCache needs and kvferry does not. `kvferry config
check` names each of them.

Source: https://docs.lmcache.ai/api_reference/configurations.html
"""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["ALIASES", "ENGINE", "EXTRA", "FOREIGN", "OFF", "ZERO_COUNTS"]

# LMCache's name: our name, and the factor from its unit to ours; False: the meaning is negated.
ALIASES: dict[str, tuple[str, float | Literal[False] | None]] = {
    "cache_policy": ("eviction_policy", None),
    "controller_url": ("controller_pull_url", None),
    "enable_lazy_memory_allocator": ("prefault", False),
    "peer_init_ports": ("p2p_init_ports", None),
    "peer_lookup_ports": ("p2p_lookup_ports", None),
    "blocking_timeout_secs": ("retrieve_timeout_s", None),
    "lookup_timeout_ms": ("lookup_timeout_s", 0.001),
    "local_cpu_use_hugepages": ("hugetlb", None),
    "l2_adapters": ("stores", None),
    # Older names of ours.
    **{f"p2p_{name}": (name, None) for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")},
}


# Switches that LMCache has among the settings of a cache, and kvferry in its vLLM connectors: their
# name there, and the value for each of LMCache's values. They count where they are given.
ENGINE: dict[str, tuple[str, dict[bool, Any]]] = {
    "save_decode_cache": ("save_generated", {True: True, False: False}),
    "use_layerwise": ("layerwise", {True: "always", False: "auto"}),
}

_OFF = "is not here"
# Switches: on is refused, with this reason.
_SWITCHES: dict[str, str] = {
    "enable_pd": "(disaggregated prefill) " + _OFF,
    "enable_xpyd": "(disaggregated prefill) " + _OFF,
    "enable_blending": "would reuse KV behind other text, which gives other answers; it " + _OFF,
    "enable_hidden_state_cache": _OFF,
    "gds_path": "(GPU direct storage) is not here; use local_disk",
    "maru_path": "(CXL memory) " + _OFF,
    "nixl_backends": "(NIXL) is not here; use a store of type file or redis",
    "external_lookup_client": "is not here; a lookup asks the stores themselves",
    "storage_plugins": "is not here; use a store of type plugin",
    "external_backends": "is not here; use a store of type plugin",
    "remote_storage_plugins": "is not here; use a store of type plugin",
    "remote_config_url": "is not here; settings come from the file, the environment and the call",
    "audit_actual_remote_url": _OFF,
    "mp_host": "is no setting of an engine here; use kvferry.server.Client and `kvferry server`",
    "save_chunk_meta": (
        "is not possible: the frame in front of each value says what it is; set it to false"
    ),
    "save_unfull_chunk": (
        "is not possible: values of one length need full chunks, and the rest of a prompt is "
        "computed again; set it to false"
    ),
    "hit_miss_ratio": "(hits that are dropped for tests) is not here; leave it out",
    "min_retrieve_tokens": (
        "is not here; a hit is loaded when that is quicker than computing it, so leave it out"
    ),
    "priority_limit": (
        "is not here: requests of every priority are cached; leave it out, or serve them by an "
        "engine without a cache"
    ),
    "reserve_local_cpu_size": "is not here; take it off max_local_cpu_size, and leave it out",
    "store_location": "is not here; every chunk goes to every store",
    "retrieve_locations": "is not here; stores are asked in their order",
}
# Without effect: these belong to a switch above, or have no counterpart.
_WITHOUT_EFFECT = (
    *("lmcache_worker_port", "lmcache_worker_ports", "lmcache_worker_ids"),
    *("lmcache_worker_heartbeat_delay_time", "lmcache_worker_heartbeat_time"),
    *("pd_role", "pd_buffer_size", "pd_buffer_device", "pd_peer_host", "pd_peer_init_port"),
    *("pd_peer_alloc_port", "pd_peer_query_port", "pd_proxy_host", "pd_proxy_port"),
    *("pd_allocation_timeout_sec", "pd_shutdown_timeout_sec", "pd_condition_poll_interval_sec"),
    *("pd_max_prefill_len", "pd_backend_mode", "pd_skip_proxy_notification", "pd_bidirectional"),
    *("nixl_role", "nixl_peer_host", "nixl_peer_init_port", "nixl_peer_alloc_port"),
    *("nixl_proxy_host", "nixl_proxy_port", "nixl_buffer_size", "nixl_buffer_device"),
    *("blend_recompute_ratios", "blend_thresholds", "blend_check_layers", "blend_min_tokens"),
    *("blend_special_str", "max_hidden_state_cpu_size", "hidden_state_layers"),
    *("hidden_states_retrieve_mode", "gds_path_sharding", "gds_buffer_size", "use_gds"),
    *("gds_backend", "cufile_buffer_size", "maru_pool_size", "mp_port", "app_id"),
    *("local_disk_path_sharding", "pre_caching_hash_algorithm", "py_enable_gc"),
    "cost_aware_half_life_seconds",
    *("cost_aware_ewma_alpha", "numa_mode", "internal_api_server_enabled"),
    *("internal_api_server_host", "internal_api_server_port_start"),
    *("internal_api_server_include_index_list", "internal_api_server_socket_path_prefix"),
    *("runtime_plugin_locations", "plugin_locations", "lookup_server_worker_ids"),
    *("enable_scheduler_bypass_lookup", "script_allowed_imports", "lazy_memory_initial_ratio"),
    *("lazy_memory_expand_trigger_ratio", "lazy_memory_step_ratio", "lazy_memory_safe_size"),
    *("enable_chunk_statistics", "chunk_statistics_auto_start_statistics"),
    *("chunk_statistics_auto_exit_timeout_hours", "chunk_statistics_strategy"),
    *("chunk_statistics_auto_exit_target_unique_chunks", "enable_kv_events"),
    *("use_gpu_connector_v3", "pin_timeout_sec", "pin_check_interval_sec", "error_handling"),
    # Of `extra_config`, which files have at the top level too.
    *("use_exists_sync", "p2p_max_retry_count"),
    *("p2p_socket_recv_timeout_ms", "p2p_socket_send_timeout_ms"),
    *("worker_socket_recv_timeout_ms", "worker_socket_send_timeout_ms"),
    *("kv_msg_batch_size", "kv_msg_batch_timeout"),
)
# LMCache's name: why it must be off, or None: it has no effect.
FOREIGN: dict[str, str | None] = {**_SWITCHES, **dict.fromkeys(_WITHOUT_EFFECT)}

# Switches for which 0 is a value and does not mean off.
ZERO_COUNTS = ("hit_miss_ratio", "priority_limit")

# Settings of ours where LMCache's false means that there is none.
OFF = ("local_disk", "remote_url")

# Keys of `extra_config` about the remote store: the names of its settings.
EXTRA = {"username": "username", "password": "password", "resp_num_threads": "connections"}
