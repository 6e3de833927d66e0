"""Which accelerator is found, with a stand-in for `torch_npu` and for what it registers."""

from __future__ import annotations

import sys

import pytest
import torch

from wamdiff2_core.cli.doctor import accelerators
from wamdiff2_core.cli.predict import checked_device, device_of
from wamdiff2_core.errors import UserError
from wamdiff2_core.model import devices

REGISTERS = """
import torch
from types import SimpleNamespace
torch.npu = SimpleNamespace(
    is_available=lambda: {count} > 0, device_count=lambda: {count}, get_device_name=lambda index: "Ascend910B"
)
"""


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a module `torch_npu` of that text on the path."""
    monkeypatch.setattr(torch, "npu", None, raising=False)  # what is registered goes away with the test
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "torch_npu.py").write_text(text)

    yield write
    sys.modules.pop("torch_npu", None)


def cuda_of(monkeypatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")


def test_an_ascend_device_is_found_and_processes_spread_over_several(no_cuda, install):
    install(REGISTERS.format(count=2))
    assert "torch_npu" not in sys.modules
    assert [device_of("auto", rank) for rank in range(3)] == ["npu:0", "npu:1", "npu:0"]
    assert device_of("npu", 1) == "npu:1"
    assert checked_device("auto", "npu") == "npu:0"
    with pytest.raises(UserError, match="one that runs on npu"):
        checked_device("auto", "cuda")
    found = accelerators()
    assert (found.status, found.detail) == ("ok", "npu:0 Ascend910B, npu:1 Ascend910B")


def test_cuda_comes_before_npu(monkeypatch, install):
    install(REGISTERS.format(count=1))
    cuda_of(monkeypatch, 1)
    assert device_of("auto", 3) == "cuda:0"
    assert "torch_npu" not in sys.modules
    assert devices.find_accelerator(("npu",)) == "npu"
    assert accelerators().detail == "cuda:0 H200, npu:0 Ascend910B"


def test_without_torch_npu_nothing_is_imported(no_cuda, monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    monkeypatch.setattr(devices, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert device_of("auto", 0) == "cpu"
    assert devices.find_accelerator() is None
    with pytest.raises(UserError, match="device: expected a device of this machine"):
        device_of("npu", 0)


def test_a_library_without_a_device_is_told(no_cuda, install):
    install(REGISTERS.format(count=0))
    assert device_of("auto", 0) == "cpu"
    found = accelerators()
    assert found.status == "absent"
    assert "torch-npu is installed, but sees no Ascend device" in found.detail


def test_a_library_that_does_not_import_leaves_the_cpu_and_is_told(no_cuda, install, caplog):
    install("raise OSError('libascendcl.so: cannot open shared object file')")
    assert device_of("auto", 0) == "cpu"
    assert "libascendcl.so" in caplog.text
    found = accelerators()
    assert found.status == "broken"
    assert "libascendcl.so" in found.detail
