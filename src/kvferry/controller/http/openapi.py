"""The description of the controller's HTTP."""

from __future__ import annotations

from kvferry.http.openapi import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Api,
    Operation,
    Schema,
    listed,
    object_of,
    said,
)

__all__ = ["API", "HEALTH"]

_TOKENS = said(listed(WHOLE), "Of the prompt, 0 to 2^32 - 1.")
_HASHES = said(listed(TEXT), "Of its chunks instead, 32 hexadecimal digits each.")
_IDENTITY = said(TEXT, "Digest in hex, a beginning of it, or the model; default: all of them.")
_OF = {
    "tokens": _TOKENS,
    "hashes": _HASHES,
    "text": said(TEXT, "Instead, where the controller has a tokenizer."),
    "identity": _IDENTITY,
    "salt": said(TEXT, "Of the tenant, in hex."),
}
_PROMPT = object_of(**_OF, limit=WHOLE)
_COUNTS: Schema = {"type": "object", "additionalProperties": WHOLE}
_INSTANCE = object_of(
    instance=TEXT,
    model=TEXT,
    state=said(TEXT, '"alive" or "suspect"; the suspect come last.'),
    chunks=said(WHOLE, "Leading chunks that all of its ranks hold."),
    tokens=WHOLE,
    chunk_size=WHOLE,
    ranks=said(_COUNTS, "Leading chunks of each."),
    addresses=said(object_of(), "HOST:PORT of each rank's node."),
)
_INSTANCES = said(listed(_INSTANCE), "The longest prefix first.")
_LOOKUP = object_of(chunks=said(WHOLE, "Of the prompt."), instances=_INSTANCES)
_CHUNK = object_of(chunk=WHOLE, hash=TEXT, holders=listed(TEXT), prefix_of=listed(TEXT), why=TEXT)
_EXPLAIN = object_of(chunks=listed(_CHUNK), truncated=FLAG, instances=_INSTANCES)
_NODE = object_of(
    instance=TEXT,
    rank=WHOLE,
    state=said(TEXT, '"alive", "suspect" or "dead".'),
    address=TEXT,
    incarnation=TEXT,
    chunks=WHOLE,
    used_bytes=WHOLE,
    capacity_bytes=WHOLE,
    heartbeat_age_s=NUMBER,
    synced=said(FLAG, "All that it holds is known here."),
)
_WORK = object_of(
    window_s=said(NUMBER, "In how many seconds."),
    requested_tokens=said(WHOLE, "That a prefix was wanted for."),
    hit_tokens=said(_COUNTS, "By tier: memory, peers, and stores by name."),
    hit_bytes=_COUNTS,
    saved_s=said(NUMBER, "Predicted prefill of what was hit."),
)
_WINDOW = {"window_s": said(NUMBER, "Of `work`, 1 to 1800; default 300.")}
_CSV = {
    "format": said(TEXT, '"csv": one table alone.'),
    "table": said(TEXT, "Which one, by its name in the answer; default: the first."),
}
_CLUSTER = object_of(
    instances=WHOLE,
    states=_COUNTS,
    entries=said(WHOLE, "Chunks in the directory."),
    memory_bytes=said(WHOLE, "Of the directory."),
    capacity_bytes=WHOLE,
    used_bytes=WHOLE,
    counts=_COUNTS,
    work=_WORK,
    alarms=listed(TEXT),
)
_PREFIX = object_of(
    root=said(TEXT, "The hash of the first chunk."),
    lookups=WHOLE,
    lookups_error=said(WHOLE, "By how much `lookups` may be too high."),
    found_chunks=WHOLE,
    chunks=WHOLE,
    tokens=WHOLE,
    holders=listed(TEXT),
)
_KEYS = object_of(
    keys=listed(object_of(model=TEXT, identity=TEXT, instance=TEXT, rank=WHOLE, bytes=WHOLE)),
    prefixes=listed(object_of(root=TEXT, model=TEXT, bytes=WHOLE, age_s=NUMBER, copies=WHOLE)),
    ages=said(listed(object_of(age=TEXT, bytes=WHOLE)), "Since prefixes were last looked up."),
)
_TRANSFER = {"from": TEXT, "to": TEXT, "tokens": WHOLE, "bytes": WHOLE, "bytes_s": NUMBER}
_TRANSFERS = object_of(since=NUMBER, transfers=listed(object_of(**_TRANSFER)))
_JOB = object_of(
    id=TEXT,
    action=TEXT,
    state=said(TEXT, '"running", "done" or "failed".'),
    chunks=WHOLE,
    text=said(TEXT, "Why it failed."),
    since=NUMBER,
    waits_for=listed(TEXT),
)
_WAIT = {
    "wait": said(FLAG, "Answer when it has ended, or after timeout_s."),
    "timeout_s": said(NUMBER, "Up to 60; default 10."),
}
_START = object_of(
    ("action", "instance"),
    action=said(TEXT, "clear, copy, delete, move, pin, prefetch or unpin."),
    instance=said(TEXT, "Who does it; of copy, move and prefetch: who holds the chunks."),
    to=said(TEXT, "Of copy, move and prefetch: who is to have them."),
    **_OF,
    **_WAIT,
)
_PIN = object_of(("instance",), instance=TEXT, **_OF, **_WAIT)
_PINNED = object_of(id=TEXT, instance=TEXT, since=NUMBER, state=TEXT, chunks=WHOLE, text=TEXT)
_QUERY = {
    "tokens": said(TEXT, "With commas between."),
    "hashes": said(TEXT, "With commas between."),
    "identity": _IDENTITY,
    "salt": TEXT,
    "limit": WHOLE,
}
_LAST = {"last": said(WHOLE, "Begin behind this event; so does the header Last-Event-ID.")}
_INFO: Schema = {"type": "object", "additionalProperties": listed({})}
_COUNTED = object_of(event_id=TEXT, num_tokens=WHOLE)
_MINE = object_of(("instance_id",), instance_id=TEXT, location=TEXT, tokens=_TOKENS)

_OPERATIONS = (
    Operation("/health", "get", "Whether the controller turns. No token.", None, object_of()),
    Operation("/metrics", "get", "Metrics, as Prometheus reads them.", None, TEXT, "text/plain"),
    Operation(
        *("/v1/cluster", "get", "All in numbers, and what is wrong.", None, _CLUSTER),
        *("application/json", _WINDOW),
    ),
    Operation(
        *("/v1/nodes", "get", "Every process.", None, object_of(nodes=listed(_NODE))),
        *("application/json", _CSV),
    ),
    Operation(
        "/v1/nodes/{id}", "get", "Those of one instance.", None, object_of(nodes=listed(_NODE))
    ),
    Operation(
        "/v1/lookup", "get", "Who holds a prefix.", None, _LOOKUP, "application/json", _QUERY
    ),
    Operation("/v1/lookup", "post", "Who holds a prefix.", _PROMPT, _LOOKUP),
    Operation("/v1/explain", "post", "Who holds each chunk, or why nobody.", _PROMPT, _EXPLAIN),
    Operation(
        "/v1/prefixes",
        "get",
        "What was asked for most, since the controller began.",
        None,
        object_of(since=NUMBER, prefixes=listed(_PREFIX)),
        "application/json",
        {"limit": WHOLE, **_CSV},
    ),
    Operation(
        *("/v1/keys", "get", "What fills the memory of instances.", None, _KEYS),
        *("application/json", _CSV),
    ),
    Operation(
        *("/v1/transfers", "get", "Who has read how much from whom.", None, _TRANSFERS),
        *("application/json", _CSV),
    ),
    Operation("/v1/jobs", "get", "The last jobs.", None, object_of(jobs=listed(_JOB))),
    Operation("/v1/jobs", "post", "Have instances do something.", _START, _JOB),
    Operation("/v1/jobs/{id}", "get", "How far a job is.", None, _JOB),
    Operation("/v1/pins", "get", "Pins that were set here.", None, object_of(pins=listed(_PINNED))),
    Operation("/v1/pins", "post", "Keep chunks in the memory of an instance.", _PIN, _PINNED),
    Operation("/v1/pins/{id}", "delete", "Undo a pin.", None, _JOB),
    Operation(
        "/v1/events", "get", "What happens, as it happens.", None, TEXT, "text/event-stream", _LAST
    ),
    Operation("/openapi.json", "get", "This description.", None, object_of()),
    Operation("/docs", "get", "This description, as a page.", None, TEXT, "text/html"),
    Operation(
        "/lookup",
        "post",
        "As LMCache: the tokens that each instance has.",
        object_of(("tokens",), tokens=_TOKENS),
        object_of(event_id=TEXT, layout_info=_INFO),
    ),
    Operation(
        "/query_instance",
        "post",
        "As LMCache: the instance at an address.",
        object_of(("ip",), ip=TEXT),
        object_of(event_id=TEXT, res=TEXT),
    ),
    Operation(
        "/query_worker_info",
        "post",
        "As LMCache: where the ranks of an instance are.",
        object_of(("instance_id",), instance_id=TEXT, worker_ids=listed(WHOLE)),
        object_of(event_id=TEXT, worker_infos=listed(object_of())),
    ),
    Operation(
        "/health",
        "post",
        "As LMCache: whether an instance is heard.",
        object_of(("instance_id",), instance_id=TEXT),
        object_of(event_id=TEXT, error_code=WHOLE, error_codes=_COUNTS),
    ),
    Operation("/clear", "post", "As LMCache: forget all.", _MINE, _COUNTED),
    Operation("/pin", "post", "As LMCache: keep a prompt.", _MINE, _COUNTED),
    Operation("/unpin", "post", "As LMCache: let it go.", _MINE, _COUNTED),
    Operation(
        "/move",
        "post",
        "As LMCache: have another instance have a prompt.",
        object_of(
            ("old_position", "new_position"),
            old_position=listed(TEXT),
            new_position=listed(TEXT),
            tokens=_TOKENS,
            copy=FLAG,
        ),
        _COUNTED,
    ),
    Operation("/compress", "post", "As LMCache; it is not done here.", _MINE, _COUNTED),
    Operation("/decompress", "post", "As LMCache; it is not done here.", _MINE, _COUNTED),
    Operation(
        "/check_finish",
        "post",
        "As LMCache: how far a job is.",
        object_of(("event_id",), event_id=TEXT),
        object_of(status=TEXT),
    ),
    Operation(
        "/controller/workers",
        "get",
        "As LMCache: the ranks of all instances.",
        None,
        object_of(workers=listed(object_of()), total_count=WHOLE),
        "application/json",
        {"instance_id": TEXT, "worker_id": WHOLE},
    ),
    Operation(
        "/controller/key-stats",
        "get",
        "As LMCache: chunks of each instance.",
        None,
        object_of(total_key_count=WHOLE, instances=listed(object_of())),
    ),
)
_ERRORS = {
    "400": "The request cannot be right.",
    "401": "The token is missing, or another one.",
    "403": "A web page of another host asked.",
    "404": "No such path, instance, identity, pin or job.",
    "408": "The body did not come in time.",
    "413": "The body is larger than 4 MiB.",
    "429": "Other long bodies are being read; it may be sent again in a second.",
    "501": "It is not done here, or the instance does not do it.",
    "502": "The instance failed.",
    "503": "Too much waits.",
}
HEALTH = ("/health",)
API = Api(
    "kvferry controller",
    "Which instances there are, what each of them holds, and what they should do.",
    _OPERATIONS,
    _ERRORS,
    HEALTH,
)
