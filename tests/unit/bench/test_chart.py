"""A chart's geometry: round ticks, zero in the corner, every point inside its plot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bench.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, Series, chart

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=8))
def test_every_point_is_inside_and_the_axes_begin_at_zero(values: list[tuple[float, float]]) -> None:
    drawn = chart("t", "x", "y", [Series("one", tuple(Point(x, y, "", "") for x, y in values))])
    assert drawn is not None
    assert (drawn.x_ticks[0], drawn.y_ticks[0]) == ((LEFT, "0"), (HEIGHT - BOTTOM, "0"))
    assert drawn.x_ticks[-1][0] == WIDTH - RIGHT and drawn.y_ticks[-1][0] == TOP
    assert 2 <= len(drawn.x_ticks) <= 7 and 2 <= len(drawn.y_ticks) <= 7
    for dot in drawn.lines[0].dots:
        assert LEFT <= dot.x <= WIDTH - RIGHT and TOP <= dot.y <= HEIGHT - BOTTOM


@pytest.mark.parametrize(
    ("most", "texts"),
    [(778.0, ["0", "200", "400", "600", "800"]), (0.0, ["0", "1"]), (5.0, ["0", "1", "2", "3", "4", "5"])],
)
def test_ticks_are_round(most: float, texts: list[str]) -> None:
    drawn = chart("t", "x", "y", [Series("one", (Point(1.0, most, "", ""),))])
    assert drawn is not None and [text for _, text in drawn.y_ticks] == texts


def test_nothing_to_draw_is_no_chart_and_an_empty_series_keeps_its_colour() -> None:
    assert chart("t", "x", "y", [Series("none", ())]) is None
    drawn = chart("t", "x", "y", [Series("none", ()), Series("two", (Point(1, 1, "", ""),), expected=True)])
    assert drawn is not None and [(line.name, line.number, line.expected) for line in drawn.lines] == [("two", 1, True)]
