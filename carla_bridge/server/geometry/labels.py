"""CARLA's semantic labels, as far as they occur in the embedded world."""

from __future__ import annotations

from enum import IntEnum

from carla_bridge.server.geometry.scene import BoxKind


class Label(IntEnum):
    """`CityObjectLabel` of the protocol, which is also the tag of a semantic camera."""

    NONE = 0
    ROADS = 1
    SIDEWALKS = 2
    BUILDINGS = 3
    POLES = 6
    TRAFFIC_LIGHT = 7
    TRAFFIC_SIGNS = 8
    VEGETATION = 9
    TERRAIN = 10
    SKY = 11
    PEDESTRIANS = 12
    CAR = 14
    TRUCK = 15
    BUS = 16
    MOTORCYCLE = 18
    BICYCLE = 19
    STATIC = 20
    ROAD_LINES = 24
    BRIDGE = 26
    ANY = 255


SCENERY = {
    BoxKind.BUILDING: Label.BUILDINGS,
    BoxKind.TREE: Label.VEGETATION,
    BoxKind.HEDGE: Label.VEGETATION,
    BoxKind.LAMP: Label.POLES,
    BoxKind.POLE: Label.POLES,
}
