"""Which device of a node a finding is drawn on: the one judge of what a drawing marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.model.finding import Finding, Severity

MARKED = (Severity.STOP, Severity.SLOW)


def devices_to_mark(finding: Finding) -> Sequence[str]:
    """The devices that a drawing marks; none for a note or an unknown. A finding that names places on the PCI bus is
    marked there, not on the ports that it names with them."""
    if finding.severity not in MARKED:
        return ()
    places = [device for device in finding.devices if ":" in device]
    return places or finding.devices


def marks_of(node: str, findings: Iterable[Finding], titles: Mapping[str, str]) -> dict[str, str]:
    """{device of a node: what is wrong with it}, with the finding's id. titles: of the rules, by id."""
    marks: dict[str, list[str]] = {}
    for finding in findings:
        if finding.node == node:
            for device in devices_to_mark(finding):
                words = f"{titles.get(finding.id, finding.title)} ({finding.id})"
                if words not in marks.setdefault(device, []):
                    marks[device].append(words)
    return {device: "; ".join(words) for device, words in marks.items()}
