"""Accelerators of this machine, through torch."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

ACCELERATORS = ("cuda", "npu")  # in the order in which `--device auto` looks for them
_NPU_MODULE = "torch_npu"


def accelerator_module(kind: str) -> Any | None:
    """`torch.cuda` or `torch.npu`, when a device of that kind is here.

    `torch_npu`, which registers `torch.npu`, is imported only where it is installed. Where it does not import, there is
    no such device, and a line in the log says why.

    Args:
        kind: of `ACCELERATORS`.
    """
    import torch

    if kind == "npu" and not registered_npu():
        return None
    module = getattr(torch, kind)
    return module if module.is_available() else None


def registered_npu() -> bool:
    """See to it that `torch.npu` is there, if it can be; whether it is."""
    if find_spec(_NPU_MODULE) is None:
        return False
    try:
        import_module(_NPU_MODULE)
    except Exception as error:  # it loads the vendor's libraries, and whatever these raise is the reason
        logging.getLogger(__name__).warning(
            "torch-npu is installed, but does not import: %s: %s", type(error).__name__, error
        )
        return False
    return True


def find_accelerator(kinds: tuple[str, ...] = ACCELERATORS) -> str | None:
    """The first of these kinds that is here; None when there is none."""
    return next((kind for kind in kinds if accelerator_module(kind) is not None), None)
