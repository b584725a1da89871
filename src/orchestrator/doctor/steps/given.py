"""What --from names: saved snapshots, recorded machines, NCCL's topologies, and texts that somebody pasted."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.doctor.steps.doctor import Examination, examine_topologies
from orchestrator.doctor.steps.recordings import PACKED, TARBALLS, is_recorded, load_saved
from orchestrator.gang.steps.status.log_files import lines_of_file, named_file
from orchestrator.model.chosen import chosen
from orchestrator.model.errors import InputError
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.model.snapshot_json import snapshot_from_json
from orchestrator.model.topology import Topology
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.nccl_xml import topology_of_xml
from orchestrator.topology.pasted.read import FORMS, read_pasted
from orchestrator.topology.stated import recognised

_FIX = (
    f"--from FILE, -, NAME=FILE or FOLDER, of {FORMS}, NCCL's topology XML, or what `discover --save` wrote; the cause"
    " of a failure in a log is shown by `l40s-deploy why --log FILE`"
)
_MOST_FILES = 256


@dataclass(frozen=True, slots=True)
class Given:
    """Nodes by name. topologies: of those that are NCCL's XML, whose snapshots are empty"""

    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)

    def only(self, names: Sequence[str], where: str) -> Given:
        """These nodes; all if none is named. Raises InputError for one that is not there."""
        return replace(self, snapshots=chosen(self.snapshots, names, where))

    @property
    def words(self) -> str:
        """What was recognised: 'nvidia-smi topo -m, lspci -tv of node0'; '' where nothing was pasted."""
        forms = collected((found, name) for name, one in self.snapshots.items() if (found := recognised(one)))
        return "; ".join(f"{', '.join(dict.fromkeys(found))} of {', '.join(names)}" for found, names in forms.items())


def given(names: Sequence[str]) -> Given:
    """Everything that is named, as one cluster. Raises InputError for what is nothing of the kind."""
    found = Given()
    for name in names:
        node, file = named_file(name)
        one = _named(node, file, own=name != file)
        for twice in found.snapshots.keys() & one.snapshots.keys():
            raise InputError(f"node {twice!r} appears twice", where=f"--from {name}", fix="name them: --from NAME=FILE")
        found = Given({**found.snapshots, **one.snapshots}, {**found.topologies, **one.topologies})
    return found


def _named(node: str, file: str, *, own: bool) -> Given:
    path = Path(file)
    if file != "-" and not path.exists():
        raise InputError("does not exist", where=file, fix=_FIX)
    saved = file != "-" and (_is_saved(path) if path.is_dir() else file.endswith((*TARBALLS, *PACKED)))
    found = Given(load_saved(path)) if saved else _of_folder(path) if path.is_dir() else _of_text(node, file)
    if not found.snapshots:
        raise InputError("contains nothing that is recognised", where=file, fix=_FIX)
    return _called(node, found) if own else found


def _called(node: str, found: Given) -> Given:
    """Under the name that was asked for, where it is one node."""
    if len(found.snapshots) != 1:
        return found
    (snapshot,) = found.snapshots.values()
    topologies = [(node, replace(one, node=node)) for one in found.topologies.values()]
    return Given({node: replace(snapshot, node=node)}, dict(topologies))


def _is_saved(folder: Path) -> bool:
    inside = [one.name for one in folder.iterdir()]
    return is_recorded(folder) or not inside or any(name.endswith(PACKED) for name in inside)


def _of_folder(folder: Path) -> Given:
    """A folder of folders, or of NCCL's topologies, has a node in each; the files of any other are one node's."""
    inner = sorted(one for one in folder.iterdir() if one.name[0] != ".")
    homes = [one for one in inner if one.is_dir()][:_MOST_FILES] or [folder]
    if homes == [folder] and (trees := [str(one) for one in inner if one.suffix == ".xml"]):
        return given(trees)
    found: dict[str, Snapshot] = {}
    for home in homes:
        for name, one in read_pasted(_texts_in(home), home.resolve().name).items():
            found.setdefault(name, one)
    return Given(found)


def _texts_in(home: Path) -> dict[str, str]:
    files = (one for one in sorted(home.iterdir())[:_MOST_FILES] if one.is_file() and one.name[0] != ".")
    return {one.stem: "\n".join(lines_of_file(str(one), _FIX)) for one in files}


def _of_text(node: str, file: str) -> Given:
    text = "\n".join(lines_of_file(file, _FIX))
    name = node if file == "-" else Path(file).name.removesuffix(".gz").rpartition(".")[0] or node
    try:
        if text.lstrip().startswith("{") and '"format"' in text:
            snapshot = snapshot_from_json(json.loads(text))
            return Given({snapshot.node: snapshot})
        start, end = text.find("<system"), text.rfind("</system>")
        if 0 <= start < end or file.endswith(".xml"):
            text = text[start : end + len("</system>")] if 0 <= start < end else text
            empty = Snapshot(node=name, taken_at=0.0, files={}, nvml={"error": NOT_RECORDED})
            return Given({name: empty}, {name: topology_of_xml(text, name)})
    except (ValueError, RecursionError) as wrong:
        raise InputError(str(wrong), where=file, fix=_FIX) from None
    return Given(read_pasted({name: text}, name))


def examine_given(seen: Given, options: BuildOptions | None = None, *, accept: Collection[str] = ()) -> Examination:
    """The doctor on what --from named; without an inventory each node is taken to want the GPUs that it shows."""
    topologies = {name: seen.topologies.get(name) or build(one, options) for name, one in seen.snapshots.items()}
    return examine_topologies(topologies, seen.snapshots, accept=accept)
