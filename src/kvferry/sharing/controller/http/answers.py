"""What the calls of the controller answer, as JSON has it."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypeAlias, TypedDict

from msgspec import Meta

from kvferry.sharing.controller.jobs import JobRow
from kvferry.sharing.controller.traffic import TransferRow

__all__ = [
    "ChunkRow",
    "ClusterReport",
    "ExplainReport",
    "IdentityRow",
    "InstanceRow",
    "JobRows",
    "KeysReport",
    "LookedUp",
    "NodeRow",
    "NodeRows",
    "OneInstance",
    "PinRow",
    "PinRows",
    "PrefixRow",
    "PrefixRows",
    "QuotaRow",
    "QuotaRows",
    "TransferRows",
    "WorkReport",
]

Counts: TypeAlias = dict[str, int]


class InstanceRow(TypedDict):
    """What an instance has of a prompt."""

    instance: str
    model: str
    chunk_size: int
    state: Annotated[str, Meta(description='"alive" or "suspect"; the suspect come last.')]
    addresses: Annotated[dict[str, str], Meta(description="HOST:PORT of each rank's node.")]
    ranks: Annotated[Counts, Meta(description="Leading chunks of each.")]
    chunks: Annotated[int, Meta(description="Leading chunks that all of its ranks hold.")]
    tokens: int


Rows = Annotated[list[InstanceRow], Meta(description="The longest prefix first.")]


class LookedUp(TypedDict):
    """Who has how much of a prompt."""

    chunks: Annotated[int, Meta(description="Of the prompt.")]
    instances: Rows


class ChunkRow(TypedDict):
    """Who has a chunk, and who has all before it as well."""

    chunk: int
    hash: str
    chunk_size: int | None
    holders: list[str]
    prefix_of: list[str]
    why: Annotated[str, Meta(description="Nobody can give it.")]


class ExplainReport(TypedDict):
    """Who has each chunk of a prompt."""

    chunks: list[ChunkRow]
    truncated: bool
    instances: Rows
    why: NotRequired[str]


class IdentityOfNode(TypedDict):
    """An identity."""

    digest: str
    model: str
    chunk_size: int


class NodeRow(TypedDict):
    """A process of an instance."""

    instance: str
    rank: int
    state: Annotated[str, Meta(description='"alive", "suspect" or "dead".')]
    address: str
    host: str
    incarnation: str
    software: str
    identities: list[IdentityOfNode]
    actions: list[str]
    chunks: int
    capacity_bytes: int
    used_bytes: int
    quota_bytes: Annotated[Counts, Meta(description='By model; "": of all models together.')]
    requested_tokens: int
    hit_tokens: Counts
    registered: float
    heartbeat: float
    heartbeat_age_s: float
    synced: Annotated[bool, Meta(description="All that it holds is known here.")]
    snapshots: int
    seq: int


class NodeRows(TypedDict):
    """All processes."""

    nodes: list[NodeRow]


class OneInstance(NodeRows):
    """The processes of one instance."""

    instance: str


class WorkReport(TypedDict):
    """What caches have given."""

    window_s: Annotated[float, Meta(description="In how many seconds.")]
    requested_tokens: Annotated[int, Meta(description="That a prefix was wanted for.")]
    hit_tokens: Annotated[Counts, Meta(description="By tier: memory, peers, and stores by name.")]
    hit_bytes: Counts
    saved_s: Annotated[float, Meta(description="Predicted prefill of what was hit.")]


class IdentityRow(IdentityOfNode):
    """An identity, and how many processes have it."""

    instances: int


class ClusterReport(TypedDict):
    """All of it in numbers."""

    version: str
    started: float
    instances: int
    states: Counts
    synced: int
    entries: Annotated[int, Meta(description="Chunks in the directory.")]
    memory_bytes: Annotated[int, Meta(description="Of the directory.")]
    capacity_bytes: int
    used_bytes: int
    identities: list[IdentityRow]
    ports: Counts
    heartbeat_s: float
    suspect_s: float
    dead_s: float
    counts: Counts
    last_event: int
    work: WorkReport
    alarms: list[str]


class PrefixRow(TypedDict):
    """A prefix, and who has it."""

    root: Annotated[str, Meta(description="The hash of the first chunk.")]
    lookups: int
    lookups_error: Annotated[int, Meta(description="By how much `lookups` may be too high.")]
    found_chunks: int
    first: float
    last: float
    chunks: int
    tokens: int
    holders: list[str]


class PrefixRows(TypedDict):
    """Prefixes that were asked for."""

    since: float
    prefixes: list[PrefixRow]


class KeyRow(TypedDict):
    model: str
    identity: str
    instance: str
    rank: int
    chunks: int
    chunk_bytes: int
    bytes: int


class HeldPrefix(TypedDict):
    """A prefix in the memory of instances."""

    root: str
    model: str
    chunks: int
    copies: int
    bytes: int
    age_s: float
    lookups: int


class AgeRow(TypedDict):
    """What was last looked up so long ago."""

    age: str
    bytes: int


class KeysReport(TypedDict):
    """What fills the memory of instances."""

    keys: list[KeyRow]
    prefixes: list[HeldPrefix]
    ages: Annotated[list[AgeRow], Meta(description="Since prefixes were last looked up.")]


class TransferRows(TypedDict):
    """Who has read from whom."""

    since: float
    transfers: list[TransferRow]


class JobRows(TypedDict):
    """The last jobs."""

    jobs: list[JobRow]


class PinRow(TypedDict):
    """A pin."""

    id: str
    instance: str | None
    since: float | None
    state: str
    chunks: int | None
    text: str | None


class PinRows(TypedDict):
    """The pins that were set here."""

    pins: list[PinRow]


class QuotaRow(TypedDict):
    """What each process of an instance may hold in memory."""

    id: str
    instance: str
    model: Annotated[str, Meta(description='"": of all models together.')]
    bytes: int
    since: float


class QuotaRows(TypedDict):
    """The quotas in force."""

    quotas: list[QuotaRow]
