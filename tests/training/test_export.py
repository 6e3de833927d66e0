"""A checkpoint to hand on: the run's weights in one dtype, its record, and the logs of its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.test_trainer import stage, trainer
from training.checkpoints import checkpoints
from training.export import LOGS, export, main
from wamdiff2_core.cli.main import as_command, exit_code_of
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord


@pytest.fixture(scope="module")
def run(text_set: Path, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("run") / "b16"
    trainer(stage(out, text_set, run={"steps": 2, "checkpoint_every": 2})).train()
    return out


def test_weights_are_the_run_s_in_the_dtype_and_the_logs_go_along(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("card")
    export(str(run), out, "bfloat16", (str(run), str(run)))
    newest = checkpoints(run)[-1]
    given, written = (load_file(folder / "model.safetensors") for folder in (newest, out))
    assert given.keys() == written.keys()
    for name, weight in written.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, given[name].to(torch.bfloat16)), name
    assert ServingRecord.load(out) == ServingRecord.load(newest)
    logs = sorted((out / LOGS).iterdir())
    assert [log.name for log in logs] == ["1_b16.jsonl", "2_b16.jsonl"]
    assert logs[0].read_bytes() == (run / "log.jsonl").read_bytes()
    assert (out / "README.md").read_text() == "card"
    assert not list(out.glob("trainer*"))
    export(str(run), out, "float32")
    assert not (out / LOGS).exists()
    assert {weight.dtype for weight in load_file(out / "model.safetensors").values()} == {torch.float32}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("nowhere", "OUT"), "RUN: expected a checkpoint folder"),
     (("RUN", "OUT", "--dtype", "int8"), "--dtype: expected"),
     (("RUN", "OUT", "--log", "nowhere"), "--log: expected the folder of a training")],
)
def test_wrong_use_is_told_and_nothing_is_written(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], message: str, capsys: Any
) -> None:
    given = [{"RUN": str(run), "OUT": str(tmp_path / "out")}.get(word, word) for word in arguments]
    command = as_command(main, "export")
    assert exit_code_of(lambda: command(args=given, standalone_mode=False)) == UserError.exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
