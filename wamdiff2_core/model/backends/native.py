"""The kernels of `native.c`: compiled for this machine when they are first asked for, and kept on disk.

Without a C compiler there are none, and callers do without. A compiled file belongs to its source, compiler and kind
of processor, so a home folder may be shared between machines.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wamdiff2_core.model.backends.packed import Seen, TextEngine
from wamdiff2_core.outputs import cache_folder

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
NO_NATIVE = "WAMDIFF2_NO_NATIVE"  # environment variable: do without compiled kernels
COMPILE_SECONDS = 300
log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The compiled kernels; None, and a line in the log, where they cannot be had."""
    if os.environ.get(NO_NATIVE):
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler: the cpu backend runs on PyTorch's operators, which is slower")
        return None
    try:
        return Kernels(ctypes.CDLL(str(compiled(compiler))))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        log.warning("kernels of the cpu backend cannot be compiled, PyTorch's operators are slower: %s", detail.strip())
        return None


def compiled(compiler: str) -> Path:
    """The shared library, compiled now if it has not been before.

    Raises:
        OSError: the compiler cannot be run, or the folder not be written.
        SubprocessError: it fails.
    """
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    parts = SOURCE.read_text(), version, " ".join(FLAGS), _processor()
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = cache_folder()
    library = folder / f"native-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            subprocess.run([compiler, *FLAGS, "-o", str(made), str(SOURCE), "-lm"], capture_output=True, text=True,
                           check=True, timeout=COMPILE_SECONDS)
            made.replace(library)  # processes that compile at the same time do not see half of it
    return library


def _processor() -> str:
    """What `-march=native` depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    told = {line.partition(":")[0].strip(): line for line in lines}
    return "\n".join([platform.machine(), *(told.get(key, "") for key in ("flags", "Features", "model name"))])


class _Layer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (
        "qkv", "out", "gate_up", "down", "qkv_bias", "out_bias", "query_norm", "key_norm", "norm_in", "norm_mlp",
        "keys", "values",
    )]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "key_heads", "head_dim", "inner", "half")),
        ("eps", ctypes.c_float), ("layer", ctypes.POINTER(_Layer)), ("norm", ctypes.c_void_p),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "count", "start", "capacity")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "low", "high", "read", "all")), ("reads", ctypes.c_int64),
        ("slots", ctypes.c_void_p), ("slot_count", ctypes.c_int64), ("levels", ctypes.c_int64),
        ("deepstack", ctypes.c_void_p),
    ]


class Kernels:
    """The library's functions with their types.

    Attributes:
        panel: outputs of a panel of weights, and columns of a panel of keys.
        tile: rows that are multiplied at a time.
        pair: neighbouring inputs that lie side by side in weights in bfloat16: 2 where the processor multiplies such
            pairs, else 1.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the loaded library."""
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self.forward, self.pick, self.scratch = (
            library.wamdiff2_forward, library.wamdiff2_pick, library.wamdiff2_scratch
        )
        for counted in (library.wamdiff2_panel, library.wamdiff2_tile, library.wamdiff2_pair, self.scratch):
            counted.restype = number
        self.forward.argtypes = [ctypes.POINTER(_Model), ctypes.POINTER(_Step), pointer, pointer, pointer, number]
        self.scratch.argtypes = [ctypes.POINTER(_Model), number, number, number]
        self.pick.argtypes = [
            pointer, number, number, number, pointer, pointer, number, number, pointer, pointer, pointer, pointer,
            pointer, number,
        ]
        self.forward.restype = self.pick.restype = None
        self.panel, self.tile = int(library.wamdiff2_panel()), int(library.wamdiff2_tile())
        self.pair = int(library.wamdiff2_pair())

    def panels(self, weight: Tensor) -> Tensor:
        """(outputs, inputs) as (outputs / panel rounded up, inputs, panel), weights in bfloat16 with `pair` neighbours
        behind each other; what is missing is zero, as is an input that makes up a pair."""
        dtype = held_in(weight)
        pair = self.pair if dtype == torch.bfloat16 else 1
        outputs, inputs = weight.shape
        count, whole, steps = -(-outputs // self.panel), outputs // self.panel, -(-inputs // pair)
        if steps * pair > inputs:
            weight = torch.nn.functional.pad(weight, (0, steps * pair - inputs))
        packed = torch.zeros(count, steps, self.panel, pair, dtype=dtype)
        packed[:whole] = weight[: whole * self.panel].view(whole, self.panel, steps, pair).transpose(1, 2)
        if whole < count:
            rest = weight[whole * self.panel :].view(-1, steps, pair).transpose(0, 1)
            packed[whole, :, : outputs - whole * self.panel] = rest
        return packed


def held_in(weight: Tensor) -> torch.dtype:
    """bfloat16 for weights in it, float32 for all others."""
    return torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32


class NativeText(TextEngine):
    """Layers by the compiled kernels; in float32."""

    def __init__(self, text: Any, library: Kernels) -> None:
        """Take a stock `Qwen3VLTextModel`; its weights are copied."""
        super().__init__(text)
        config = text.config
        self._library = library
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.layers = config.num_hidden_layers
        self._embedding: Tensor = text.embed_tokens.weight.detach()
        self._kept: list[Tensor] = []  # what the structures point at
        self._layers = (_Layer * self.layers)()
        for own, layer in zip(self._layers, text.layers, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            three = attention.q_proj, attention.k_proj, attention.v_proj
            own.qkv = self._packed(*(one.weight for one in three))
            own.out, own.down = self._packed(attention.o_proj.weight), self._packed(mlp.down_proj.weight)
            own.gate_up = self._packed(mlp.gate_proj.weight, mlp.up_proj.weight)
            if attention.q_proj.bias is not None:
                own.qkv_bias = self._plain(torch.cat([one.bias.detach() for one in three]))
            if attention.o_proj.bias is not None:
                own.out_bias = self._plain(attention.o_proj.bias)
            own.query_norm, own.key_norm = self._plain(attention.q_norm.weight), self._plain(attention.k_norm.weight)
            own.norm_in = self._plain(layer.input_layernorm.weight)
            own.norm_mlp = self._plain(layer.post_attention_layernorm.weight)
        self._model = _Model(
            self.layers, config.hidden_size, self.heads, self.key_heads, self.head_dim, config.intermediate_size,
            int(held_in(self._embedding) == torch.bfloat16), config.rms_norm_eps, self._layers,
            self._plain(text.norm.weight),
        )
        self._keys, self._values = torch.empty(0, 0, 0), torch.empty(0)
        self._capacity = self._rows = 0
        self._scratch, self._all = torch.empty(0), torch.empty(0, dtype=torch.int32)

    def _make_room(self, rows: int, columns: int, kept: int) -> None:
        if rows != self._rows or columns > self._capacity:
            panel = self._library.panel
            old = self._in_panels() if kept else None
            self._rows, self._capacity = rows, -(-columns // panel) * panel
            wide = -(-self.head_dim // panel) * panel
            one = self.layers, rows, self.key_heads, self._capacity
            self._take_cache(torch.empty(*one, self.head_dim), torch.empty(*one, wide))
            if old is not None:
                (keys, values), (old_keys, old_values) = self._in_panels(), old
                keys[:, :, :, : old_keys.shape[3]] = old_keys
                values[..., : old_values.shape[4], :] = old_values

    def _take_cache(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values
        for index, own in enumerate(self._layers):
            own.keys, own.values = keys[index].data_ptr(), values[index].data_ptr()

    def _spread_cache(self, copies: int) -> None:
        self._rows *= copies
        self._take_cache(self._keys.repeat_interleave(copies, 1), self._values.repeat_interleave(copies, 1))

    def embed(self, ids: Tensor) -> Tensor:
        """See `TextEngine.embed`."""
        return torch.nn.functional.embedding(ids, self._embedding).float()

    def run(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], start: int, seen: Seen, read: Tensor,
        image_slots: Tensor | None = None, deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """See `TextEngine.run`."""
        rows, count, width = hidden.shape
        tokens, threads = rows * count, torch.get_num_threads()
        cos, sin = (table.contiguous() for table in rotary)
        reads = read.to(torch.int32)
        if tokens > len(self._all):
            self._all = torch.arange(tokens, dtype=torch.int32)
        out = torch.empty(len(read), width)
        slots = torch.empty(0, dtype=torch.int32)
        if image_slots is not None:
            slots = image_slots.reshape(-1).nonzero()[:, 0].to(torch.int32)
        levels = [level.float().contiguous() for level in deepstack]
        addresses = (ctypes.c_void_p * max(len(levels), 1))(*(level.data_ptr() for level in levels))
        need = self._library.scratch(self._model, tokens, self._capacity, threads)
        if need > len(self._scratch):
            self._scratch = torch.empty(need)
        step = _Step(
            rows, count, start, self._capacity, cos.data_ptr(), sin.data_ptr(), seen.low.data_ptr(),
            seen.high.data_ptr(), reads.data_ptr(), self._all.data_ptr(), len(read), slots.data_ptr(), len(slots),
            len(levels), ctypes.addressof(addresses),
        )
        self._library.forward(self._model, step, hidden.data_ptr(), out.data_ptr(), self._scratch.data_ptr(), threads)
        return out

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        keys, values = self._in_panels()
        keys, values = keys.transpose(-1, -2).flatten(3, 4), values.transpose(3, 4).flatten(4)
        return [
            (k[:, :, first:last], v[:, :, first:last, : self.head_dim]) for k, v in zip(keys, values, strict=True)
        ]

    def _in_panels(self) -> tuple[Tensor, Tensor]:
        """The cache: keys (layers, N, Hkv, columns / NR, d, NR), values (layers, N, Hkv, d / NR, columns, NR)."""
        one, panel = (self.layers, self._rows, self.key_heads, -1), self._library.panel
        return self._keys.view(*one, self.head_dim, panel), self._values.view(*one, self._capacity, panel)

    def _packed(self, *weights: Tensor) -> int:
        joined = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
        return self._keep(self._library.panels(joined))

    def _plain(self, weight: Tensor) -> int:
        return self._keep(weight.detach().float().contiguous())

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


class NativeHead:
    """The head: the best token of a row and its probability, without the logits of a vocabulary ever being written."""

    CHUNK = 16 * 32  # logits a row at a time, at the most

    def __init__(self, head: Any, library: Kernels) -> None:
        """Take the stock `lm_head`."""
        self._library = library
        self.vocabulary, self.hidden = head.weight.shape
        self._panels = library.panels(head.weight.detach())
        self._bias = None if head.bias is None else head.bias.detach().float().contiguous()

    def pick(self, rows: Tensor, banned: int) -> tuple[Tensor, Tensor]:
        """Best token (rows,) and its probability (rows,) among all but `banned`, of (rows, D) hidden states."""
        rows = rows.float()
        count, threads = len(rows), torch.get_num_threads()
        tops, totals = torch.empty(2, threads, count)
        ids = torch.empty(threads, count, dtype=torch.long)
        buffer = torch.empty(threads * count * self.CHUNK)
        tile = self._library.tile
        tiles = torch.empty(-(-count // tile) * tile * (self.hidden + self.hidden % 2))
        self._library.pick(
            self._panels.data_ptr(), int(self._panels.dtype == torch.bfloat16), self.vocabulary, self.hidden,
            None if self._bias is None else self._bias.data_ptr(), rows.data_ptr(), count, banned, tops.data_ptr(),
            totals.data_ptr(), ids.data_ptr(), buffer.data_ptr(), tiles.data_ptr(), threads,
        )
        if threads == 1:
            return ids[0], 1 / totals[0]
        best, part = tops.max(0)  # parts are in the order of ids: the first of equals has the lowest id
        total = (totals * (tops - best).exp_()).sum(0)
        return ids.gather(0, part[None])[0], 1 / total
