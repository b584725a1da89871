"""A line chart as coordinates, for a template to draw as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 14, 44
"""Of the drawing, in pixels, and the margins of its plot."""
_TICKS = 5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. label: beside it; title: what pointing at it says"""

    x: float
    y: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    """One line. expected: somebody else's figures, drawn apart from ours"""

    name: str
    points: tuple[Point, ...]
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """Where a point is, in pixels. anchor: of its label, which stays inside the drawing"""

    x: float
    y: float
    label: str
    title: str
    anchor: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One series, in pixels. number: from 0, for its colour; points: as SVG's polyline wants them"""

    name: str
    number: int
    expected: bool
    points: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of WIDTH x HEIGHT. x_ticks, y_ticks: (pixel, text)"""

    title: str
    x_title: str
    y_title: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[ChartLine, ...]


def chart(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> Chart | None:
    """Both axes begin at zero, so that twice as fast looks so. None where there is nothing to draw."""
    points = [point for one in series for point in one.points]
    if not points:
        return None
    x_values, y_values = (_ticks(max(values)) for values in zip(*((one.x, one.y) for one in points), strict=True))

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / x_values[-1], 1)

    def up(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_values[-1], 1)

    def line(number: int, one: Series) -> ChartLine:
        dots = tuple(
            Dot(across(each.x), up(each.y), each.label, each.title, "end" if across(each.x) > WIDTH - 90 else "start")
            for each in one.points
        )
        return ChartLine(one.name, number, one.expected, " ".join(f"{dot.x},{dot.y}" for dot in dots), dots)

    return Chart(
        title=title,
        x_title=x_title,
        y_title=y_title,
        x_ticks=tuple((across(value), f"{value:g}") for value in x_values),
        y_ticks=tuple((up(value), f"{value:g}") for value in y_values),
        lines=tuple(line(number, one) for number, one in enumerate(series) if one.points),
    )


def _ticks(most: float) -> tuple[float, ...]:
    """Round values from 0 to at least `most`."""
    if not math.isfinite(most) or most <= 0:
        return (0.0, 1.0)
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in _STEPS if power * each >= rough * (1 - 1e-9))
    return tuple(round(step * number, 12) for number in range(math.ceil(most / step - 1e-9) + 1))
