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
            x -= 8.4 * len(line.name) + 22
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


def diverging_bars(title: str, values: Sequence[tuple[str, float]], *, width: int = 540) -> str:
    """A horizontal bar for each named value, from a zero line in the middle: to the right where it is positive.

    Args:
        title: quantity and unit.
        values: name and value of each bar, from above.
        width: of the drawing, pixels; a bar is 14 high, or less so that the drawing stays within 620.
    """
    name_px = 90
    reach = max((abs(value) for _, value in values), default=0.0) or 1.0
    step = min(14.0, 580 / max(1, len(values)))
    height = round(TOP + step * len(values) + 8)
    zero, half = name_px + (width - name_px) / 2, (width - name_px) / 2 - 46
    parts = [f'<text class="title" x="4" y="13">{escape(title)}</text>']
    for index, (name, value) in enumerate(values):
        y = TOP + index * step
        end = zero + value / reach * half
        style = "gain" if value > 0 else "loss"
        if step >= 9:
            parts.append(f'<text class="tick" x="4" y="{y + step * 0.75:.1f}">{escape(name[:16])}</text>')
        parts.append(f'<rect class="{style}" x="{min(zero, end):.1f}" y="{y + 1:.1f}" width="{abs(end - zero):.1f}" '
                     f'height="{step - 2:.1f}"><title>{escape(name)}: {value:+.2f}</title></rect>')
        if step >= 9 and value:
            place, anchor = (end + 4, "start") if value > 0 else (end - 4, "end")
            parts.append(f'<text class="tick" x="{place:.1f}" y="{y + step * 0.75:.1f}" text-anchor="{anchor}">'
                         f"{value:+.1f}</text>")
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{TOP - 2}" y2="{height - 4}"/>')
    return (f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
            f'{"".join(parts)}</svg>')
