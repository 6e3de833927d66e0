"""The planner as a ROS 2 node: messages, parameters, quality of service, timing. No mathematics."""
