"""Backends by name, and the one that suits a device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.model.backends.backend import Backend, Batch, step_mask

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3VLForConditionalGeneration

__all__ = ["AUTO", "BACKENDS", "Backend", "Batch", "choose_backend", "make_backend", "step_mask"]

AUTO = "auto"
# name: device type it is for, None for all; module and class, loaded when it is asked for
_BACKENDS: dict[str, tuple[str | None, str, str]] = {
    "eager": (None, "wamdiff2_core.model.backends.eager", "EagerBackend"),
    "cpu": ("cpu", "wamdiff2_core.model.backends.cpu", "CpuBackend"),
    "cuda": ("cuda", "wamdiff2_core.model.backends.cuda", "CudaBackend"),
    "cuda-flashinfer": ("cuda", "wamdiff2_core.model.backends.cuda", "FlashInferBackend"),
    "npu": ("npu", "wamdiff2_core.model.backends.npu", "NpuBackend"),
}
BACKENDS = tuple(_BACKENDS)


def choose_backend(name: str, device: str | torch.device) -> str:
    """The backend's name, `auto` resolved: the one made for the device, or else `eager`.

    Args:
        name: of `BACKENDS`, or `auto`.
        device: where the model is, or will be.

    Raises:
        UserError: no such backend, or it is for another kind of device.
    """
    kind = str(device).partition(":")[0]
    if name == AUTO:
        return next((own for own, (where, *_) in _BACKENDS.items() if where == kind), "eager")
    check_backend(name)
    where = _BACKENDS[name][0]
    if where not in (None, kind):
        fitting = ", ".join([AUTO, *(other for other, (runs_on, *_) in _BACKENDS.items() if runs_on in (None, kind))])
        raise UserError("backend", f"one that runs on {kind}: {fitting}", name,
                        f"choose one of these, or run on a {where} device")
    return name


def check_backend(name: str) -> None:
    """Raise `UserError` when there is no backend of that name."""
    known = (AUTO, *BACKENDS)
    if name not in known:
        raise unknown_name("backend", name, known)


def make_backend(name: str, model: Qwen3VLForConditionalGeneration) -> Backend:
    """A backend for a stock model in evaluation mode, where the model is.

    Args:
        name: of `BACKENDS`, or `auto`.
        model: stock Qwen3-VL; `eager` reads its weights at every call, the others once, now.

    Raises:
        UserError: see `choose_backend`; or the backend lacks something on this machine, which the error names.
    """
    _, module, cls = _BACKENDS[choose_backend(name, model.device)]
    backend: Backend = getattr(import_module(module), cls)(model)
    return backend
