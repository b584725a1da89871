"""The speed model reproduces the articles' points, and ranks wirings in the physical order."""

from __future__ import annotations

import pytest

from orchestrator.topology.speed import BATCHES, Traffic, all_reduce_s, decode_speed, price

# yangwenbo.com/articles/update-bench-dsr1-int8-on-l40s.html: tokens/s, wiring wrong and right
ARTICLE = {1: (26.00, 49.02), 4: (42.30, 153.98), 32: (260.73, 457.66), 128: (565.73, 777.92)}


@pytest.mark.parametrize("batch", BATCHES)
def test_the_fitted_all_reduce_explains_the_wrong_wiring_within_a_tenth(batch: int) -> None:
    wrong, right = ARTICLE[batch]
    compute = batch / right - 122 * all_reduce_s(Traffic.RAILS, batch)
    predicted = batch / (compute + 122 * all_reduce_s(Traffic.TCP, batch))
    assert predicted == pytest.approx(wrong, rel=0.10)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_worse_wiring_is_never_faster(batch: int) -> None:
    order = [
        Traffic.RAILS, Traffic.HALF_THE_PORTS, Traffic.CARD_ON_ROOT_PORT, Traffic.NARROW_LINK, Traffic.THROUGH_ROOT,
    ]  # fmt: skip
    speeds = [decode_speed(traffic, batch).tokens_per_s for traffic in order]
    assert speeds == sorted(speeds, reverse=True)
    assert decode_speed(Traffic.TCP, batch).tokens_per_s < decode_speed(Traffic.NARROW_LINK, batch).tokens_per_s


def test_the_price_is_said_in_tokens_per_second() -> None:
    words = price(Traffic.TCP)
    assert "at 4 requests: about 42 instead of 154 tokens/s" in words
    assert "measured by the articles" in words
    assert "±30 %" in price(Traffic.NARROW_LINK)
