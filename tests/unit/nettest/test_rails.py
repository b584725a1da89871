"""RDMA ports two at a time: which pair measures when, how ib_write_bw's output is read, and which port is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.ib_write_bw import table

from orchestrator.model.profile import Between
from orchestrator.nettest.messages import RailsLine
from orchestrator.nettest.rails import PortPair, RailPort, average_gbps, judge, last_words, played, rails, times, ways
from orchestrator.nettest.verdict import NettestVerdict, odd

RECORDED = Path(__file__).parents[2] / "recorded" / "ib_write_bw"
PortsOf = dict[str, tuple[RailPort, ...]]


def ports(nodes: int, rails: int, rate: float = 100.0) -> PortsOf:
    return {
        f"node{node}": tuple(
            RailPort(node=f"node{node}", device=f"mlx5_{rail}", port=1, rate_gbps=rate) for rail in range(rails)
        )
        for node in range(nodes)
    }


def told(text: str, status: int, *, on_gpu: bool = False) -> RailsLine:
    return RailsLine(text=text, status=status, on_gpu=on_gpu)


def printed(speed: Callable[[PortPair], float], order: tuple[PortPair, ...]) -> dict[int, RailsLine]:
    return {way.id: told(table(way.start.device, 1 << 20, 250, 3, speed(way)), 0) for way in order}


@pytest.mark.parametrize(("file", "bytes_"), [("mb.txt", 65536), ("gb.txt", 8)])
def test_a_recorded_output_is_read_in_the_units_of_its_header(file: str, bytes_: int) -> None:
    """Its own message rate (10^6/s) confirms this."""
    text = (RECORDED / file).read_text()
    rate = float(re.findall(r"^ \d+ .* ([\d.]+)$", text, re.MULTILINE)[-1].split()[-1])
    assert average_gbps(text) == pytest.approx(bytes_ * 8 * rate / 1e3, rel=2e-3)
    assert average_gbps(text.replace("MB/sec", "MiB/sec")) == average_gbps(text)


def test_what_is_no_result_is_none_and_says_why() -> None:
    said = told((RECORDED / "nobody-listens.txt").read_text(), 1)
    assert average_gbps(said.text) is None
    assert last_words(said).endswith("Unable to init the socket connection, status 1")
    half = (RECORDED / "mb.txt").read_text().partition(" #bytes")[0]
    assert average_gbps(half) is None and last_words(told(half, -1)) == "it did not end in time"
    odd_row = (RECORDED / "mb.txt").read_text()
    assert average_gbps(odd_row.replace("44276.64", "4.4.4")) is None
    assert average_gbps(odd_row.replace("44276.64", "9" * 400)) is None
    assert average_gbps("") is None and last_words(told("", 2)) == "status 2"


def test_the_stand_in_prints_what_the_program_prints() -> None:
    real, played_ = (RECORDED / "gb.txt").read_text(), table("mlx5_0", 65536, 5000, 3, 92.5)
    assert average_gbps(played_) == 92.5 and played({0: told(played_, 0)}) and not played({0: told(real, 0)})

    def shape(text: str) -> list[str]:
        """Settings by name, and the table with its figures as digits."""
        lines = [re.sub(r"\s+", " ", line.partition(" : ")[0] if " : " in line else line) for line in text.splitlines()]
        return [
            re.sub(r"[\d.]+", "9", line).strip() for line in lines if "#" in line or re.match(r" \d| \w+ .*:?", line)
        ]

    wanted = {line for line in shape(real) if not line.startswith(("Post List", "PCIe relax", "ibv_wr"))}
    assert wanted - {"RDMA_Write Post List BW Test"} <= set(shape(played_))


@pytest.mark.parametrize(("nodes", "count"), [(2, 1), (3, 2), (4, 8), (5, 4), (8, 2)])
def test_every_port_has_partners_and_every_node_keeps_one_order(nodes: int, count: int) -> None:
    order = ways(ports(nodes, count))
    assert [way.id for way in order] == list(range(len(order)))
    assert all(way.start.node != way.end.node for way in order)
    same = [(way.start.end, way.end.end) for way in order if way.between is Between.RAIL]
    assert len(same) == len(set(same)) and {(two, one) for one, two in same} == set(same)
    assert all(one.port == two.port for one, two in same)
    assert {one for one, _ in same} == {port.end for node in ports(nodes, count).values() for port in node}
    crossed = [way for way in order if way.between is Between.OTHER_RAIL]
    assert bool(crossed) == (count > 1) and all(way.start.device != way.end.device for way in crossed)
    first = [way.between for way in order if way.round == 0]
    assert first == sorted(first, key=lambda one: one is Between.OTHER_RAIL), "rails that may be apart come last"
    assert len(order) <= nodes // 2 * count * 2 * 4, "three rounds and one across at most"
    for number in {way.round for way in order}:
        pairs = {frozenset((way.start.node, way.end.node)) for way in order if way.round == number}
        assert sum(map(len, pairs)) == len(frozenset().union(*pairs)), "a node has one partner in a round"


@pytest.mark.parametrize(("mtus", "count"), [((), 250), ((0, 0), 250), ((9000, 4200), 250), ((9000, 1500), 89)])
def test_small_packets_mean_fewer_of_them(mtus: tuple[int, ...], count: int) -> None:
    """In soft-RoCE 250 MiB at an MTU of 1500 take longer than a run may."""
    assert times(RailPort(node="n", device="d", port=1, rate_gbps=1.0, mtu=mtu) for mtu in mtus) == count


def test_nodes_with_fewer_ports_share_what_they_have() -> None:
    found = {**ports(2, 2), "node1": ports(2, 1)["node1"]}
    assert {(way.start.device, way.end.device) for way in ways(found)} == {("mlx5_0", "mlx5_0")}
    assert ways({"node0": ports(1, 1)["node0"], "node1": ()}) == ()


def test_ports_at_their_rate_are_all_right() -> None:
    order = ways(ports(4, 2))
    links = judge(order, printed(lambda _: 96.0, order), enough=0.8)
    assert {link.verdict for link in links} == {NettestVerdict.OK} and odd(links) is None
    rows = rails(links)
    assert len(rows) == 8 and {row.verdict for row in rows} == {NettestVerdict.OK}
    assert rows[0].expected is not None and rows[0].expected.basis == "calculated"
    assert rows[0].expected.value == pytest.approx(92.0) and "100 Gb/s" in rows[0].expected.source


def test_a_slow_port_is_named_and_its_partners_are_not() -> None:
    order = ways(ports(4, 2))

    def speed(way: PortPair) -> float:
        return (
            24.0
            if ("node2", "mlx5_1") in ((way.start.node, way.start.device), (way.end.node, way.end.device))
            else 96.0
        )

    links = judge(order, printed(speed, order), enough=0.8)
    one = odd(links)
    assert one is not None and one.name == "node2 mlx5_1:1" and "24 Gb/s" in one.why
    assert [str(row.end) for row in rails(links) if row.verdict is NettestVerdict.SLOW] == ["node2 mlx5_1:1"]


def test_of_two_nodes_the_link_is_named_where_no_other_port_tells_more() -> None:
    order = ways(ports(2, 1))
    one = odd(judge(order, printed(lambda _: 10.0, order), enough=0.8))
    assert one is not None and len(one.ends) == 2


def test_a_port_that_carries_nothing_is_slow_and_says_why() -> None:
    order = ways(ports(3, 1))
    texts = printed(lambda _: 96.0, order)
    broken = {way.id: told(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n", 1)
              for way in order if "node1" in (way.start.node, way.end.node)}  # fmt: skip
    links = judge(order, texts | broken, enough=0.8)
    one = odd(links)
    assert one is not None and one.name == "node1 mlx5_0:1" and "Failed status 12" in one.why


def test_a_gpus_memory_that_can_not_be_used_says_nothing_of_a_port() -> None:
    """node0's first port tries it and fails; the others' figures are judged, in whose memory they were."""
    order = ways(ports(2, 2))
    texts = printed(lambda way: 97.0, order)
    failed = next(way for way in order if way.start.end.port == "mlx5_0:1" and way.between is Between.RAIL)
    texts = {way: replace(said, on_gpu=True) for way, said in texts.items()}
    texts[failed.id] = told("Couldn't allocate MR", 1, on_gpu=True)
    links = judge(order, texts, enough=0.8)
    assert [link.verdict for link in links if link.why] == [NettestVerdict.NONE]
    assert [(row.on_gpu, row.verdict) for row in rails(links)] == [(True, NettestVerdict.OK)] * 4
    host = judge(order, {**texts, failed.id: told("Couldn't allocate MR", 1)}, enough=0.8)
    assert [link.verdict for link in host if link.why] == [NettestVerdict.SLOW]


def test_rails_that_are_apart_are_no_fault() -> None:
    order = ways(ports(4, 2))
    apart = {way.id: told("Failed status 12", 1) for way in order if way.between is Between.OTHER_RAIL}
    links = judge(order, printed(lambda _: 96.0, order) | apart, enough=0.8)
    assert {link.between for link in links} == {Between.RAIL} and {link.verdict for link in links} == {
        NettestVerdict.OK
    }


def test_ports_of_unknown_rate_are_compared_with_each_other() -> None:
    order = ways(ports(4, 1, rate=0.0))
    speeds = printed(lambda way: 5.0 if "node3" in (way.start.node, way.end.node) else 96.0, order)
    one = odd(judge(order, speeds, enough=0.8))
    assert one is not None and one.name == "node3 mlx5_0:1"
    assert {link.verdict for link in judge(order[:1], speeds, enough=0.8)} == {NettestVerdict.NONE}


def test_an_end_that_did_not_come_says_nothing_of_a_port() -> None:
    """The sender reaches no receiver, or the receiver waits until it is stopped."""
    order = ways(ports(4, 2))
    nobody = told((RECORDED / "nobody-listens.txt").read_text(), 1)
    waited = told(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}\n", -1)
    late = {way.id: (nobody, waited)[way.id % 2] for way in order if "node3" in (way.start.node, way.end.node)}
    links = judge(order, printed(lambda _: 96.0, order) | late, enough=0.8)
    assert len(links) == len(order) - len(late) and {link.verdict for link in links} == {NettestVerdict.OK}
    assert "node3" not in {row.end.node for row in rails(links)}
    connected = told(printed(lambda _: 96.0, order)[0].text.partition(" #bytes")[0], -1)
    assert [link.verdict for link in judge(order[:1], {0: connected}, enough=0.8)] == [NettestVerdict.SLOW]
