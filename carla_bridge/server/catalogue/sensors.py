"""Sensors, with CARLA's ids, attributes and defaults.

Those that need a photo-real renderer's buffers can be looked up, so that a client's set-up code runs, but spawning one
is refused by name.
"""

from __future__ import annotations

from carla_bridge.server.catalogue.blueprint import ROLE_NAME, Attribute, Blueprint, boolean, integer, real
from carla_bridge.server.protocol.arguments import LARGEST_NUMBER

IMAGE_PX = (1, 4096)
FOV_DEG = (1.0, 170.0)
SENSOR_TICK = real("sensor_tick", 0.0, (0.0, LARGEST_NUMBER))
_NO_BUFFER = "the embedded world renders colour, depth and semantic labels only"
_NO_RADIO = "the embedded world has no V2X"


def _reals(values: str) -> tuple[Attribute, ...]:
    """Float attributes from `name=value` words."""
    pairs = (word.split("=") for word in values.split())
    return tuple(real(name, float(value)) for name, value in pairs)


_LENS = _reals(
    "lens_circle_falloff=5 lens_circle_multiplier=0 lens_k=-1 lens_kcube=0 lens_x_size=0.08 lens_y_size=0.08"
)
_FILM = (
    boolean("enable_postprocess_effects", True),
    *_reals(
        "gamma=2.2 shutter_speed=200 iso=100 fstop=1.4 min_fstop=1.2 focal_distance=1000 blur_amount=1 blur_radius=0"
        " motion_blur_intensity=0.45 motion_blur_max_distortion=0.35 motion_blur_min_object_screen_size=0.1 slope=0.88"
        " toe=0.55 shoulder=0.26 black_clip=0 white_clip=0.04 temp=6500 tint=0 chromatic_aberration_intensity=0"
        " chromatic_aberration_offset=0 bloom_intensity=0.675 lens_flare_intensity=0.1 exposure_compensation=0"
        " exposure_min_bright=10 exposure_max_bright=12 exposure_speed_up=3 exposure_speed_down=1"
        " calibration_constant=16"
    ),
    integer("blade_count", 5),
)


def _camera(name: str, *more: Attribute, missing: str = "") -> Blueprint:
    picture = (
        integer("image_size_x", 800, limits=IMAGE_PX),
        integer("image_size_y", 600, limits=IMAGE_PX),
        real("fov", 90.0, FOV_DEG),
    )
    return Blueprint(f"sensor.camera.{name}", (*picture, SENSOR_TICK, *more, *_LENS, ROLE_NAME), missing=missing)


def _lidar(name: str, *more: Attribute) -> Blueprint:
    beams = (
        integer("channels", 32),
        integer("points_per_second", 56000),
        *_reals("range=10 rotation_frequency=10 upper_fov=10 lower_fov=-30 horizontal_fov=360"),
    )
    return Blueprint(f"sensor.lidar.{name}", (*beams, *more, SENSOR_TICK, ROLE_NAME))


def _other(name: str, *attributes: Attribute, missing: str = "") -> Blueprint:
    return Blueprint(f"sensor.other.{name}", (*attributes, ROLE_NAME), missing=missing)


_IMU_NOISE = _reals(
    " ".join(f"noise_{kind}_{axis}=0" for kind in ("accel_stddev", "gyro_stddev", "gyro_bias") for axis in "xyz")
)
_GNSS_NOISE = _reals(
    " ".join(f"noise_{axis}_{kind}=0" for kind in ("stddev", "bias") for axis in ("alt", "lat", "lon"))
)

SENSORS = (
    _camera("rgb", *_FILM),
    _camera("depth"),
    _camera("normals", missing=_NO_BUFFER),
    _camera("semantic_segmentation"),
    _camera("instance_segmentation", missing=_NO_BUFFER),
    _camera("optical_flow", missing=_NO_BUFFER),
    _camera("dvs", *_FILM, missing=_NO_BUFFER),
    _lidar(
        "ray_cast",
        *_reals(
            "atmosphere_attenuation_rate=0.004 dropoff_general_rate=0.45 dropoff_intensity_limit=0.8"
            " dropoff_zero_intensity=0.4 noise_stddev=0"
        ),
        integer("noise_seed", 0),
    ),
    _lidar("ray_cast_semantic"),
    _other(
        "radar",
        *_reals("horizontal_fov=30 vertical_fov=30 range=100"),
        integer("points_per_second", 1500),
        integer("noise_seed", 0),
        SENSOR_TICK,
    ),
    _other("gnss", *_GNSS_NOISE, integer("noise_seed", 0), SENSOR_TICK),
    _other("imu", *_IMU_NOISE, integer("noise_seed", 0), SENSOR_TICK),
    _other("collision"),
    _other("lane_invasion"),
    _other(
        "obstacle",
        *_reals("distance=5 hit_radius=0.5"),
        boolean("only_dynamics", False),
        boolean("debug_linetrace", False),
        SENSOR_TICK,
    ),
    _other("rss", missing="the client wheel has no RSS library"),
    _other("v2x", missing=_NO_RADIO),
    _other("v2x_custom", missing=_NO_RADIO),
)
