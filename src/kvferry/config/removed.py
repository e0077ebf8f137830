"""Settings that are gone, by the part that had them: what each error says to do instead."""

from __future__ import annotations

__all__ = ["REMOVED"]

_ADAPTS = "is gone: the client adapts; leave it out"
_FIXED = "is gone: it has a fixed value; leave it out"
_PICKED = "is gone: client and server choose; leave it out, or set the policy of OpenSSL"
_TLS = {
    "tls_key_password": (
        "is gone: use a key file without a password, of mode 0600 (openssl pkey -in OLD -out NEW)"
    ),
    "tls_ca_dir": "is gone: put the authorities into one PEM file, and name it in tls_ca_file",
    "tls_min_version": _PICKED,
    "tls_ciphers": _PICKED,
    "ktls": "is gone: kernel TLS is used where it is there; leave it out",
}
_LEARNED = "is gone: what computing takes is learned; leave it out"

REMOVED: dict[str, dict[str, str]] = {
    "client": {
        "client_name": "is gone: CLIENT LIST shows kvferry; leave it out",
        **_TLS,
        "topology_refresh_s": "is gone: the map is asked for anew when it changes; leave it out",
        "nodes_max": _FIXED,
        "floor_rate_bytes_s": "is gone: raise timeout_s for a slow link",
        "stall_timeout_s": "is gone: a connection may be silent for 2 s; leave it out",
        "reconnect_min_s": _FIXED,
        "reconnect_max_s": _FIXED,
        "window_bytes": _ADAPTS,
        "protocol": "is gone: the client speaks what the server does; leave it out",
        "value_size_bytes_max": "is gone: it is the server's proto-max-bulk-len; leave it out",
        "drain_bytes_max": _FIXED,
        "attempts_max": _FIXED,
        "presence_keys_max": _FIXED,
    },
    "node": {
        "read_only": "is gone: name a users_file, with a user that has read and no write",
        "threads": "is gone: a node has a thread for each of its cores, at most 4; use taskset",
        "prefault": "is gone: memory is touched at the start; leave it out",
        **_TLS,
        "connections_max": "is gone: a node has at most 10000 connections; leave it out",
        "in_flight_gb": "is gone: half of the size may be on its way; leave it out",
        "value_bytes_max": "is gone: a value has at most 512 MiB; leave it out",
        "stall_timeout_s": "is gone: a connection that moves nothing for 10 s ends; leave it out",
    },
    "server": {
        "lease_s": "is gone: a lease lasts 60 s; leave it out",
        "heartbeat_s": _FIXED,
        "dead_after_s": "is gone: a client is taken for dead after 5 s; leave it out",
        "client_share": "is gone: a client may hold half of the pool; leave it out",
        "drain_s": "is gone: a shutdown waits up to 10 s for stores; leave it out",
        "numa": "is gone: start the server with numactl --membind=NODE",
        "hugepages": "is called hugetlb, on the command line --l1-use-hugepages",
    },
    "controller": {
        "heartbeat_s": _FIXED,
        "suspect_s": "is gone: an instance is suspect after 3 s; leave it out",
        "dead_s": "is gone: an instance is dead after 10 s; leave it out",
        "instances_max": _FIXED,
        "connections_max": _FIXED,
    },
    "cache": {
        **dict.fromkeys(
            ("prefill_calibration_file", "prefill_a_s", "prefill_c_s_per_token"), _LEARNED
        ),
        "prefill_d_s_per_token2": _LEARNED,
        "load_threads": "is gone: four threads run loads; leave it out",
        "write_queue_bytes_max": "is gone: 1 GiB may wait to be written; leave it out",
    },
    "store": {
        "shared_name": "is gone: use a store of type file, which processes may share",
        "fsync": "is gone: the system writes when it likes; what a power cut damages is a miss",
        "direct": "is gone: the way past the page cache is taken where it is there",
        "io_uring": "is gone: it is used where the kernel allows it",
    },
    "vllm": {
        "save_buffer_gb": "is gone: what two steps of the engine compute is kept; leave it out",
    },
    "tier": {
        "locality": "is gone: leave it out",
        "load_timeout_ms": "is gone: a load has a second, and its bytes at 50 MB/s; leave it out",
        "load_stall_ms": "is gone: it follows from what loads and computing take; leave it out",
        "store_timeout_ms": "is gone: a store has 5 s, and its bytes at 50 MB/s; leave it out",
        "store_mb_max": "is gone: half of the pinned memory may be on its way; leave it out",
        "drain_timeout_ms": "is gone: a shutdown waits up to 10 s for stores; leave it out",
    },
    "sglang": {
        "lookup_timeout_s": "is gone: a question may take 0.25 s; leave it out",
        "load_timeout_s": "is gone: a load has 2 s, and its bytes at 50 MB/s; leave it out",
        "store_timeout_s": "is gone: a store has 5 s, and its bytes at 50 MB/s; leave it out",
    },
    "lmcache": {
        "deadline_s": "is gone: set timeout_s, which a batch has beside its bytes at 50 MB/s",
    },
}
