"""Whether OpenGL on the processor (Mesa's llvmpipe through EGL) would draw faster than the painter.

Draws as many triangles as a street has, with a depth buffer, and reads the picture back: no culling, no weather, no
actors to move. That is a lower bound for a renderer on OpenGL, set beside whole pictures of the painter in one run.
Needs `moderngl`, which is no dependency of this package.

    python -m benchmarks.gl_probe
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import cv2
import numpy as np
import typer

from benchmarks.render_speed import measure
from carla_bridge.server.rendering.renderer import Renderer
from carla_bridge.server.town.town import Town
from carla_bridge.server.weather import CLEAR_NOON
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.errors import InfrastructureError

PICTURES = 40
VERTEX = """
#version 330
in vec3 place; in vec3 color; out vec3 shown;
void main() { gl_Position = vec4(place, 1.0); shown = color; }
"""
FRAGMENT = """
#version 330
in vec3 shown; out vec4 pixel;
void main() { pixel = vec4(shown, 1.0); }
"""


def draw_ms(width: int, height: int, triangles: int) -> tuple[str, float, float]:
    """Name of the OpenGL renderer; wall and process milliseconds per picture at twice the size, to average down."""
    import moderngl

    context = moderngl.create_context(standalone=True, backend="egl")
    program = context.program(vertex_shader=VERTEX, fragment_shader=FRAGMENT)
    rng = np.random.default_rng(0)
    middles = rng.uniform((-1, -1, 0), (1, 1, 1), (triangles, 1, 3))
    places = middles + rng.normal(0, 0.03, (triangles, 3, 3))
    colors = np.repeat(rng.random((triangles, 1, 3)), 3, axis=1)
    buffer = context.buffer(np.concatenate([places, colors], axis=2).astype(np.float32).tobytes())
    shape = context.vertex_array(program, [(buffer, "3f 3f", "place", "color")])
    size = (2 * width, 2 * height)
    frame = context.framebuffer([context.renderbuffer(size)], context.depth_renderbuffer(size))
    context.enable(moderngl.DEPTH_TEST)

    def picture() -> np.ndarray:
        frame.use()
        frame.clear()
        shape.render()
        large = np.frombuffer(frame.read(components=4), np.uint8).reshape(2 * height, 2 * width, 4)
        return cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA)

    picture()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(PICTURES):
        picture()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return context.info["GL_RENDERER"], 1e3 * wall_s / PICTURES, 1e3 * cpu_s / PICTURES


def main(
    width: Annotated[int, typer.Option(help="Pixels.")] = 512,
    height: Annotated[int, typer.Option(help="Pixels.")] = 256,
    triangles: Annotated[int, typer.Option(help="As many as a street has: about 10 000 polygons are near.")] = 8000,
) -> None:
    """Measure both."""
    cv2.setNumThreads(1)
    try:
        name, wall_ms, cpu_ms = draw_ms(width, height, triangles)
    except Exception as error:
        raise InfrastructureError(f"no OpenGL here: {error}") from error
    town = Town.load()
    painter = measure(Renderer(town), town, CLEAR_NOON, actors=20, width=width, height=height, places=30)
    typer.echo(f"{name}: {triangles} triangles, {width}x{height}: wall {wall_ms:.1f} ms, cpu {cpu_ms:.1f} ms")
    typer.echo(f"painter, whole picture, 20 actors: wall {painter['mean_ms']} ms, cpu {painter['mean_cpu_ms']} ms")


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.gl_probe"))
