"""The serving record: `wamdiff2.json` beside the weights, holding what serving must not guess.

Loading checks it; block sizes, a strategy, tasks, pixel limits and cameras outside it are refused, not bent. The rest
of `decode` are defaults, and a request may choose other values. A folder without a record (stock Qwen3-VL, upstream
WAM-Diff2) takes the request as it comes, and the loader says so.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.config import (
    CameraSpec,
    DecodeConfig,
    GroundingTask,
    ImagePolicy,
    LabelAlignment,
    MaskKind,
    PlanningTask,
    Strict,
    TaskName,
    parse,
)
from wamdiff2_core.errors import UserError
from wamdiff2_core.json_file import read_json_object
from wamdiff2_core.tasks.planning import check_template

RECORD_NAME = "wamdiff2.json"
QWEN_MASK_TOKEN_ID = 151671
QWEN_EOS_TOKEN_ID = 151645


@dataclass(frozen=True)
class ServingRecord(Strict):
    """What a checkpoint was trained for.

    Attributes:
        label_alignment: `shifted`: logits at i predict token i + 1 (autoregressive); `aligned`: logits at a masked
            position predict that position (block diffusion).
        block_sizes: block sizes the weights allow; (1,) with `shifted` for autoregressive weights.
        mask_kind: attention mask of training (`strict`, or `upstream` to continue the authors' weights).
        mask_token_id: id of the absorbing token; it is never emitted.
        eos_token_id: id that ends an answer and pads its last block.
        decode: default decoding; see `check_request` for what of it a request may change.
        planning: the planning task, or None for a checkpoint that does not plan.
        tasks: every task the weights were trained on; empty: `planning` alone when that is given, else not stated.
        grounding: form of the grounding question; None is the published one.
        images: image policy.
        rig: cameras in the order of the prompt's images.
        notes: free text for the reader.
    """

    label_alignment: LabelAlignment = "aligned"
    block_sizes: tuple[int, ...] = (32,)
    mask_kind: MaskKind = "strict"
    mask_token_id: int = QWEN_MASK_TOKEN_ID
    eos_token_id: int = QWEN_EOS_TOKEN_ID
    decode: DecodeConfig = DecodeConfig()
    planning: PlanningTask | None = None
    images: ImagePolicy = ImagePolicy()
    rig: tuple[CameraSpec, ...] = ()
    notes: str = ""
    tasks: tuple[TaskName, ...] = ()
    grounding: GroundingTask | None = None

    def __post_init__(self) -> None:
        if len(set(self.tasks)) != len(self.tasks):
            raise UserError("tasks", "each task once", ", ".join(self.tasks))
        for name in ("planning", "grounding"):
            given = getattr(self, name) is not None
            if self.tasks and given and name not in self.tasks:
                raise UserError("tasks", f"{name} among them, as its form is given", ", ".join(self.tasks))
        if "planning" in self.tasks and self.planning is None:
            raise UserError("planning", "the planning task, as tasks name it", "null")
        if self.planning is not None:
            check_template(self.planning, len(self.rig))

    @property
    def trained_tasks(self) -> tuple[TaskName, ...]:
        """Tasks the weights were trained on; empty when the record does not state any."""
        return self.tasks or (("planning",) if self.planning is not None else ())

    def check_task(self, task: TaskName) -> None:
        """Raise `UserError` when `task` is not one that the weights were trained on; a record may not state any."""
        if self.trained_tasks and task not in self.trained_tasks:
            raise UserError("task", f"one of {', '.join(self.trained_tasks)} (trained)", task,
                            "choose a trained task, or a checkpoint trained on this one")

    def check_request(self, decode: DecodeConfig) -> None:
        """Raise `UserError` when `decode` has a strategy or a block size that the weights were not trained for.

        Nothing else of it is looked at: threshold, steps, length and sampling may be chosen for each request.
        """
        autoregressive = decode.strategy == "autoregressive"
        if autoregressive != (self.label_alignment == "shifted"):
            raise UserError(
                "strategy",
                f"a strategy for {self.label_alignment} labels",
                decode.strategy,
                "these weights decode only by 'autoregressive'" if not autoregressive
                else "'autoregressive' needs weights trained with shifted labels",
            )
        if not autoregressive and decode.block_size not in self.block_sizes:
            raise UserError("block_size", f"one of {list(self.block_sizes)} (trained)", decode.block_size,
                            "choose a trained size, or a checkpoint trained for this one")

    def save(self, folder: Path) -> None:
        """Write the record into a checkpoint folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=False)
        (folder / RECORD_NAME).write_text(text + "\n")

    @classmethod
    def load(cls, folder: Path) -> ServingRecord | None:
        """Read the record of a checkpoint folder, or None when it has none."""
        path = folder / RECORD_NAME
        if not path.exists():
            return None
        return parse(cls, read_json_object(path), str(path))
