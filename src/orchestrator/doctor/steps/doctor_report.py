"""The page that `doctor --report` writes: drawings, findings, evidence, costs and labels, for the data centre."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.doctor.rules.placement import nic_not_under_switch
from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.doctor.rules.support.registry import COSTLY, FindingGroup, devices_to_mark, grouped, who
from orchestrator.doctor.steps.doctor import Examination, NcclExpectation
from orchestrator.loading.resources import templates
from orchestrator.model.per_node import collected
from orchestrator.protocol.looks import LabelsAnswer
from orchestrator.protocol.severity import Severity
from orchestrator.records.documents import expect_writable, write_whole
from orchestrator.rendering import report_page
from orchestrator.topology.picture import Mark, Picture, alike, dot, picture, without_addresses
from orchestrator.topology.switches import empty_slots

_MOST_ROWS = 64
_MOST_DRAWINGS = 16


def refuse_unwritable(path: Path) -> None:
    """Before a node is asked. Raises InputError."""
    expect_writable(path, "name another file with --report")


def write_report(
    examination: Examination,
    expected: Sequence[NcclExpectation],
    path: Path,
    labels: Mapping[str, LabelsAnswer] | None = None,
) -> None:
    """Write the page. labels: what stands on each node, by name. Raises InputError where the file can't be written."""
    write_whole(path, report_html(page_of(examination, expected, labels or {})))


def report_html(page: Mapping[str, Any]) -> str:
    """The page as text. page: of `page_of`"""
    style = templates("page.css", "node_drawing.css")
    return report_page(page, templates("node_drawing.html.j2", "report.html.j2"), style)


def page_of(
    examination: Examination, expected: Sequence[NcclExpectation] = (), labels: Mapping[str, LabelsAnswer] | None = None
) -> dict[str, Any]:
    """What the template draws."""
    nodes = examination.cluster.nodes
    groups = grouped(examination.findings)
    numbers = {id(group): number for number, group in enumerate(groups, 1)}
    marks = {node.name: _marks(node, groups) for node in nodes}
    drawings = list(_drawings(nodes, marks))
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        "counts": {
            severity.value: sum(group.finding.severity is severity for group in groups) for severity in Severity
        },
        "node_count": len(nodes),
        "gpu_count": sum(len(node.gpus) for node in nodes),
        "findings": [_finding(group, numbers[id(group)], len(nodes)) for group in groups],
        "machines": [_machine(node, (labels or {}).get(node.name, LabelsAnswer())) for node in _shown(nodes, marks)],
        "network": _network(nodes if len(nodes) > 1 else (), marks),
        "drawings": drawings[:_MOST_DRAWINGS],
        "more_drawings": max(0, len(drawings) - _MOST_DRAWINGS),
        "expected": expected,
        "accepted": [
            {"id": group.finding.id, "title": group.finding.title, "who": who(group.nodes, len(nodes))}
            for group in grouped(examination.accepted)
        ],
        "unreachable": [{"name": name, "what": str(failure.what)} for name, failure in examination.failures.items()],
    }


def _finding(group: FindingGroup, number: int, nodes: int) -> dict[str, Any]:
    finding = group.finding
    return {
        "number": number,
        "id": finding.id,
        "severity": finding.severity.value,
        "who": who(group.nodes, nodes),
        "names": ", ".join(name or "the cluster" for name in group.nodes),
        "title": finding.title,
        "effect": finding.effect,
        "fix": finding.fix,
        "steps": sentences(finding.fix),
        "evidence_of": finding.node if len(group.nodes) > 1 else "",
        "evidence": finding.evidence,
    }


_SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z`])")


def sentences(text: str) -> list[str]:
    """A text's sentences; a command in backticks is not divided."""
    whole_sentences: list[str] = []
    for part in filter(None, _SENTENCE.split(text)):
        inside = bool(whole_sentences) and whole_sentences[-1].count("`") % 2 == 1
        whole_sentences[-1:] = [f"{whole_sentences[-1]} {part}"] if inside else [*whole_sentences[-1:], part]
    return whole_sentences


def _marks(node: Node, groups: Sequence[FindingGroup]) -> dict[str, Mark]:
    """What is wrong with which device of a node; the most severe finding counts, since they come in that order."""
    marks: dict[str, Mark] = {}
    for number, group in enumerate(groups, 1):
        finding = group.finding
        if node.name not in group.nodes:
            continue
        for device in devices_to_mark(finding):
            marks.setdefault(device, Mark(finding.severity.value, number))
        if finding.severity in COSTLY and finding.id == nic_not_under_switch.id:
            empty = empty_slots(node.topology, node.snapshot)
            for switch in node.roles.lonely:
                marks |= {f"slot {name}": Mark("target", number) for name in empty.get(switch.key, ())}
    return marks


def pictures(examination: Examination) -> dict[str, Picture]:
    """The drawing of every node that answered, with the numbers that `page_of` gives its findings."""
    groups = grouped(examination.findings)
    return {node.name: _picture(node, _marks(node, groups)) for node in examination.cluster.nodes}


def _picture(node: Node, marks: Mapping[str, Mark]) -> Picture:
    return picture(
        node.topology,
        marks,
        rails=node.rail_ports,
        tcp=node.tcp_side,
        slots=empty_slots(node.topology, node.snapshot),
    )


def _drawings(nodes: Sequence[Node], marks: Mapping[str, Mapping[str, Mark]]) -> Iterator[dict[str, Any]]:
    """A drawing for each kind of node: those with marks first, alike ones once."""
    kinds: list[tuple[Picture, list[str]]] = []
    for node in nodes:
        drawn = _picture(node, marks[node.name])
        names = next((names for other, names in kinds if alike(drawn, other)), None)
        if names is None:
            kinds.append((drawn, names := []))
        names.append(node.name)
    for drawn, names in sorted(kinds, key=lambda kind: not any(marks[name] for name in kind[1])):
        yield {"nodes": names, "picture": without_addresses(drawn) if len(names) > 1 else drawn}


def _network(nodes: Sequence[Node], marks: Mapping[str, Mapping[str, Mark]]) -> dict[str, Any]:
    """The paths between the nodes: one row per node, one column for TCP and one for each rail."""
    rails = max((len(node.rail_ports) for node in nodes), default=0)
    shown = _shown(nodes, marks)
    return {
        "rails": rails,
        "rows": [{"name": node.name, "cells": list(_cells(node, rails))} for node in shown],
        "left_out": len(nodes) - len(shown),
    }


def _shown(nodes: Sequence[Node], marks: Mapping[str, Mapping[str, Mark]]) -> list[Node]:
    """Those with findings first where a page can't hold all of them, in the inventory's order."""
    troubled = [node for node in nodes if marks[node.name]]
    rest = [node for node in nodes if not marks[node.name]]
    return sorted((troubled + rest)[:_MOST_ROWS], key=nodes.index)


_LINKS = {None: "", True: "up", False: "no link"}


def _machine(node: Node, labels: LabelsAnswer) -> dict[str, Any]:
    """Labels of one machine and its cables, to identify it on site."""
    switches = switch_ports(labels.neighbours)
    rdma = {port.netdev: port.device for port in node.topology.rdma if port.netdev}
    slots = {device.key: device.slot for device in node.topology.pci}
    return {
        "name": node.name,
        "host": node.topology.hostname,
        "product": node.product,
        "serial": serial(labels.serials),
        "bmc": bmc(labels.bmc),
        "unread": [f"{name}: {why}" for name, why in labels.unread.items()],
        "ports": [
            {
                "name": interface.name,
                "rdma": rdma.get(interface.name, ""),
                "mac": labels.macs.get(interface.name) or interface.mac,
                "slot": slots.get(interface.key, ""),
                "address": interface.address,
                "link": _LINKS[interface.carrier],
                "switch": switches.get(interface.name, ""),
            }
            for interface in node.topology.interfaces
            if interface.key
        ],
    }


def _cells(node: Node, rails: int) -> Iterator[dict[str, str]]:
    tcp = node.tcp
    carries_all = bool(node.topology.rdma) and not node.usable and node.spec.transport != "tcp"
    if tcp is None:
        yield {"state": "down", "name": "no shared network", "detail": ""}
    else:
        yield {"state": "busy" if carries_all else "up", "name": tcp.interface, "detail": tcp.address}
    for port in node.rail_ports:
        state, detail = dot(port, node.topology)
        state = "far" if state == "up" and port in node.roles.away else state
        yield {"state": state, "name": port.device, "detail": detail}
    for _ in range(rails - len(node.rail_ports)):
        yield {"state": "none", "name": "", "detail": "no port"}


_PLACEHOLDERS = re.compile(r"(?i)(to be filled.*|default string|none|not specified|0+|system serial number|n/?a)?")
"""What boards report if no serial number was set."""
_NOWHERE = "0.0.0.0"  # noqa: S104 - a BMC without an address says so


def serial(serials: Mapping[str, str]) -> str:
    """The number that a chassis is known by: its own, else the product's, else the board's."""
    known = (serials.get(name, "").strip() for name in ("chassis_serial", "product_serial", "board_serial"))
    return next((text for text in known if not _PLACEHOLDERS.fullmatch(text)), "")


def bmc(lines: Sequence[str]) -> str:
    """The address of the board's management controller from `ipmitool lan print`, with its MAC address in brackets; ''
    where unknown."""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(": ") for line in lines)}
    address, mac = fields.get("IP Address", ""), fields.get("MAC Address", "")
    return " ".join(filter(None, (address if address != _NOWHERE else "", f"({mac})" if mac else "")))


def switch_ports(text: str) -> dict[str, str]:
    """{interface: switch and port} from `lldpcli -f keyvalue show neighbors`; of several neighbours the first.

    An interface's name may hold a dot (a VLAN), so it is read up to the part's name.
    """
    matches = filter(None, (_KEY.fullmatch(line.strip()) for line in text.splitlines()))
    keys_of = collected((match[1], (match[2], match[3])) for match in matches)
    return {name: words for name, keys in keys_of.items() if (words := _words(dict(reversed(keys))))}


_KEY = re.compile(r"lldp\.(.{1,15}?)\.(chassis\.(?:name|mac|mgmt-ip)|port\.(?:ifname|descr|local|mac))=(.{1,200})")


def _words(keys: Mapping[str, str]) -> str:
    ports = ("port.ifname", "port.local", "port.descr", "port.mac")
    switch = next((keys[key] for key in ("chassis.name", "chassis.mgmt-ip", "chassis.mac") if key in keys), "")
    port = next((keys[key] for key in ports if key in keys), "")
    return f"{switch} {port}".strip()
