"""The stages of training, one file each; `stages.stage` says what a stage is."""
