"""Stage III, optional: cross-scale distillation from a larger model on the student's own trajectories (section 3.3).

Teacher and student may differ in size, block size and mask. What a state is worth, and how two distributions are
compared, is as in stage II; here every state is one that the student's decoding passes through.
"""

from __future__ import annotations

from training.config import DiffusionConfig, DistillationConfig
from training.forward import AnswerModel
from training.stages.block_distillation import BlockDistillation, Teacher
from training.stages.stage import TokenIds
from training.trajectories import Decoder
from wamdiff2_core.errors import UserError


class CrossScale(BlockDistillation):
    """See `stages.stage.Stage`."""

    def __init__(
        self, model: AnswerModel, teacher: Teacher, ids: TokenIds, diffusion: DiffusionConfig,
        distillation: DistillationConfig, decoder: Decoder,
    ) -> None:
        """Take student, teacher and what decodes the student's answers."""
        if distillation.on_policy is None:
            raise UserError("distillation.on_policy", "a section: states are the student's own", "none",
                            "stage block_distillation learns from the data set's answers")
        super().__init__(model, teacher, ids, diffusion, distillation, decoder)
