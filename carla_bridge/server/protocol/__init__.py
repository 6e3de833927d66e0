"""Bytes and ports: CARLA's wire format in its dialects, remote calls, streams, checked arguments."""
