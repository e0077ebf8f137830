"""vLLM's tiered offloading on a CPU, for tests: its own refuses to run without a GPU.

    "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_tiering"

Everything is vLLM's and ours but the worker, which copies blocks to and from the shared region with
memcpy, at once, instead of over a bus. For vLLM 0.22.1 and 0.32.0. Imported by the engine.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvferry.integrations.vllm.spec import KvferryTieringSpec

NEW = hasattr(base, "TransferResult")  # one worker with submit_store; before that, handlers
if not NEW:
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
    from vllm.v1.kv_offload.worker import worker as old

Worker: Any = base.OffloadingWorker if NEW else object
Handler: Any = object if NEW else old.OffloadingHandler
Result: Any = base.TransferResult if NEW else old.TransferResult


class Copier:
    """Rows of the region and the engine's blocks, tensor by tensor."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion) -> None:
        self.region: SharedOffloadRegion | None = region
        view = getattr(region, "create_next_worker_view", None) or region.create_next_view
        self.pairs = [
            (
                item.tensor.view(torch.int8).view(-1, item.page_size_bytes),
                view(item.page_size_bytes),
            )
            for item in kv_caches.tensors
        ]

    def copy(self, job: int, blocks: Any, rows: Any, to_rows: bool) -> Any:
        began, size = time.perf_counter(), 0
        for device, host in self.pairs:
            for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
                if to_rows:
                    host[row].copy_(device[block])
                else:
                    device[block].copy_(host[row])
                size += host.shape[1]
        return Result(job, True, size, time.perf_counter() - began)

    def close(self) -> None:
        self.pairs = []
        if self.region is not None:
            self.region.cleanup()
            self.region = None


class CopyWorker(Worker):  # type: ignore[misc]  # one of vLLM's classes
    """0.32.0: one worker for both ways."""

    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self.done: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.done.append(self.copier.copy(job_id, src_spec.block_ids, _rows(dst_spec), True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.done.append(self.copier.copy(job_id, dst_spec.block_ids, _rows(src_spec), False))
        return True

    def get_finished(self) -> list[Any]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing runs when a call has returned."""

    def shutdown(self) -> None:
        self.copier.close()


class CopyHandler(Handler):  # type: ignore[misc]  # one of vLLM's classes
    """0.22.1: a handler for each way; the first one owns the copier."""

    def __init__(self, copier: Copier, to_rows: bool) -> None:
        self.copier = copier
        self.to_rows = to_rows
        self.done: list[Any] = []

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        source, target = (item.block_ids for item in spec)
        blocks, rows = (source, target) if self.to_rows else (target, source)
        self.done.append(self.copier.copy(job_id, blocks, rows, self.to_rows))
        return True

    def get_finished(self) -> list[Any]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing runs when a call has returned."""

    def shutdown(self) -> None:
        if self.to_rows:
            self.copier.close()


class CpuTieringSpec(KvferryTieringSpec):
    """`KvferryTieringSpec` with the worker above."""

    _copies: Any = None

    def get_worker(self, kv_caches: Any) -> Any:
        """0.32.0."""
        if self._copies is None:
            assert self.blocks_per_chunk == 1, "the worker of these tests copies whole blocks"
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._copies = CopyWorker(Copier(kv_caches, region))
        return self._copies

    def get_handlers(self, kv_caches: Any) -> Any:
        """0.22.1."""
        assert self.block_size_factor == 1, "the worker of these tests copies whole blocks"
        parallel = self.vllm_config.parallel_config
        region = SharedOffloadRegion(
            instance_id=self.vllm_config.instance_id,
            total_size_bytes=self.cpu_page_size_per_worker * parallel.world_size * self.num_blocks,
            num_blocks=self.num_blocks,
            rank=parallel.rank,
            num_workers=parallel.world_size,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        copier = Copier(kv_caches, region)
        yield base.GPULoadStoreSpec, CPULoadStoreSpec, CopyHandler(copier, True)
        yield CPULoadStoreSpec, base.GPULoadStoreSpec, CopyHandler(copier, False)


def _rows(spec: Any) -> Any:
    return spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids
