"""`doctor --watch`: checks repeatedly, and reports only what is new or resolved since the last check.

Findings are kept, so that a restarted watch continues from there.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

from orchestrator.doctor.steps.doctor import Examination, examine_inventory
from orchestrator.gang.steps.locks import user
from orchestrator.gang.steps.status.unfinished import this_process
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.steps.notify import Notifier
from orchestrator.monitoring.watching import FindingsChange, KnownFinding, difference, growths, known, notices
from orchestrator.node.look.gauges import ports
from orchestrator.protocol.gauges import GaugesAnswer
from orchestrator.records import audit
from orchestrator.records.documents import keep_look, last_look, looks_file


@dataclass
class DoctorWatch:
    """Look by look. command: for the audit log; accept, nodes: as of `doctor`."""

    inventory: Inventory
    notifier: Notifier
    command: str
    accept: Collection[str] = ()
    nodes: Collection[str] = ()
    _counters: Mapping[str, GaugesAnswer] = field(default_factory=dict)

    def look(self) -> FindingsChange:
        """Examine every node, tell and keep what has changed. Raises InputError where nothing can be kept."""
        seen = examine_inventory(self.inventory, accept=self.accept, nodes=self.nodes)
        file = looks_file(self.inventory.path)
        kept = last_look(file)
        before = tuple(_known(one) for one in kept[1]) if kept is not None else ()
        found, after = difference(before, known(seen.findings), {*seen.failures, *self._not_asked()})
        found = replace(found, silent=tuple(sorted(seen.failures)))
        counters = _counters(seen)
        found = replace(found, growths=growths(self._counters, counters))
        self._counters = {**self._counters, **counters}
        now = time.time()
        keep_look(file, now, [asdict(one) for one in after])
        self._note(found)
        for notice in notices(found, now):
            self.notifier.tell(notice)
        return found

    def _not_asked(self) -> set[str]:
        """Whose findings stay as they were: the nodes left out, and '' for the cluster, for which some can't speak."""
        left = {node.name for node in self.inventory.nodes if self.nodes and node.name not in self.nodes}
        return left | {""} if left else left

    def _note(self, found: FindingsChange) -> None:
        """In the audit log of this machine: the nodes' own logs record commands that changed them."""
        gangs = {node.name: node.gang for node in self.inventory.nodes}
        holder = {"who": user(), "host": socket.gethostname(), "command": self.command, "pid": this_process()["pid"]}
        for action, findings in (("found", found.new), ("gone", found.gone)):
            for one in findings:
                audit.note(action, gang=gangs.get(one.node, ""), holder=holder, why=one.words)


def _known(kept: Mapping[str, object]) -> KnownFinding:
    devices = kept.get("devices")
    return KnownFinding(
        id=str(kept["id"]),
        severity=str(kept["severity"]),
        node=str(kept["node"]),
        devices=tuple(map(str, devices)) if isinstance(devices, list) else (),
        title=str(kept["title"]),
        fix=str(kept["fix"]),
    )


def _counters(seen: Examination) -> dict[str, GaugesAnswer]:
    """The RDMA ports' counters in what was looked at."""
    return {
        name: GaugesAnswer(now=snapshot.taken_at, ports=ports(dict(snapshot.files)))
        for name, snapshot in seen.cluster.snapshots.items()
    }
