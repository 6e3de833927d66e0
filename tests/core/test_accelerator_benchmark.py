"""`benchmarks/accelerator.sh` where there is no accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import accelerator

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = {"cuda", "cuda-flashinfer", "npu"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_dry_run_writes_every_key(tmp_path, nano_folder):
    file = tmp_path / "out.json"
    done = subprocess.run(
        [ROOT / "benchmarks/accelerator.sh", "--dry", "--json", file, "--checkpoint", nano_folder],
        env=os.environ | {"PYTHON": sys.executable}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["dry"] is True
    assert "stand-ins" in result["card"]
    assert {"date", "commit", "torch", "rounds"} <= set(result)
    assert result["parity_holds"] is True
    ran = [row for row in result["parity"] if row["missing"] is None]
    assert {row["backend"] for row in ran} == BACKENDS
    assert all(row["tokens"] > 0 and row["logit_distance"] < 1 for row in ran)
    ways = {"random", "random, sampled", "random, within a grammar", "random, under a deadline"}
    for backend in BACKENDS:
        assert ways < {row["model"] for row in ran if row["backend"] == backend}
    exact = [row for row in ran if row["dtype"] == "float32"]
    assert exact
    assert all(row["equal_tokens"] == row["tokens"] for row in exact)
    for part in ("decode", "prefill"):
        assert set(result[part]) == set(accelerator.SUBJECTS)
        for reports in result[part].values():
            assert set(reports) == BACKENDS | {"eager"}
            assert all(report["rows"] and report["ratios"] for report in reports.values())
    assert result["plan"]["rows"]
    assert {row["backend"] for row in result["attention"]} == BACKENDS
    assert all(row["ms_a_layer"] > 0 for row in result["attention"])
    assert result["node"].get("rows") or result["node"] == {"missing": "ROS 2 (rclpy)"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_without_an_accelerator_the_command_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accelerator", "--json", str(tmp_path / "x.json")])
    assert accelerator.main() == 2
    assert "device: expected a CUDA or Ascend device, got none on this machine" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["accelerator", "--dry", "--rounds", "0", "--json", str(tmp_path / "x.json")])
    assert accelerator.main() == 2
    none = str(tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["accelerator", "--dry", "--checkpoint", none, "--json", str(tmp_path / "x.json")])
    assert accelerator.main() == 2
    assert f"checkpoint: expected a checkpoint folder, got {none}" in capsys.readouterr().out


def test_answers_that_differ_fail_parity(monkeypatch, tmp_path):
    monkeypatch.setattr(accelerator, "measure", lambda setting: {"parity_holds": False})
    monkeypatch.setattr(sys, "argv", ["accelerator", "--dry", "--json", str(tmp_path / "x.json")])
    assert accelerator.main() == 1
