"""Offline training of wamdiff2 checkpoints: data, objectives, trainer, evaluation. Imports core, never ROS or CARLA."""
