"""
The native core of kvferry. Use the classes of the kvferry package instead.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Buffer


class CredentialSource:
    """Where connections ask for user and password. See kvferry.Credentials."""

    def __init__(self) -> None: ...

    def wait(self, timeout_s: float) -> int:
        """1: a connection asks; 0: none did in time; -1: the client is closed."""

    def provide(self, username: str, password: str) -> None: ...

    def refuse(self, why: str) -> None:
        """There are none now; `why` holds no secret."""

class Client:
    """A client of a server or of many. See kvferry.RedisClient."""

    def __init__(self, settings: dict[str, Any], credentials: CredentialSource | None = None) -> None:
        """Starts the I/O threads; they connect at once. Waits for nothing."""

    def submit(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, identity: int | None, value_size_bytes: int, codec: int) -> int:
        """Returns the id at once; see drain()."""

    def run(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, identity: int | None, value_size_bytes: int, codec: int) -> tuple[bytes, bytes, float, str | None, type[Exception] | None]:
        """
        Waits without the GIL: statuses, sizes as u64, seconds, the first error.
        """

    def call(self, commands: Sequence[Sequence[bytes]], key: bytes, node: str, timeout_s: float) -> tuple[tuple[bytes, bytes, float, str | None, type[Exception] | None], list[Any]]:
        """
        Any commands, to a node of a cluster, or to whoever has a key; as run(), with replies.
        """

    def primaries(self) -> list[str]:
        """Who serves slots; nobody before that is known."""

    def drain(self) -> list[tuple[int, tuple[bytes, bytes, float, str | None, type[Exception] | None]]]: ...

    def drain_log(self) -> list[tuple[int, str]]: ...

    def cancel(self, batch_id: int) -> None: ...

    def event_fd(self) -> int: ...

    def available(self) -> bool: ...

    def down_reason(self) -> str: ...

    def stats(self) -> dict[str, int | str]: ...

    def nodes(self) -> list[dict[str, Any]]: ...

    def watch(self, prefix: str, seat: str, keys_max: int, load_max: int, optional: bool) -> None:
        """
        Keeps a presence view from now on; of all with one `seat` on a host one does.
        """

    def forked_away(self) -> None:
        """To be called in a forked child."""

    def presence(self, keys: Any) -> list[bool | None]: ...

    def presence_stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...

def begin_exit() -> None:
    """Other threads that come back from a wait now stay there."""

def await_parked() -> None:
    """Waits until they do, a second at most."""

class Connector:
    """A store behind the cache. See kvferry.connectors."""

    def submit(self, verb: int, keys: Any, buffers: Any | None, timeout_s: float, ttl_ms: int, prefix: bool, quiet: bool) -> int:
        """Returns the id at once: for wait() if it is quiet, else for drain()."""

    def wait(self, job_id: int, timeout_s: float) -> tuple[bytes, bytes, float, str | None, type[Exception] | None] | None:
        """
        Waits without the GIL; None while the job still runs. To be discarded in the end.
        """

    def discard(self, job_id: int) -> None: ...

    def progress(self, job_id: int) -> int: ...

    def drain(self) -> list[tuple[int, tuple[bytes, bytes, float, str | None, type[Exception] | None]]]: ...

    def drain_log(self) -> list[tuple[int, str]]: ...

    def cancel(self, job_id: int) -> None: ...

    def event_fd(self) -> int: ...

    def available(self) -> bool: ...

    def pages_on_demand(self) -> bool:
        """Whether a GET may have OnDemandPages instead of buffers."""

    def absent(self, key: str | bytes) -> bool:
        """
        Whether a key is certainly absent, as far as that is known without asking.
        """

    def leading(self, keys: tuple[str | bytes, ...]) -> int | None:
        """
        How many leading keys are there in all likelihood, where that is known without asking.
        """

    def presence(self) -> tuple[dict[str, int], str] | None:
        """Counters of the presence view and what is in its way, if there is one."""

    def write_as(self, codec: int) -> None:
        """How values are written from now on: a number of codec/frame.hpp."""

    def mode(self) -> str:
        """How the driver works here, e.g. 'direct, io_uring'."""

    def usage(self) -> tuple[int, int | None, int | None]:
        """Bytes used, capacity in bytes, keys."""

    def scan(self, cursor: int) -> tuple[list[tuple[bytes, float]], int]:
        """Keys and ages in seconds, and where to go on; 0 = nowhere."""

    def descriptions(self) -> list[tuple[bytes, str]]: ...

    def stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...

def open_memory_connector(prefix: bytes, identity: bytes, value_size_bytes: int, description: str, name: str, capacity_bytes: int, queued_keys_max: int) -> Connector: ...

def open_file_connector(prefix: bytes, identity: bytes, value_size_bytes: int, description: str, path: str, capacity_bytes: int, fsync: int, direct: int, ring: bool, rescan_after_s: float, queued_keys_max: int) -> Connector: ...

def open_redis_connector(client: Client, prefix: bytes, identity: bytes, value_size_bytes: int, description: str, seat: str | None, keys_max: int, load_max: int, optional: bool, owns: bool = True) -> Connector:
    """
    With a `seat` (see redis::PresenceSeat) it keeps a presence view. Unless it `owns` what is there, it deletes nothing that is of no use.
    """

class SharedSegment:
    """
    A file in memory that this process owns and clients map; see PagePool.over(). The owner lock is held until the object and every pool over it are gone; the file goes with close() unless it is kept.
    """

    @staticmethod
    def create(path: str, size_bytes: int, *, keep: bool = False) -> SharedSegment:
        """
        A new file of mode 0600, rounded up to whole blocks, without memory. UsageError: a size that cannot be. SystemResourceError: the file exists, or the system refuses.
        """

    @staticmethod
    def open(path: str, size_bytes: int, *, keep: bool = False) -> SharedSegment:
        """
        What a former owner left. UsageError: a file that is not ours, not private, or of another length. CapacityError: it has an owner. SystemResourceError: no such file.
        """

    def lock_is_held(self, lock: int) -> bool:
        """
        Whether anybody else holds the lock on this byte: until its descriptors and mappings are gone.
        """

    def forget(self) -> None:
        """
        Drop the page tables of this process, without the GIL; content and memory stay.
        """

    def locks_held(self, locks: Sequence[int]) -> list[bool]:
        """lock_is_held() of each."""

    def unlink(self) -> bool:
        """
        Remove the file now, if it is still this one; mappings live on. Whether it did.
        """

    def close(self) -> None:
        """
        Remove the file unless it is kept, and give up this object's part in the mapping. Again is fine.
        """

    @property
    def keep(self) -> bool:
        """Whether the file stays when this process is done with it."""

    @keep.setter
    def keep(self, arg: bool, /) -> None: ...

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def block_size_bytes(self) -> int: ...

    @property
    def huge_pages(self) -> str: ...

class SharedPageView(Buffer):
    """A page of a segment as a writable buffer; it keeps the mapping."""

    @property
    def index(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class SharedPages:
    """
    The pages of another process's segment, mapped, with the lock of byte `lock` until the last view is gone. Only pages that the owner granted may be touched.
    """

    def __init__(self, path: str, segment_bytes: int, page_stride: int, page_bytes: int, pages: int, lock: int) -> None:
        """
        UsageError: a file that is not ours, not private, or of another length; pages that do not fit. CapacityError: somebody has that lock. SystemResourceError: no such file.
        """

    def view(self, index: int) -> SharedPageView:
        """A page as a buffer. UsageError: there is no such page."""

    def copy(self, indexes: Sequence[int], buffers: Sequence[Any], to_pages: bool, threads: int) -> None:
        """
        Between pages and buffers of their length, without the GIL, by up to `threads` threads. UsageError: no such page. BadBufferError: another length, or read-only. SystemResourceError: no memory behind a page.
        """

    def populate(self) -> None:
        """
        Map everything now, without the GIL, so that no first use pays for it. Only where the owner has granted every page: others take memory.
        """

    def close(self) -> None:
        """
        Give up this object's part; the mapping and the lock end with the last view. Again is fine.
        """

    @property
    def closed(self) -> bool: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def pages_count(self) -> int: ...

class PagePool:
    """Equal pages cut from one mapping; see kvferry.chunks.pool."""

    def __init__(self, page_size_bytes: int, pages_count: int, *, hugetlb: bool = False, prefault: bool = True) -> None: ...

    @staticmethod
    def over(segment: SharedSegment, page_size_bytes: int, pages_count: int, *, prefault: bool = False) -> PagePool:
        """
        Pages of a shared segment, all of them held back. With `prefault`, granting one clears and maps it, so that its first users need not wait. UsageError: the segment is too short.
        """

    @staticmethod
    def stride_bytes(page_size_bytes: int) -> int:
        """From one page to the next: what a pool needs for each page."""

    def grow(self, count: int) -> tuple[int, str | None]:
        """
        Back up to `count` held-back pages with memory, for use: how many, and why not more where the system refused.
        """

    def shrink(self, count: int) -> tuple[int, str | None]:
        """
        Hold up to `count` free pages back and return their memory: how many, and what failed.
        """

    def claim(self, index: int) -> int:
        """
        The handle of this very page, granted and allocated, its content kept. UsageError: in use, or not there. SystemResourceError: the system has none.
        """

    def trim(self) -> None:
        """Return the memory that held-back pages still have from a former owner."""

    def allocate(self) -> int | None:
        """The handle of a page, or None when the pool is exhausted."""

    def allocate_many(self, count: int) -> list[int] | None:
        """All the handles, or None and no page."""

    def free(self, handle: int) -> None:
        """End the use of a page. ValueError for a handle that is not in use."""

    def address(self, handle: int) -> int:
        """Where the page starts in memory. ValueError as free()."""

    @property
    def page_size_bytes(self) -> int: ...

    @property
    def page_stride_bytes(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def huge_pages(self) -> str: ...

    @property
    def start_address(self) -> int: ...

    @property
    def pages_count(self) -> int: ...

    @property
    def free_count(self) -> int: ...

    @property
    def granted_count(self) -> int: ...

    @property
    def used_count_max(self) -> int: ...

class Page:
    """
    A page as a writable buffer. It adopts the handle: it frees the page when it goes, unless free() was called.
    """

    def __init__(self, pool: PagePool, handle: int) -> None: ...

    def free(self) -> None:
        """ValueError when the page was freed before."""

    @property
    def freed(self) -> bool: ...

    @property
    def handle(self) -> int: ...

    @property
    def address(self) -> int:
        """ValueError when the page was freed."""

    @property
    def nbytes(self) -> int: ...

def hash_chunks(tokens: Any, chunk_size: int, salt: bytes = b'', parent: bytes | None = None) -> bytes:
    """
    16 bytes for each full chunk, as kvferry.chunks.keys computes them. `parent` continues a chain.
    """

class PageView(Buffer):
    """
    A page as a writable buffer that somebody else owns. The page is leased in its pool while it is exported.
    """

    def __init__(self, pool: PagePool, handle: int) -> None: ...

    @property
    def handle(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

def copy_pages(pool: PagePool, handles: Sequence[int], buffers: Sequence[Any], to_pages: bool, threads: int) -> None:
    """
    Between pages and buffers of their length, without the GIL, by up to `threads` threads.
    """

def page_checksums(pool: PagePool, handles: Sequence[int]) -> list[int]:
    """XXH3-64 of each page, without the GIL."""

def checksum(source: Any, target: Any | None = None) -> int:
    """
    XXH3-64 of a buffer, without the GIL. With a target of its length it is copied there first, and what was copied is what is summed.
    """

def read_process(process: int, addresses: Sequence[int], targets: Sequence[Any]) -> list[int]:
    """
    Copies memory of another process into buffers, without the GIL; XXH3-64 of each. Raises SystemResourceError when it cannot be read.
    """

def admit_readers() -> None:
    """Lets other processes of this user read the memory of this one."""

def codecs() -> tuple[tuple[str, str, float], ...]:
    """
    By their numbers: the name of each, the numbers that it takes with loss, and the share of a thread below which a link gets it; see codec/codecs.hpp.
    """

def encode_value(codec: int, content: Any, payload: Any) -> int:
    """
    Writes what the frame would have behind it and returns its length; 0: it does not pay. The payload has room for 4 bytes more for each 64 KiB.
    """

def decode_value(payload: Any, content: Any) -> bool:
    """The way back; False: it is damaged."""

def frame_header(key: bytes, identity: bytes, size_bytes: int, checksum: int) -> bytes:
    """
    What stands before a value that is stored whole; its length is FRAME_BYTES.
    """

def value_fault(headers: bytes, key: bytes, identity: bytes, size_bytes: int, checksums: Sequence[int]) -> str:
    """
    What is wrong with a value, by the headers and checksums of its stripes; empty: nothing.
    """

def stripe_extents(size_bytes: int) -> list[tuple[int, int]]:
    """Offsets and lengths of the stripes of a value."""

FRAME_BYTES: int = 64

class BlockMap:
    """
    Where the blocks of a paged cache lie: regions (memory, offset, block stride, rows, row stride, row bytes), lengths in bytes. A buffer of some blocks is [region][block][row].
    """

    def __init__(self, memory: Sequence[Any], regions: Sequence[tuple[int, int, int, int, int, int]], blocks: int) -> None:
        """UsageError: a region leaves its memory."""

    def copy(self, blocks: Sequence[int], buffers: Sequence[Any], to_buffers: bool, threads: int, first: int, count: int) -> None:
        """
        Between blocks, as many for each buffer, and buffers: `count` regions from `first` on. Without the GIL, by up to `threads` threads. From buffers, a number below 0 stands for a block that is not wanted. UsageError: no such block. BadBufferError: a buffer of another length.
        """

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int:
        """Of one block, in all regions."""

def chunk_names(keys: Iterable[bytes]) -> list[str]:
    """The names of chunks in the store: 128 bits of each key, in hex."""

class Answers:
    """What a store says of the chunks that one request asks for."""

    def __init__(self) -> None: ...

    def ask(self, key: bytes) -> int:
        """
        0: not there. 1: there. 2: not answered yet. 3: new, and part of the next question.
        """

    def take_back(self) -> None:
        """Undoes the last ask(), which was new, when nothing was called since."""

    def take(self) -> tuple[bytes, list[str]]:
        """What is new since the last call: a question, and its names."""

    def resolve(self, question: bytes, statuses: bytes) -> None:
        """The answer to a question: whether each status is OK."""

    def deny(self, question: bytes) -> None:
        """Nothing of a question is there."""

    def miss(self, keys: Iterable[bytes]) -> None:
        """These are not there, if they were asked for."""

class KnownChunks:
    """Chunks that a store was heard to have; the oldest are forgotten first."""

    def __init__(self, keys_max: int) -> None: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def add(self, keys: Iterable[bytes]) -> None:
        """The store has these."""

    def discard(self, keys: Iterable[bytes]) -> None:
        """The store has these not."""

    def unknown(self, keys: Iterable[bytes]) -> list[int]:
        """The indices of those that it was not heard to have."""

    def hear(self, question: bytes, statuses: bytes) -> tuple[int, int]:
        """
        What the statuses of a question say: how many are there, how many are not.
        """

def policies() -> tuple[str, ...]:
    """The names of the eviction policies."""

class ChunkCache:
    """
    The index of chunks: who is there, who may go. Hashes are bytes, 16 for each chunk, root first; counts are chunks.
    """

    def __init__(self, capacity: int, policy: str = 'LRU', *, leaf_first: bool = True, pool: PagePool | None = None) -> None:
        """
        UsageError: a capacity below 1 or above the pool's pages, or an unknown policy.
        """

    def lookup(self, hashes: bytes) -> tuple[int, int]:
        """The leading ready run, and how many right behind it are being written."""

    def touch(self, hashes: bytes) -> int:
        """The leading ready run, which counts as used."""

    def acquire(self, hashes: bytes, ttl_s: float) -> tuple[int, list[int]]:
        """
        Lease the leading ready run: the lease's id and the handles of the pages; (0, []) when there is none. It counts as used.
        """

    def release(self, lease_id: int) -> bool:
        """Whether the lease was in force until now."""

    def reserve(self, hashes: bytes, first: int, ttl_s: float) -> tuple[int, list[int], list[int], int]:
        """
        Make room for the absent ones of hashes[first:]: the reservation's id, the indices of those that got room, their pages, and how many got none.
        """

    def commit(self, reservation_id: int, ok: bytes | None = None) -> int:
        """
        How many chunks became ready; 0 when the reservation had expired. `ok` has one byte for each reserved chunk; 0 drops it.
        """

    def commit_leased(self, reservation_id: int, ttl_s: float) -> tuple[int, int]:
        """
        Commit all of it and lease it: how many chunks, and the lease; (0, 0) when the reservation had expired.
        """

    def abort(self, reservation_id: int) -> bool:
        """Whether the reservation was in force until now."""

    def extend(self, id: int, ttl_s: float) -> bool:
        """A new deadline, from now; False when it has passed already."""

    def revoke(self, id: int) -> bool:
        """
        End a lease or reservation, in force or expired, of a holder that touches its memory no more. Whether it was known.
        """

    def pin(self, hashes: bytes) -> int:
        """How many of the leading ready run are kept now. Pins are counted."""

    def unpin(self, hashes: bytes) -> int:
        """How many of the leading ready run lost a pin."""

    def states(self, hashes: bytes) -> bytes:
        """
        A byte for each chunk: 0 absent, 1 evicted, 2 writing, 3 ready, 4 leased, 5 pinned.
        """

    def watch(self, kept: int) -> int:
        """
        Keep the last so many changes from now on; the number of the next one. Called again it keeps what it has.
        """

    def changes(self, start: int, count: int) -> tuple[int, list[tuple[bool, bytes]]] | None:
        """
        Up to `count` changes from number `start` on, as (whether these are ready from now on, hashes) in their order, and the number to go on from. None: some are not kept any more.
        """

    def ready_from(self, slot: int, count: int) -> tuple[int, bytes]:
        """
        The ready chunks in up to `count` slots from `slot` on, and the slot to go on from, 0: that was all. A chunk that stays is met once.
        """

    def generations(self, hashes: bytes) -> list[int]:
        """
        For each chunk a number that changes when it left and was stored anew; 0: not ready.
        """

    def access(self, hashes: bytes) -> tuple[int, int]:
        """
        A whole request: what is there is used, the rest stored at once. The leading run of those that were there, and all of them.
        """

    def insert(self, hashes: bytes, first: int = 0) -> int:
        """Store the absent ones of hashes[first:]; how many got room."""

    def evict(self, count: int) -> bytes:
        """The hashes of up to `count` victims, which are gone."""

    def remove(self, hashes: bytes) -> int:
        """
        How many were there. Leased ones go too; their memory goes with the lease.
        """

    def clear(self) -> int:
        """Remove everything; how many there were."""

    def entries(self) -> tuple[bytes, list[int], list[int]]:
        """
        Every ready chunk, for adopt() after a restart: hashes, for each the index of its parent in the list or -1, and its page. Parents come before their children; else who would be evicted last is in front.
        """

    def adopt(self, hashes: bytes, parents: Sequence[int], pages: Sequence[int]) -> int:
        """
        Take over what entries() gave as ready chunks, with pages of PagePool.claim(); page 0 leaves a chunk out. How many came in: nobody is evicted for them. The pages are the cache's from here on. UsageError, and nothing done: a parent behind its child, a page twice or not in use.
        """

    def stats(self) -> dict[str, int]: ...

    @property
    def capacity(self) -> int: ...

class Directory:
    """
    Which instance holds which chunks, by what each of them says of itself.
    """

    def __init__(self) -> None: ...

    def open(self) -> int:
        """A seat that holds nothing; no number is taken twice."""

    def drop(self, seat: int) -> bool:
        """It holds nothing any more; False: there is none."""

    def update(self, seat: int, added: bytes, removed: bytes) -> bool:
        """Hashes that came, then those that went; False: there is no such seat."""

    def begin(self, seat: int) -> bool:
        """
        Begins a snapshot, which lookups do not see yet; False: there is no such seat.
        """

    def fill(self, seat: int, part: bytes) -> bool:
        """Hashes of the snapshot; False: none was begun."""

    def finish(self, seat: int) -> bool:
        """
        The snapshot is what the seat holds from now on; False: none was begun.
        """

    def lookup(self, hashes: bytes) -> list[tuple[int, int]]:
        """Seats that hold leading chunks, with how many; the longest first."""

    def states(self, seat: int, hashes: bytes) -> bytes:
        """Of each hash 1 if the seat holds it, else 0."""

    def size(self, seat: int) -> int:
        """How many chunks a seat holds."""

    def stats(self) -> dict[str, int]:
        """seats, entries, memory_bytes."""

class OnDemandPages:
    """
    Pages for hashes[first:] that are taken when values come. Goes where buffers of a GET go. See kvferry.cache.load.window.
    """

    def __init__(self, cache: ChunkCache, hashes: bytes, first: int, ttl_s: float) -> None: ...

    def place(self, index: int) -> int:
        """A value comes; where its page is, until the job is finished. 0: none."""

    def keep(self, count: int) -> None:
        """
        Only the first `count` are wanted from now on, and get their pages now.
        """

    def states(self) -> tuple[bytes, list[int]]:
        """
        For each chunk 0 (nothing came), 1 (it has a page), 2 (others bring it, or it is there), 3 (there is no room); and the handles of the pages.
        """

    def commit(self, ok: bytes) -> int:
        """
        The job is finished: what has a page and a byte other than 0 becomes ready, the rest leaves; how many became ready.
        """

    @property
    def size(self) -> int: ...

class Node:
    """A RESP server over values in memory."""

    def __init__(self, *, listen: Sequence[tuple[str, str, int]], size_bytes: int, policy: str, hugetlb: bool, prefault: bool, users: Sequence[dict[str, Any]], state_file: str, threads: int, version: str, connections_max: int | None = None, in_flight_bytes_max: int = 0, value_bytes_max: int | None = None, stall_timeout_s: float | None = None, lends: bool = False, tls: dict[str, Any] = {}) -> None: ...

    def lend(self, cache: ChunkCache, prefix: str, identity: bytes, chunk_bytes: int) -> None:
        """Lend the chunks of a cache, under names that begin with the prefix."""

    def recall(self, prefix: str) -> bool:
        """Lend the cache of this prefix no more; whether it was."""

    def mark(self, prefix: str, text: bytes, lent_s: float) -> bool:
        """
        Have <prefix>generation be this text, and lend the cache for so long; whether it is lent.
        """

    def set_agent(self, incarnation: int, metadata: bytes) -> None:
        """
        Have readers reach the memory of this process: what LEASE AGENT answers.
        """

    def stop(self) -> None: ...

    def endpoints(self) -> list[str]: ...

    def stats(self) -> dict[str, int]: ...
