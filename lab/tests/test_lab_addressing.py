from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l40s_lab.life import addressing
from l40s_lab.life.addressing import choose_network, make_room
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


def test_the_kernel_s_table_of_neighbours_is_made_to_hold_the_lab_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addressing, "_NEIGHBOURS", tmp_path)
    said: list[str] = []
    make_room(500, said.append)  # a namespace that shows no such file
    for name, value in (("gc_thresh2", 4096), ("gc_thresh3", 1024)):
        (tmp_path / name).write_text(f"{value}\n")
    make_room(0, said.append)
    assert said == []
    make_room(7800, said.append)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"gc_thresh2": "8824", "gc_thresh3": "8824"}
    assert "gc_thresh3=8824" in said[0]


def test_where_it_may_not_be_changed_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(addressing, "_NEIGHBOURS", tmp_path)
    for name in ("gc_thresh2", "gc_thresh3"):
        (tmp_path / name).write_text("1024")
    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(NodeError) as told:
        make_room(7800, print)
    command = "sudo sysctl -w net.ipv4.neigh.default.gc_thresh2=8824 net.ipv4.neigh.default.gc_thresh3=8824"
    assert command in told.value.fix
