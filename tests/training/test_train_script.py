"""`tools/train.sh`: the authors' environment variables start a stage; without accelerators, on CPU processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.checkpoints import checkpoints
from wamdiff2_core.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / ".venv/bin/python"


def train_sh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = ("NUM_GPUS", "CONFIG_PATH", "EXPERIMENT_CONFIG", "ACCELERATE_CONFIG")
    own = {key: value for key, value in os.environ.items() if key not in unset}
    return subprocess.run(["bash", str(ROOT / "tools/train.sh"), *arguments], env={**own, **environment}, text=True,
                          capture_output=True, check=False)


def test_without_a_stage_file_it_says_what_it_wants() -> None:
    done = train_sh()
    assert done.returncode == 2
    assert done.stderr.strip() == "error: CONFIG_PATH: expected a stage file, got nothing"


@pytest.mark.skipif(not HERE.exists() or Path(sys.prefix) != ROOT / ".venv", reason="runs the checkout's own .venv")
def test_a_stage_that_cannot_be_run_ends_with_the_code_of_wrong_use() -> None:
    done = train_sh(CONFIG_PATH="nowhere.yaml", NUM_GPUS="1")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: CONFIG: expected a YAML file, got nowhere.yaml (no such file)"


@pytest.mark.skipif(not HERE.exists() or Path(sys.prefix) != ROOT / ".venv", reason="runs the checkout's own .venv")
def test_files_are_looked_for_where_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("stage: none\nout: o\n")
    done = train_sh(CONFIG_PATH="mine.yaml", NUM_GPUS="1")
    assert done.returncode == 2
    assert "stage" in done.stderr
    assert "no such file" not in done.stderr
    done = train_sh(CONFIG_PATH="mine.yaml", NUM_GPUS="1", ACCELERATE_CONFIG="nowhere.yaml")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: ACCELERATE_CONFIG: expected a file, got nowhere.yaml"


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="the CPU launch is for machines without accelerators")
@pytest.mark.skipif(not HERE.exists() or Path(sys.prefix) != ROOT / ".venv", reason="runs the checkout's own .venv")
def test_two_cpu_processes_train_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, options = "training/configs/debug/ar.yaml", ["--run.steps", "3", "--run.log_every", "1"]
    done = train_sh("--out", str(tmp_path / "2"), *options, NUM_GPUS="2", CONFIG_PATH=file)
    assert done.returncode == 0, done.stderr
    assert checkpoints(tmp_path / "2")
    monkeypatch.chdir(ROOT)  # where the script starts it
    assert main(["train", file, "--out", str(tmp_path / "1"), *options]) == 0
    losses = [[json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
              for name in ("1", "2")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
