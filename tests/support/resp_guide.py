"""The commands and files of the published RESP guide and of the client notes, as they are typed.

`ours(text)` changes names of programs and of connectors, which are the program's own, and nothing
else. Paths of where a program was built (``./src/``) and ``git clone`` are left out.
"""

from __future__ import annotations

import importlib.util
import re

__all__ = [
    "CLEAR",
    "CONFIG_FILE",
    "COUNT",
    "CREDENTIALS",
    "MODEL",
    "NOTES_REDIS",
    "REDIS",
    "REQUEST",
    "SERVER",
    "SERVER_EVICTION",
    "SWEEP",
    "VLLM",
    "VLLM_MP",
    "ours",
]

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

# --- Redis Server Setup ---

REDIS = """\
redis-server \\
    --protected-mode no \\
    --save '' \\
    --appendonly no \\
    --io-threads 4 \\
    --port 6379"""
# Of the client notes.
NOTES_REDIS = "redis-server --protected-mode no --save '' --appendonly no --io-threads 4"

# --- Throughput Sweep ---

SWEEP = """\
# Sweep chunk sizes
for mb in 0.5 1 2 4 8; do
    echo "=== Chunk: ${mb} MB ==="
    python benchmark_resp_client.py \\
        --host 127.0.0.1 --port 6379 \\
        --chunk-mb $mb --num-workers 8 --num-keys 500
done

# Sweep worker counts
for w in 1 2 4 8 16; do
    echo "=== Workers: $w ==="
    python benchmark_resp_client.py \\
        --host 127.0.0.1 --port 6379 \\
        --chunk-mb 4 --num-workers $w --num-keys 500
done"""

# --- Environment Variable Configuration ---

CREDENTIALS = """\
export LMCACHE_RESP_USERNAME="default"
export LMCACHE_RESP_PASSWORD="secret"
"""

# --- Non-MP Mode ---

CONFIG_FILE = """\
chunk_size: 16
remote_url: "resp://localhost:6379"
remote_serde: "naive"
"""
VLLM = """\
LMCACHE_CONFIG_FILE=resp-config.yaml \\
vllm serve meta-llama/Llama-3.1-8B-Instruct \\
    --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1", "kv_role":"kv_both"}' \\
    --no-enable-prefix-caching \\
    --load-format dummy"""

# --- MP Mode ---

SERVER = """\
lmcache server \\
    --l1-size-gb 10 \\
    --eviction-policy LRU \\
    --chunk-size 16 \\
    --l2-adapter '{"type": "resp", "host": "localhost", "port": 6379, "num_workers": 8}' \\
    --port 6555"""
VLLM_MP = """\
PORT=8000
vllm serve meta-llama/Llama-3.1-8B-Instruct \\
    --kv-transfer-config '{
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://localhost",
            "lmcache.mp.port": 6555
        }
    }' \\
    --no-enable-prefix-caching \\
    --port $PORT \\
    --load-format dummy"""

# --- L2 Eviction ---

SERVER_EVICTION = """\
lmcache server \\
    --l1-size-gb 10 \\
    --eviction-policy LRU \\
    --chunk-size 16 \\
    --l2-adapter '{
        "type": "resp",
        "host": "localhost",
        "port": 6379,
        "num_workers": 8,
        "max_capacity_gb": 10,
        "eviction": {
            "eviction_policy": "LRU",
            "trigger_watermark": 0.8,
            "eviction_ratio": 0.2
        }
    }' \\
    --port 6555"""

# --- Testing the Setup ---

REQUEST = """\
PORT=8000
PROMPT="$(printf 'Elaborate the significance of KV cache in language models. %.0s' {1..1000})"

curl -s -X POST http://localhost:${PORT}/v1/completions \\
  -H "Content-Type: application/json" \\
  -d '{"model":"meta-llama/Llama-3.1-8B-Instruct","prompt":"'"$PROMPT"'","max_tokens":10}'"""
COUNT = "redis-cli -p 6379 DBSIZE"
CLEAR = "redis-cli -p 6379 FLUSHALL"

_NAMES = (
    ("lmcache server", "kvferry server"),
    ("python benchmark_resp_client.py", "kvferry bench client"),
    ("LMCacheConnectorV1", "KvferryConnector"),
    ("LMCacheMPConnector", "KvferryMPConnector"),
)
_MODULES = {"KvferryConnector": "connector", "KvferryMPConnector": "mp"}


def ours(text: str) -> str:
    """The same command with our programs."""
    for theirs, name in _NAMES:
        text = text.replace(theirs, name)
    if importlib.util.find_spec("kvferry.integrations.vllm.plugin") is not None:
        return text  # vLLM knows the names
    return re.sub(r'"(Kvferry\w+)"', lambda found: f'"{found[1]}", {_module(found[1])}', text)


def _module(name: str) -> str:
    return f'"kv_connector_module_path": "kvferry.integrations.vllm.{_MODULES[name]}"'
