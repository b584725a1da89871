from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.lab.life.addressing import choose_network
from orchestrator.model.errors import NodeError

Network = ipaddress.IPv4Network


@given(
    st.lists(
        st.builds(
            lambda number, length: Network((number, length), strict=False),
            st.integers(0x0A000000, 0x0AFFFFFF),
            st.integers(12, 32),
        ),
        max_size=20,
    )
)
def test_a_network_collides_with_nothing_that_is_used(used: list[Network]) -> None:
    chosen = choose_network("lab", used)
    assert chosen.prefixlen == 24
    assert chosen.subnet_of(Network("10.0.0.0/8"))
    assert not any(chosen.overlaps(network) for network in used)


def test_the_same_name_gets_the_same_network_and_the_next_one_when_it_is_taken() -> None:
    first = choose_network("lab", [])
    assert choose_network("lab", [Network("0.0.0.0/0")]) == first, "a default route owns no address"
    assert choose_network("lab", [first]) != first


def test_no_room_is_told() -> None:
    with pytest.raises(NodeError, match="no free"):
        choose_network("lab", [Network("10.0.0.0/8")])
