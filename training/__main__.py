"""`accelerate launch -m training CONFIG [--section.key value ...]`: `wamdiff2 train` on every process of the launch."""

import sys

from training.command import train
from wamdiff2_core.cli.main import run_alone

sys.exit(run_alone(train, "training"))
