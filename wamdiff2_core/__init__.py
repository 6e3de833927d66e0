"""Plain-Python core of wamdiff2: model, decoding, planning and control. Knows no ROS, no CARLA and no trainer."""
