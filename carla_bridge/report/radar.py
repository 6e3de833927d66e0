"""The abilities of one or two runs as a radar chart, SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from carla_bridge.report.run import Ability

WIDTH, HEIGHT, RADIUS = 460, 300, 96.0
ROW_PX, LONGEST_NAME = 18, 64
RINGS = (0.25, 0.5, 0.75, 1.0)


def radar(runs: Sequence[tuple[str, Mapping[str, Ability]]]) -> str:
    """A radar chart of success rates, 0 in the middle and 100 % at the rim, upwards first and then clockwise.

    An ability that is open is drawn as its bounds: at least as a run's own line, at most as a dotted one. The legend
    below names every line.

    Args:
        runs: name and abilities of each run, at least one. Those that all have give the axes; fewer than three have no
            area, and the text is empty then.
    """
    names = [name for name in runs[0][1] if all(name in abilities for _, abilities in runs)]
    if len(names) < 3:
        return ""
    parts = []
    for ring in RINGS:
        parts.append(f'<polygon class="ring" points="{_points([ring] * len(names))}"/>')
        parts.append(f'<text class="tick" x="{WIDTH / 2 - 5:.0f}" y="{HEIGHT / 2 - ring * RADIUS + 3.5:.1f}" '
                     f'text-anchor="end">{ring * 100:.0f}</text>')
    for index, name in enumerate(names):
        x, y = _place(index, len(names), 1.0)
        parts.append(f'<line class="ring" x1="{WIDTH / 2}" y1="{HEIGHT / 2}" x2="{x:.1f}" y2="{y:.1f}"/>')
        parts += _label(index, len(names), name, [abilities[name] for _, abilities in runs])
    legend: list[tuple[str, str]] = []
    for number, (run_name, abilities) in enumerate(runs, 1):
        legend.append((f"area s{number}", run_name))
        shown = [abilities[name] for name in names]
        low, high = ([ability.bounds[side] for ability in shown] for side in (0, 1))
        if any(b - a > 1e-9 for a, b in zip(low, high, strict=True)):
            parts.append(f'<polygon class="reach s{number}" points="{_points(high)}">'
                         f"<title>{escape(run_name)}: at most</title></polygon>")
            legend.append((f"reach s{number}", f"{run_name}: at most, where that is open"))
        values = [
            at_least if ability.value is None else ability.value
            for ability, at_least in zip(shown, low, strict=True)
        ]
        parts.append(f'<polygon class="area s{number}" points="{_points(values)}">'
                     f"<title>{escape(run_name)}</title></polygon>")
        for index, value in enumerate(values):
            x, y = _place(index, len(names), value)
            parts.append(f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    parts += _legend(legend)
    height = HEIGHT + ROW_PX * len(legend) + 4
    head = f'<svg class="radar" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="abilities">'
    return head + "".join(parts) + "</svg>"


def _legend(lines: Sequence[tuple[str, str]]) -> list[str]:
    """A row for each line: a piece of it, drawn by its class, and its name."""
    parts = []
    for row, (style, name) in enumerate(lines):
        y = HEIGHT + ROW_PX * row + 6
        shown = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
        parts.append(f'<line class="{style}" x1="8" x2="44" y1="{y}" y2="{y}"/>'
                     f'<text class="tick" x="52" y="{y + 3.5:.1f}">{escape(shown)}<title>{escape(name)}</title></text>')
    return parts


def ability_text(ability: Ability | None, *, with_routes: bool = True) -> str:
    """An ability in a few characters: `67 % of 3`, or its bounds while it is withheld."""
    if ability is None:
        return "no routes"
    of = f" of {ability.routes}" if with_routes else ""
    if ability.value is None:
        return f"{100 * ability.bounds[0]:.0f} to {100 * ability.bounds[1]:.0f} %{of}"
    return f"{100 * ability.value:.0f} %{of}"


def _label(index: int, count: int, name: str, abilities: Sequence[Ability]) -> list[str]:
    x, y = _place(index, count, 1.0 + 14 / RADIUS)
    side = math.sin(2 * math.pi * index / count)
    anchor = "middle" if abs(side) < 0.1 else "start" if side > 0 else "end"
    y -= 12 if index == 0 else 0
    figures = " | ".join(ability_text(ability, with_routes=len(abilities) == 1) for ability in abilities)
    words = escape(name.replace("_", " "))
    return [f'<text class="title" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>',
            f'<text class="tick" x="{x:.1f}" y="{y + 13:.1f}" text-anchor="{anchor}">{escape(figures)}</text>']


def _place(index: int, count: int, value: float) -> tuple[float, float]:
    angle = 2 * math.pi * index / count
    return WIDTH / 2 + value * RADIUS * math.sin(angle), HEIGHT / 2 - value * RADIUS * math.cos(angle)


def _points(values: Sequence[float]) -> str:
    places = (_place(index, len(values), value) for index, value in enumerate(values))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
