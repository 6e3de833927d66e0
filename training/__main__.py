"""`accelerate launch -m training CONFIG [--section.key value ...]`: `wamdiff2 train` on every process of the launch."""

from training.command import train
from wamdiff2_core.cli.main import run_alone

run_alone(train, "training")
