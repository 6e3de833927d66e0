"""CUDA: one graph for each number of rows, tokens and committed tokens, and bucket of columns.

`CudaBackend` needs nothing but PyTorch. `FlashInferBackend` replaces its attention by FlashInfer's paged one, which
reads what a row has instead of a whole bucket, and wants to be told the lengths once a block.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends.device_ops import DeviceOps, Graph
from wamdiff2_core.model.backends.graphed import BUCKET, GraphedBackend, SdpaAttention, Step, StepShape

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

FLASHINFER_DTYPES = (torch.float16, torch.bfloat16)
FLASHINFER_HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 128 << 20
ODD_PAGE = 16  # columns of a page when the block does not divide a bucket


class CudaBackend(GraphedBackend):
    """Graphs with PyTorch's attention."""

    name = "cuda"

    def __init__(self, model: Qwen3VLForConditionalGeneration, ops: DeviceOps | None = None) -> None:
        """Take a stock model on a CUDA device.

        Args:
            model: its weights must stay where they are.
            ops: of its device; found when not given.
        """
        config = model.config.get_text_config()
        attention = SdpaAttention(config.num_attention_heads, config.num_key_value_heads)
        super().__init__(model, ops or DeviceOps(model.device), attention)


@dataclass
class _Plan:
    """A wrapper made for one shape, the pages it counts in, and the lengths that it was told last."""

    wrapper: Any
    page: int
    lengths: tuple[tuple[int, ...], ...] = ()


class FlashInferAttention:
    """Paged attention, planned once a block; the finished block and the others are two requests on the same pages.

    The backend is fixed to fa2: fa3 neither splits keys nor packs query heads, and leaves most of the device idle at
    these sizes. No buffer for a custom mask is ever given, as a wrapper that has one masks by it. Splitting of keys
    stays on, as without it a replay reads plan entries that were not written.
    """

    host_lengths = True
    host_values = False

    def __init__(self, library: Any, heads: int, key_heads: int, head_dim: int, dtype: torch.dtype,
                 device: torch.device) -> None:
        """Take the sizes of the model and the library, which is the module `flashinfer`."""
        self._library, self._heads, self._key_heads, self._head_dim = library, heads, key_heads, head_dim
        self._dtype, self._device = dtype, device
        self._workspace: Tensor | None = None
        self._plans: dict[StepShape, _Plan] = {}

    def begin(self, step: Step) -> None:
        """Nothing is shared."""

    def plan(self, shape: StepShape, lengths: tuple[tuple[int, ...], ...]) -> None:
        """See `Attention.plan`; index tensors stay on the host, where the planner wants them."""
        if shape not in self._plans:
            self._plans[shape] = self._make(shape)
        plan = self._plans[shape]
        if plan.lengths == lengths:
            return
        page, pages = plan.page, shape.capacity // plan.page
        seen = [(row, length) for row, parts in enumerate(lengths) for length in parts]
        used = [-(-length // page) for _, length in seen]
        indices = [row * pages + index for (row, _), count in zip(seen, used, strict=True) for index in range(count)]
        options: dict[str, Any] = {}
        if "uniform_q_len" in inspect.signature(plan.wrapper.plan).parameters:
            options["uniform_q_len"] = shape.parts[-1]
        plan.wrapper.plan(
            _host([0, *accumulate(shape.parts * shape.rows)]), _host([0, *accumulate(used)]), _host(indices),
            _host([(length - 1) % page + 1 for _, length in seen]), num_qo_heads=self._heads,
            num_kv_heads=self._key_heads, head_dim_qk=self._head_dim, page_size=page, causal=False,
            sm_scale=self._head_dim**-0.5, q_data_type=self._dtype, kv_data_type=self._dtype, non_blocking=True,
            **options,
        )
        plan.lengths = lengths

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        """See `Attention.attend`."""
        plan = self._plans[step.shape]
        paged = tuple(part.view(-1, plan.page, self._key_heads, self._head_dim) for part in (keys, values))
        out: Tensor = plan.wrapper.run(query.flatten(0, 1), paged)
        return out.view(step.shape.rows, step.shape.count, -1)

    def before_replay(self, ops: DeviceOps, graph: Graph, shape: StepShape) -> None:
        """Nothing: the plan is in memory that the graph reads."""

    def _make(self, shape: StepShape) -> _Plan:
        if self._workspace is None:
            self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        size = shape.parts[-1]
        page = size if size > 1 and BUCKET % size == 0 else ODD_PAGE
        requests = shape.rows * len(shape.parts)

        def buffer(length: int) -> Tensor:
            return torch.zeros(length, dtype=torch.int32, device=self._device)

        wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_cuda_graph=True, qo_indptr_buf=buffer(requests + 1),
            paged_kv_indptr_buf=buffer(requests + 1), paged_kv_indices_buf=buffer(requests * shape.columns // page),
            paged_kv_last_page_len_buf=buffer(requests), backend="fa2",
        )
        return _Plan(wrapper, page)


class FlashInferBackend(GraphedBackend):
    """Graphs with FlashInfer's attention."""

    name = "cuda-flashinfer"

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, ops: DeviceOps | None = None, library: Any = None
    ) -> None:
        """Take a stock model on a CUDA device.

        Args:
            model: its weights must stay where they are.
            ops: of its device; found when not given.
            library: the module `flashinfer`; imported when not given.

        Raises:
            UserError: it is not installed, or has no kernel for such a model.
        """
        config = model.config.get_text_config()
        if model.dtype not in FLASHINFER_DTYPES:
            raise UserError("dtype", "float16 or bfloat16 with the backend cuda-flashinfer",
                            str(model.dtype).removeprefix("torch."), "set the dtype, or choose the backend cuda")
        if config.head_dim not in FLASHINFER_HEAD_DIMS:
            raise UserError("backend", f"a model with head_dim among {FLASHINFER_HEAD_DIMS}", config.head_dim,
                            "choose the backend cuda")
        if library is None:
            try:
                library = import_module("flashinfer")  # takes many seconds, so never before it is wanted
            except ImportError:
                raise UserError("backend", "flashinfer, for the backend cuda-flashinfer", "it is not installed",
                                "pip install 'wamdiff2[cuda]', or choose the backend cuda") from None
        attention = FlashInferAttention(
            library, config.num_attention_heads, config.num_key_value_heads, config.head_dim, model.dtype, model.device
        )
        super().__init__(model, ops or DeviceOps(model.device), attention)


def _host(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)
