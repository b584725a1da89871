"""Counters become rates; a counter that went back, or is new, gives none."""

from __future__ import annotations

from orchestrator.gang.rates import growth, port_rates
from orchestrator.protocol.gauges import GaugesAnswer, PortGauges


def reading(now: float, state: str = "4: ACTIVE", **counters: int) -> GaugesAnswer:
    return GaugesAnswer(now=now, ports=(PortGauges(device="mlx5_0", port=1, state=state, counters=counters),))


def test_bytes_are_words_of_four_a_second() -> None:
    before, now = (reading(at, port_rcv_data=n, port_xmit_data=n // 10) for at, n in ((10.0, 100), (12.0, 600)))
    (rate,) = port_rates(before, now)
    assert (rate.received_bytes_s, rate.sent_bytes_s) == (1000.0, 100.0)
    assert rate.up and rate.errors == 0 and rate.grown == {}


def test_errors_that_grow_are_named_and_all_are_counted() -> None:
    (rate,) = port_rates(
        reading(10.0, symbol_error=5, out_of_sequence=1), reading(12.0, symbol_error=5, out_of_sequence=4)
    )
    assert rate.grown == {"out_of_sequence": 3} and rate.errors == 9


def test_the_first_reading_and_a_driver_that_was_loaded_again_make_no_rate() -> None:
    (first,) = port_rates(None, reading(10.0, port_rcv_data=100, symbol_error=4))
    assert first.received_bytes_s is None and first.grown == {} and first.errors == 4
    (again,) = port_rates(reading(10.0, port_rcv_data=100), reading(12.0, state="1: DOWN", port_rcv_data=3))
    assert again.received_bytes_s is None and not again.up


def test_a_counter_s_growth() -> None:
    assert growth(100.0, 150.0, 2.0) == 25.0
    assert growth(100.0, 50.0, 2.0) is None and growth(1.0, 2.0, 0.0) is None
