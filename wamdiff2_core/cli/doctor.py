"""`wamdiff2 doctor`: what this machine and this environment can run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from wamdiff2_core.errors import ExitCode

Status = Literal["ok", "absent", "broken"]
STYLES = {"ok": "green", "absent": "yellow", "broken": "bold red"}
SPEED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Finding:
    """One row: what was looked at, how it stands, and what that means for the user."""

    subject: str
    status: Status
    detail: str


def doctor() -> int:
    """Show what is installed and what works here; exit code 1 when something needed is broken."""
    findings = examine()
    table = Table("part", "status", "detail", title="wamdiff2 doctor", title_justify="left")
    for finding in findings:
        table.add_row(finding.subject, f"[{STYLES[finding.status]}]{finding.status}[/]", finding.detail)
    Console().print(table)
    broken = [finding.subject for finding in findings if finding.status == "broken"]
    Console().print(f"broken: {', '.join(broken)}" if broken else "all that is installed works", highlight=False)
    return int(ExitCode.FAILED_ITEMS if broken else ExitCode.DONE)


def examine() -> list[Finding]:
    """Every finding, in the order of the table."""
    return [
        Finding("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Finding("machine", "ok", f"{os.cpu_count()} cores, {platform.machine()}, {speed_flags()}"),
        importable("torch", "needed by every model", required=True),
        importable("transformers", "needed by every model", required=True, attribute="Qwen3VLForConditionalGeneration"),
        no_torchvision(),
        accelerators(),
        importable("rclpy", "ROS node and bridge: pip install 'wamdiff2[ros]'", distribution="ros-rclpy"),
        importable("wamdiff2.msg", "messages: make setup, or colcon build", distribution="wamdiff2"),
        importable("carla", "closed loop: pip install 'wamdiff2[carla]'"),
        importable("accelerate", "training: pip install 'wamdiff2[train]'"),
        commands(),
        tool("cmake", "builds the messages"),
        tool("g++", "builds the messages"),
        cpu_kernels(),
    ]


def importable(
    module: str, purpose: str, *, required: bool = False, distribution: str = "", attribute: str = ""
) -> Finding:
    """Whether a module is there and imports.

    Args:
        module: dotted name.
        purpose: shown when it is absent.
        required: absent counts as broken.
        distribution: its name among installed distributions, when that is not the module's.
        attribute: must be found in the module too.
    """
    name = distribution or module
    try:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(module)
    except ModuleNotFoundError:
        return Finding(module, "broken" if required else "absent", purpose)
    try:
        loaded = importlib.import_module(module)
        if attribute:
            getattr(loaded, attribute)
    except Exception as error:  # whatever an import raises is the finding
        return Finding(module, "broken", f"{type(error).__name__}: {error}")
    try:
        return Finding(module, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(module, "ok", str(getattr(loaded, "__file__", "")))


def no_torchvision() -> Finding:
    """torchvision, when present, breaks beside a CPU torch and changes how transformers resizes images."""
    if importlib.util.find_spec("torchvision") is None:
        return Finding("torchvision", "ok", "absent, as it must be")
    return Finding("torchvision", "broken", "expected to be absent; pip uninstall torchvision")


def accelerators() -> Finding:
    """GPUs and NPUs that torch sees."""
    from wamdiff2_core.model.devices import ACCELERATORS, accelerator_module

    if importable("torch", "").status != "ok":
        return Finding("accelerators", "absent", "no torch")
    installed = importlib.util.find_spec("torch_npu") is not None
    if installed:
        npu = importable("torch_npu", "")
        if npu.status == "broken":
            return Finding("accelerators", "broken", f"torch-npu does not import: {npu.detail}")
    modules = {kind: accelerator_module(kind) for kind in ACCELERATORS}
    names = [
        f"{kind}:{index} {module.get_device_name(index)}"
        for kind, module in modules.items() if module is not None for index in range(module.device_count())
    ]
    if names:
        return Finding("accelerators", "ok", ", ".join(names))
    ascend = " torch-npu is installed, but sees no Ascend device;" if installed else ""
    return Finding("accelerators", "absent", f"no CUDA device in sight;{ascend} models run on the CPU")


def cpu_kernels() -> Finding:
    """Kernels of the cpu backend, which are compiled now if they have not been before."""
    try:
        from wamdiff2_core.model.backends import native
        from wamdiff2_core.outputs import cache_folder
    except ImportError:
        return Finding("cpu kernels", "absent", "no torch")
    if native.kernels() is None:
        slower = "models on the CPU run on PyTorch's operators, which is slower"
        return Finding("cpu kernels", "absent", f"no C compiler, or it fails: {slower}")
    return Finding("cpu kernels", "ok", f"compiled, in {cache_folder()}")


def commands() -> Finding:
    """Whether every registered command can be loaded; one that only lacks an extra is not broken."""
    from wamdiff2_core.cli.main import ENTRY_POINT_GROUP, extra_of

    failures = []
    entries = metadata.entry_points(group=ENTRY_POINT_GROUP)
    for entry in entries:
        try:
            entry.load()
        except Exception as error:  # whatever a command raises at import is the finding
            if isinstance(error, ModuleNotFoundError) and extra_of(error):
                continue
            failures.append(f"{entry.name}: {type(error).__name__}: {error}")
    if failures:
        return Finding("commands", "broken", "; ".join(failures))
    return Finding("commands", "ok", ", ".join(sorted(entry.name for entry in entries)))


def tool(program: str, purpose: str) -> Finding:
    """Whether a program is on the path."""
    path = shutil.which(program)
    return Finding(program, "ok" if path else "absent", path or purpose)


def speed_flags() -> str:
    """CPU features that decide the speed of a CPU model."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return " ".join(flag for flag in SPEED_FLAGS if flag in line.split()) or "no known vector extensions"
