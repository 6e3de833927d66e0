"""Ascend: graphs of PyTorch's NPU plug-in, with its fused attention.

It takes lengths as host integers, which are part of a graph until it is updated. They change once a block. The update
itself is due at every replay (`DeviceOps`), and only once the replay before is over, so the host waits for every step.
It has no kernel for float32, which gets PyTorch's own attention instead.
"""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends.device_ops import DeviceOps, Graph
from wamdiff2_core.model.backends.graphed import BUCKET, Attention, GraphedBackend, SdpaAttention, Step, StepShape

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

DTYPES = (torch.float16, torch.bfloat16)
PAGE = 128  # columns; the kernel takes multiples of 16
NO_LIMIT = 2**31 - 1


class FusedAttention:
    """`npu_fused_infer_attention_score` on paged keys, without a mask.

    Sparse mode 0 with no mask is full attention; any mask would hide, as True means hidden here. Tokens of all rows
    stand one after the other (TND), so query lengths are cumulative; lengths of paged keys are each row's own.
    """

    host_lengths = True
    host_values = True

    def __init__(
        self, library: Any, heads: int, key_heads: int, head_dim: int, device: torch.device, page: int
    ) -> None:
        """Take the sizes of the model, columns of a page, and the library, which is the module `torch_npu`."""
        self._library, self._heads, self._key_heads, self._head_dim = library, heads, key_heads, head_dim
        self._device, self._page = device, page
        self._tables: dict[StepShape, Tensor] = {}
        self._lengths: dict[StepShape, list[int]] = {}

    def begin(self, step: Step) -> None:
        """Nothing is shared."""

    def plan(self, shape: StepShape, lengths: tuple[tuple[int, ...], ...]) -> None:
        """See `Attention.plan`."""
        if shape not in self._tables:
            row = torch.arange(shape.rows).repeat_interleave(len(shape.parts))[:, None] * (shape.capacity // self._page)
            table = row + torch.arange(shape.columns // self._page)
            self._tables[shape] = table.to(self._device, torch.int32)
        self._lengths[shape] = [length for parts in lengths for length in parts]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        """See `Attention.attend`."""
        shape = step.shape
        keys, values = (part.view(-1, self._page, self._key_heads * self._head_dim) for part in (keys, values))
        out: Tensor = self._library.npu_fused_infer_attention_score(
            query.flatten(0, 1), keys, values, actual_seq_lengths=list(accumulate(shape.parts * shape.rows)),
            actual_seq_lengths_kv=list(self._lengths[shape]), block_table=self._tables[shape], block_size=self._page,
            num_heads=self._heads, num_key_value_heads=self._key_heads, scale=self._head_dim**-0.5,
            input_layout="TND", sparse_mode=0, atten_mask=None, pre_tokens=NO_LIMIT, next_tokens=NO_LIMIT,
        )[0]
        return out.view(shape.rows, shape.count, -1)

    def before_replay(self, ops: DeviceOps, graph: Graph, shape: StepShape) -> None:
        """See `Attention.before_replay`."""
        ops.update(graph, {"actual_seq_lengths_kv": self._lengths[shape]})


class NpuBackend(GraphedBackend):
    """Graphs with the fused attention."""

    name = "npu"
    ahead = 0

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, ops: DeviceOps | None = None, library: Any = None,
        page: int = PAGE,
    ) -> None:
        """Take a stock model on an Ascend device.

        Args:
            model: its weights must stay where they are.
            ops: of its device; found when not given.
            library: the module `torch_npu`; imported when not given.
            page: columns of a page of keys, a multiple of 16 that divides `BUCKET`.

        Raises:
            UserError: the attention has no such page.
        """
        config = model.config.get_text_config()
        heads = config.num_attention_heads, config.num_key_value_heads
        if page % 16 or BUCKET % page:
            raise UserError("page", f"a multiple of 16 that divides {BUCKET}", page)
        attention: Attention = SdpaAttention(*heads)
        if model.dtype in DTYPES:
            library = library or import_module("torch_npu")
            attention = FusedAttention(library, *heads, config.head_dim, model.device, page)
        super().__init__(model, ops or DeviceOps(model.device), attention)
