"""What was measured: nvbandwidth, perftest (ib_write_bw and its like), the last lines of nccl-tests; and what ethtool
says of a link and its pauses.
"""

from __future__ import annotations

import re
from typing import Any

from orchestrator.topology.pasted.facts import PastedFacts

NVBANDWIDTH = "nvbandwidth"
DEVICE = re.compile(
    r"Device (?P<index>\d{1,3}): (?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?)(?: \([0-9a-f:]{4,24}\))?\s*"
)
BEGIN = re.compile(r"nvbandwidth Version: v?[\w.-]{1,24}\s*")
DRIVER = re.compile(r"Driver Version: (?P<driver>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\s*")
MATRIX = re.compile(
    r"memcpy (?P<engine>CE|SM) (?P<row>CPU|GPU)\(row\) (?P<way><->|->|<-) (?P<column>CPU|GPU)\(column\)"
    r" bandwidth \(GB/s\)\s*"
)
ROW = re.compile(r"\s{0,8}\d{1,3}(?P<cells>(?:\s+(?:N/A|\d{1,5}\.\d{1,3})){1,64})\s*")
WAIVED = re.compile(r"Waiving (?P<test>\w{4,64})\.?\s*")

TEST = re.compile(
    r"\s{2,64}(?P<test>(?:RDMA_(?:Write|Read)|Send|Atomic_\w{2,12}) (?:Bidirectional )?(?:BW|Latency) Test)\s*"
)
TEST_FIELD = re.compile(
    r"\s(?P<field>Device|Mtu|Link type|G(?:ID|id) index|Number of qps) {1,24}: (?P<value>[\w.\[\]-]{1,48})"
)
TEST_FIELDS = re.compile(rf".{{0,64}}?{TEST_FIELD.pattern}.{{0,128}}")
TEST_HEAD = re.compile(r"\s{0,16}#bytes\s+#iterations\s+BW peak\[(?P<unit>[GM](?:b|i?B)/sec)\]\s+BW average.{0,64}")
TEST_ROW = re.compile(
    r"\s{0,16}(?P<bytes>\d{1,10})\s+\d{1,10}\s+\d{1,9}\.\d{1,3}\s+(?P<average>\d{1,9}\.\d{1,3})\s.{0,64}"
)

BUS = re.compile(r"#\s{1,4}Avg bus bandwidth\s{1,8}: (?P<gbs>\d{1,6}(?:\.\d{1,8})?)\s*")
WRONG = re.compile(r"#\s{1,4}Out of bounds values : (?P<count>[1-9]\d{0,12}) FAILED\s*")
USED = re.compile(
    r"#\s{1,4}Rank\s{1,4}\d{1,5} uses device\s{1,4}\d{1,3} \[(?P<address>[0-9a-fA-Fx:]{2,16})\]"
    r" (?P<name>[A-Z][\w .-]{2,60}?)\s*"
)

ETHTOOL = re.compile(r"Settings for (?P<name>[\w.@-]{1,32}):\s*")
ETHTOOL_FIELD = re.compile(r"\s+(?P<field>Speed|Link detected): (?P<value>\S.{0,32})")
PAUSE = re.compile(r"Pause parameters for (?P<name>[\w.@-]{1,32}):\s*")
PAUSE_FIELD = re.compile(r"(?P<field>Autonegotiate|RX|TX):\s{1,8}(?P<value>on|off)\s*")
COUNTER = re.compile(
    r"(?:.{0,128}[/\s])?(?P<name>[rt]x_prio\d_(?:pause|discards)|[rt]x_discards_phy|rx_out_of_buffer|out_of_sequence"
    r"|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|roce_adp_retrans|np_cnp_sent|rp_cnp_handled|link_downed"
    r"|symbol_error|port_rcv_errors|port_xmit_discards|port_xmit_wait)[:\s]\s{0,12}(?P<count>[1-9]\d{0,18})\s*"
)
"""What mlx5 counts of pauses, losses and congestion (Linux Documentation/networking/device_drivers), if it is not 0."""


FILE = re.compile(
    r"(?P<path>/sys/class/infiniband/[A-Za-z][\w.@-]{0,63}/ports/\d{1,3}/(?:hw_)?counters/\w{3,48}):(?P<count>\d{1,20})\s*"
)
"""Of `grep . /sys/class/infiniband/*/ports/*/hw_counters/*`."""
RUN = re.compile(
    r"\s{0,16}(?P<size>\d{1,14})\s+\d{1,14}\s+(?:float|half|bfloat16|double|u?int\d{1,2}|u?int8|fp8\w{0,8})\s+\w{3,8}"
    r"(?:\s+-?\d{1,4})?\s+\d{1,12}(?:\.\d{1,4})?\s+\d{1,6}\.\d{1,4}\s+(?P<bus>\d{1,6}\.\d{1,4})\s.{0,96}"
)
"""A row of nccl-tests: its largest size tells most."""


def bandwidth(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of nvbandwidth; at: whose matrix a row belongs to."""
    if match.re is DRIVER:
        facts.driver = facts.driver or match["driver"]
    elif match.re is DEVICE:
        facts.gpus.append({"index": int(match["index"]), "name": match["name"]})
    elif match.re is MATRIX:
        return f"{match['row']} {match['way']} {match['column']} ({match['engine']})"
    elif match.re is WAIVED:
        facts.also.setdefault("waived", []).append(match["test"])
    elif match.re is ROW and at:
        speeds: dict[str, list[float]] = facts.also.setdefault("bandwidths", {})
        cells = match["cells"].split()
        numbers = speeds.setdefault(f"{at}, {len(cells)} GPUs", [])
        numbers.extend(float(cell) for cell in cells if cell != "N/A")
    return at


def tested(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of perftest; at: the unit of its results."""
    runs: list[dict[str, str]] = facts.also.setdefault("perftest", [])
    if match.re is TEST:
        runs.append({"test": match["test"]})
        return ""
    if match.re is TEST_HEAD:
        return match["unit"]
    if match.re is TEST_FIELDS:
        fields = {field["field"]: field["value"] for field in TEST_FIELD.finditer(f" {match[0]}")}
        runs[-1] |= {name.replace("Gid", "GID"): value for name, value in fields.items()}
    elif at and runs[-1].get("bytes", "").zfill(10) <= match["bytes"].zfill(10):
        runs[-1] |= {"bytes": match["bytes"], "average": f"{float(match['average']):g} {at}"}
    return at


def collective(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line at the end of nccl-tests, or of those that list its devices in its older form."""
    if match.re is RUN:
        largest: list[Any] = facts.also.setdefault("largest", [0, ""])
        if int(match["size"]) >= largest[0]:
            facts.also["largest"] = [int(match["size"]), match["bus"]]
    elif match.re is USED:
        facts.also.setdefault("tested", []).append([match["name"], match["address"].lower().removeprefix("0x")])
    elif match.re is BUS:
        facts.also.setdefault("bus", []).append(f"{float(match['gbs']):.3g} GB/s")
    else:
        facts.also["wrong_values"] = int(match["count"])
    return at


def ethernet(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of ethtool; at: the interface, and whether its pauses are told."""
    if match.re in (ETHTOOL, PAUSE):
        return f"{'pauses of ' if match.re is PAUSE else ''}{match['name']}"
    if match.re is COUNTER:
        counters: dict[str, Any] = facts.also.setdefault("counters", {})
        counters[match["name"]] = max(int(match["count"]), counters.get(match["name"], 0))
    elif match.re is FILE:
        facts.files[match["path"]] = match["count"]
    elif at:
        facts.also.setdefault("ethtool", {}).setdefault(at, {})[match["field"]] = match["value"].strip()
    return at
