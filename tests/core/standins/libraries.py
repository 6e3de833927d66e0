"""`flashinfer` and `torch_npu` on the CPU: reference attention, and the rules of the real calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.core.standins.accelerator import FakeDevice, StandInError, address

INT_MAX = 2**31 - 1


def attention(query: Tensor, keys: Tensor, values: Tensor, scale: float, allowed: Tensor | None = None) -> Tensor:
    """Softmax attention in float64: query (n, H, d), keys and values (K, G, d), allowed (n, K), result (n, H, d)."""
    shared = query.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(shared, 1) for part in (keys, values))
    scores = torch.einsum("nhd,khd->hnk", query.double(), keys) * scale
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return torch.einsum("hnk,khd->nhd", scores.softmax(-1), values).to(query.dtype)


def check_reach(device: FakeDevice, cache: Tensor, seen: Tensor) -> None:
    """Refuse lengths that do not reach what this replay has just written.

    Args:
        device: that replays.
        cache: keys or values.
        seen: slots that attention looks at.
    """
    for slots in device.written.get(address(cache), []):
        late = slots[~torch.isin(slots, seen)]
        if len(late):
            raise StandInError(f"slots {late.tolist()[:4]} were written beyond the lengths that attention was told")


def need(condition: bool, rule: str) -> None:
    if not condition:
        raise StandInError(rule)


class FakeWrapper:
    """`flashinfer.BatchPrefillWithPagedKVCacheWrapper` under CUDA graphs."""

    device: FakeDevice
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    plans = 0

    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None, paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None, paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None, mask_indptr_buf: Tensor | None = None, backend: str = "auto",
    ) -> None:
        need(backend == "fa2", f"backend {backend}: auto picks fa3, which does not split keys")
        need(kv_layout == "NHD", "pages are (page, head, d)")
        need(use_cuda_graph, "use_cuda_graph must be set for a wrapper inside a graph")
        need(custom_mask_buf is None and mask_indptr_buf is None, "a custom_mask_buf makes every plan masked by it")
        need(float_workspace_buffer.dtype == torch.uint8, "the workspace is uint8")
        need(float_workspace_buffer.data_ptr() % 16 == 0, "the workspace is 16-byte aligned")
        buffers = [qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf]
        need(all(buffer is not None and buffer.dtype == torch.int32 for buffer in buffers), "four int32 buffers")
        self._queries, self._pages, self._indices, self._last = buffers
        self._batch = len(self._last)
        need(len(self._queries) == len(self._pages) == self._batch + 1, "indptr buffers hold one more than requests")
        self._most_rows: int | None = None
        self._given: tuple[int, int] | None = None
        self._planned: SimpleNamespace | None = None

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, causal: bool = False,
        sm_scale: float | None = None, q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None, non_blocking: bool = True, custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None, disable_split_kv: bool = False, uniform_q_len: int | None = None,
    ) -> None:
        self.device.refuse_in_capture("plan")
        with self.device.library_call():
            self._plan(
                [qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len], q_data_type, kv_data_type,
                custom_mask is not None or packed_custom_mask is not None, disable_split_kv, uniform_q_len,
                SimpleNamespace(
                    heads=num_qo_heads, key_heads=num_kv_heads, head_dim=head_dim_qk, page=page_size, causal=causal,
                    scale=head_dim_qk**-0.5 if sm_scale is None else sm_scale, dtype=q_data_type,
                ),
            )

    def _plan(
        self, indices: list[Tensor], q_data_type: torch.dtype, kv_data_type: torch.dtype | None, masked: bool,
        disable_split_kv: bool, uniform_q_len: int | None, planned: SimpleNamespace,
    ) -> None:
        device, (queries, pages, used, last) = self.device, indices
        if self._given is not None:
            done = device.done > self._given[0] or device.synced > self._given[1]
            need(done, "a plan before the copy of the last one has left its staging buffer")
        need(all(index.dtype == torch.int32 and index.device.type == "cpu" for index in indices), "int32 on the host")
        need(not masked, "no mask is needed, and fa2 masks are slow")
        need(not disable_split_kv, "without splitting, padded blocks read plan entries that were not written")
        need(len(queries) == len(pages) == self._batch + 1, "the number of requests is fixed")
        need(len(last) == self._batch, "the number of requests is fixed")
        need(len(used) == int(pages[-1]) <= len(self._indices), "too many pages")
        need(q_data_type in self.dtypes and kv_data_type in (None, q_data_type), f"no kernel for {q_data_type}")
        need(bool((last >= 1).all() and (last <= planned.page).all()), "last_page_len is 1 to page_size")
        rows = int(queries[-1])
        need(self._most_rows is None or rows <= self._most_rows, "more rows than the first plan")
        need(uniform_q_len is None or bool((queries.diff() == uniform_q_len).all()), "uniform_q_len is every request's")
        self._most_rows = self._most_rows or rows
        for buffer, index in zip((self._queries, self._pages, self._indices, self._last), indices, strict=True):
            buffer[: len(index)] = index
        self._planned = planned
        self._given = device.given, device.synced
        type(self).plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], out: Tensor | None = None) -> Tensor:
        with self.device.library_call() as recorder:
            result = torch.empty_like(q) if out is None else out
            if recorder is not None:
                recorder.remember(out)
            self._run(q, paged_kv_cache, result)
            if recorder is not None:
                recorder.add(self._replayed, (q, *paged_kv_cache), {}, result, host=True)
        return result

    def _replayed(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty_like(q)
        self._run(q, (keys, values), out)
        return out

    def _run(self, q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor) -> None:
        plan = self._planned
        if plan is None:
            raise StandInError("run before plan")
        need(q.shape[1:] == (plan.heads, plan.head_dim) and q.is_contiguous(), "q is (rows, heads, d), contiguous")
        need(q.dtype == plan.dtype and cache[0].dtype == plan.dtype, "dtypes are those of the plan")
        need(len(q) == int(self._queries[self._batch]), "rows are those of the plan")
        slots = []
        for part in cache:
            need(part.ndim == 4 and part.is_contiguous(), "caches are (pages, page, heads, d), contiguous")
            need(part.shape[1:] == (plan.page, plan.key_heads, plan.head_dim), "pages are those of the plan")
        for request in range(self._batch):
            pages = self._indices[self._pages[request] : self._pages[request + 1]].long()
            need(bool((pages < len(cache[0])).all()), "a page beyond the cache")
            length = (len(pages) - 1) * plan.page + int(self._last[request])
            own = (pages[:, None] * plan.page + torch.arange(plan.page)).flatten()[:length]
            slots.append(own)
            first, last = int(self._queries[request]), int(self._queries[request + 1])
            keys, values = (part.flatten(0, 1)[own] for part in cache)
            allowed = None
            if plan.causal:
                allowed = torch.ones(last - first, length, dtype=torch.bool).tril(length - (last - first))
            out[first:last] = attention(q[first:last], keys, values, plan.scale, allowed)
        for part in cache:
            check_reach(self.device, part, torch.cat(slots))


def fake_flashinfer(device: FakeDevice, *extra_dtypes: torch.dtype) -> SimpleNamespace:
    """The module `flashinfer`; `extra_dtypes` have a kernel here alone, to compare answers without rounding."""
    attributes = {"device": device, "dtypes": (*FakeWrapper.dtypes, *extra_dtypes), "plans": 0}
    return SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=type("Wrapper", (FakeWrapper,), attributes))


def fake_torch_npu(device: FakeDevice, *extra_dtypes: torch.dtype) -> SimpleNamespace:
    """The module `torch_npu`; see `fake_flashinfer`."""
    dtypes = (torch.float16, torch.bfloat16, *extra_dtypes)

    def compute(
        query: Tensor, key: Tensor, value: Tensor, *, actual_seq_lengths: list[int], actual_seq_lengths_kv: list[int],
        block_table: Tensor | None, block_size: int, num_heads: int, num_key_value_heads: int, scale: float,
        input_layout: str, sparse_mode: int, atten_mask: Tensor | None, pre_tokens: int, next_tokens: int,
    ) -> Tensor:
        need(input_layout == "TND", f"no stand-in for the layout {input_layout}")
        need(query.ndim == 3 and query.shape[1] == num_heads, "query is (T, N, D)")
        need(query.is_contiguous(), "query is contiguous")
        need(query.dtype in dtypes and key.dtype == value.dtype == query.dtype, f"no kernel for {query.dtype}")
        for lengths in (actual_seq_lengths, actual_seq_lengths_kv):
            need(isinstance(lengths, list) and all(type(length) is int for length in lengths), "lengths are host ints")
        need(len(actual_seq_lengths) == len(actual_seq_lengths_kv), "a length of keys for each request")
        steps = [after - before for before, after in zip([0, *actual_seq_lengths], actual_seq_lengths, strict=False)]
        need(all(step > 0 for step in steps) and actual_seq_lengths[-1] == len(query), "TND lengths are cumulative")
        if block_table is None:
            raise StandInError("no stand-in for keys without pages")
        need(block_size % 16 == 0, "pages are multiples of 16")
        need(block_table.dtype == torch.int32 and block_table.is_contiguous(), "block_table is int32, contiguous")
        need(len(block_table) == len(actual_seq_lengths), "a row of pages for each request")
        head_dim = query.shape[-1]
        for part in (key, value):
            need(part.ndim == 3 and part.is_contiguous(), "pages are (pages, page, heads * d), contiguous")
            need(part.shape[1:] == (block_size, num_key_value_heads * head_dim), "pages are (pages, page, heads * d)")
        need(sparse_mode == 0, f"sparse_mode {sparse_mode} hides by itself")
        need(pre_tokens == next_tokens == INT_MAX, "pre_tokens and next_tokens hide by themselves")
        need(atten_mask is None or atten_mask.dtype in (torch.bool, torch.int8, torch.uint8), "a mask is boolean")
        out, slots = torch.empty_like(query), []
        for request, last in enumerate(actual_seq_lengths):
            first, length = last - steps[request], actual_seq_lengths_kv[request]
            need(length <= block_table.shape[1] * block_size, "more keys than pages")
            pages = block_table[request].long()[: -(-length // block_size), None]
            own = (pages * block_size + torch.arange(block_size)).flatten()[:length]
            slots.append(own)
            keys, values = (part.flatten(0, 1)[own].view(length, -1, head_dim) for part in (key, value))
            allowed = None if atten_mask is None else ~atten_mask.bool()[: last - first, :length]
            out[first:last] = attention(query[first:last], keys, values, scale, allowed)
        for part in (key, value):
            check_reach(device, part, torch.cat(slots))
        return out

    def npu_fused_infer_attention_score(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        with device.library_call() as recorder:
            out = compute(query, key, value, **options)
            if recorder is not None:
                recorder.add(compute, (query, key, value), options, out, host=True)
        return out, out

    return SimpleNamespace(npu_fused_infer_attention_score=npu_fused_infer_attention_score)
