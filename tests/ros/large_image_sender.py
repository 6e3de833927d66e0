"""Publishes ten 1280 x 720 images with their odometry and navigation to a planner node, then waits to be ended."""

from __future__ import annotations

import os

from conftest import Peer

peer = Peer(int(os.environ["ROS_DOMAIN_ID"]))
peer.wait_ready()
for i in range(1, 11):
    peer.send_partners(i * 100_000_000)
    peer.send_image(i * 100_000_000, width=1280, height=720)
    peer.spin_until(lambda i=i: len(peer.plans) == i, 2.0)
peer.close()
