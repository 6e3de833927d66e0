"""Charts as SVG text. Colours are classes of the page's style sheet, so charts follow its light and dark form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 44, 10, 22, 30
MAX_POINTS = 400


@dataclass(frozen=True)
class Series:
    """One line of a chart: `style` is a class of the style sheet."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "s1"


@dataclass(frozen=True)
class Marker:
    """A moment to point out in a chart, or a place in a map."""

    x: float
    y: float
    title: str
    style: str = "bad"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    span = max(high - low, 1e-9)
    rough = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _padded(values: Sequence[float], include_zero: bool) -> tuple[float, float]:
    low, high = (min(values), max(values)) if len(values) else (0.0, 1.0)
    if include_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9:
        low, high = low - (0.0 if include_zero else 0.5), high + 0.5
    margin = 0.06 * (high - low)
    return low - (margin if low < 0 else 0.0), high + margin


class _Plot:
    """Maps data to pixels and draws axes."""

    def __init__(self, width: int, height: int, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.width, self.height, self.x_range, self.y_range = width, height, x_range, y_range

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def axes(self, title: str, x_label: str) -> list[str]:
        parts = [f'<text class="title" x="{LEFT}" y="13">{escape(title)}</text>']
        for tick in nice_ticks(*self.y_range, 6):
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                         f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>')
        for tick in nice_ticks(*self.x_range, 7):
            x = self.x(tick)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{self.height - BOTTOM + 14}" '
                         f'text-anchor="middle">{tick:g}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{self.height - BOTTOM}" '
                     f'y2="{self.height - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{self.width - RIGHT}" y="{self.height - 3}" '
                     f'text-anchor="end">{escape(x_label)}</text>')
        return parts

    def svg(self, parts: list[str], label: str) -> str:
        return (f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" '
                f'aria-label="{escape(label)}">{"".join(parts)}</svg>')


def line_chart(
    title: str, x_label: str, series: Sequence[Series], markers: Sequence[Marker] = (), *, width: int = 540,
    height: int = 170,
) -> str:
    """A line chart with the zero line in view.

    Args:
        title: quantity and unit.
        x_label: quantity and unit of the horizontal axis.
        series: at least one, of equal or different lengths.
        markers: vertical lines at `x`, with `title` as tool tip.
    """
    every_x = [value for line in series for value in line.x] or [0.0, 1.0]
    every_y = [value for line in series for value in line.y]
    plot = _Plot(width, height, (min(every_x), max(max(every_x), min(every_x) + 1e-6)), _padded(every_y, True))
    parts = plot.axes(title, x_label)
    for marker in markers:
        x = plot.x(marker.x)
        parts.append(f'<line class="mark {marker.style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}">'
                     f"<title>{escape(marker.title)}</title></line>")
    for line in series:
        step = max(1, len(line.x) // MAX_POINTS)
        thinned = zip(line.x[::step], line.y[::step], strict=True)
        points = " ".join(f"{plot.x(a):.1f},{plot.y(b):.1f}" for a, b in thinned)
        parts.append(f'<polyline class="line {line.style}" points="{points}">'
                     f"<title>{escape(line.name)}</title></polyline>")
    if len(series) > 1:
        x = float(width - RIGHT)
        for line in reversed(series):
            x -= 7.0 * len(line.name) + 22
            parts.append(f'<line class="line {line.style}" x1="{x:.0f}" x2="{x + 12:.0f}" y1="9" y2="9"/>'
                         f'<text class="tick" x="{x + 16:.0f}" y="13">{escape(line.name)}</text>')
    return plot.svg(parts, title)


def histogram(
    title: str, x_label: str, values: Sequence[float], quantiles: Sequence[tuple[str, float]] = (), *,
    width: int = 540, height: int = 170,
) -> str:
    """A histogram with named quantiles as vertical lines; values far beyond the 99th percentile share the last bar."""
    if not len(values):
        return ""
    data = np.asarray(values, dtype=np.float64)
    high = max(float(np.percentile(data, 99)) * 1.15, 1e-3)
    bins = min(40, max(8, int(math.sqrt(len(data)) * 2)))
    counts, edges = np.histogram(np.minimum(data, high), bins=bins, range=(0, high))
    plot = _Plot(width, height, (0.0, high), _padded(counts.tolist(), True))
    parts = plot.axes(title, x_label)
    for count, low, top in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            x, y, base = plot.x(low), plot.y(count), height - BOTTOM
            parts.append(f'<rect class="bar" x="{x + 0.5:.1f}" y="{y:.1f}" width="{plot.x(top) - x - 1:.1f}" '
                         f'height="{base - y:.1f}"><title>{count} from {low:.0f} to {top:.0f}</title></rect>')
    for name, value in quantiles:
        if value <= high:
            x = plot.x(value)
            parts.append(f'<line class="mark s2" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
                         f'<text class="tick over" x="{x + 5:.1f}" y="{TOP + 9}">{escape(name)}</text>')
    return plot.svg(parts, title)


def route_map(
    lanes: Sequence[np.ndarray], route_xy: np.ndarray, length_m: float, driven_xy: np.ndarray,
    markers: Sequence[Marker] = (), *, width: int = 540, max_height: int = 460,
) -> str:
    """A map, north up, cut to the route: lane edges, planned route, driven path, start, goal and markers.

    Args:
        lanes: (N, 2) lines, map frame.
        route_xy: (N, 2) planned route, overrun included.
        length_m: arc length of the goal.
        driven_xy: (M, 2) driven path.
        markers: places to point out.
        width, max_height: of the drawing, pixels.
    """
    arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(route_xy, axis=0).T))])
    planned = route_xy[arc <= length_m + 0.5]
    shown = np.vstack([planned, driven_xy]) if len(driven_xy) else planned
    low, high = shown.min(axis=0) - 18.0, shown.max(axis=0) + 18.0
    size = np.maximum(high - low, 60.0)
    middle = (low + high) / 2
    scale = min(width / size[0], max_height / size[1])
    height = max(160, round(size[1] * scale))

    def pixels(xy: np.ndarray) -> np.ndarray:
        centre = np.array([width / 2, height / 2])
        return centre + (np.asarray(xy, dtype=np.float64) - middle) * [scale, -scale]

    def path(xy: np.ndarray, style: str, extra: str = "") -> str:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels(xy))
        return f'<polyline class="{style}" points="{points}" {extra}/>'

    reach = np.array([width, height]) / scale / 2 + 5.0
    parts = [path(lane, "lane") for lane in lanes if (np.abs(lane - middle) < reach).all(axis=1).any()]
    parts.append(path(planned, "planned", f'stroke-width="{3.0 * scale:.1f}"'))
    if len(driven_xy) > 1:
        parts.append(path(driven_xy[:: max(1, len(driven_xy) // MAX_POINTS)], "line s1"))
        x, y = pixels(driven_xy[-1:])[0]
        parts.append(f'<circle class="end" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>end of the drive</title></circle>')
    for place, name in ((planned[0], "start"), (planned[-1], "goal")):
        x, y = pixels(place[None])[0]
        parts.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
                     f'<text class="tick" x="{x + 9:.1f}" y="{y - 7:.1f}">{name}</text>')
    for marker in markers:
        x, y = pixels(np.array([[marker.x, marker.y]]))[0]
        parts.append(f'<circle class="spot {marker.style}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
                     f"<title>{escape(marker.title)}</title></circle>")
    bar = next(length for length in (100, 50, 20, 10) if length * scale < width / 3 or length == 10)
    parts.append(f'<line class="axis" x1="12" x2="{12 + bar * scale:.1f}" y1="{height - 10}" y2="{height - 10}"/>'
                 f'<text class="tick" x="12" y="{height - 15}">{bar} m</text>')
    head = f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="map of the route">'
    return head + "".join(parts) + "</svg>"
