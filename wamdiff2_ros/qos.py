"""Quality of service of the topics.

Sensor streams follow REP-2003: best effort, only the newest sample. An unreliable subscriber accepts any publisher; a
reliable one accepts only reliable publishers, and is needed where no sample may be lost (lockstep), or where images
exceed Fast DDS's default shared-memory segment of 0.5 MB without the profile in config/fastdds_large_images.xml.
"""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _keep_last(depth: int, reliability: ReliabilityPolicy, durability: DurabilityPolicy) -> QoSProfile:
    return QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, durability=durability)


SENSOR = _keep_last(1, ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE)
# Several samples of these fall between two images.
STATE = _keep_last(10, ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE)
RELIABLE = _keep_last(10, ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
LATCHED = _keep_last(1, ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL)
