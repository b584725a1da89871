"""What --from names: saved snapshots, recorded machines, NCCL's topologies, and texts that somebody pasted."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.doctor.steps.doctor import Examination, examine_topologies
from orchestrator.doctor.steps.recordings import TARBALLS, is_recorded, load_saved
from orchestrator.gang.steps.status.log_files import lines_of_file, named_file
from orchestrator.model.chosen import no_such
from orchestrator.model.errors import InputError
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.model.snapshot_json import snapshot_from_json
from orchestrator.model.topology import Topology
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.nccl_xml import topology_of_xml
from orchestrator.topology.pasted.read import FORMS, read_pasted, recognised

_FIX = (
    f"--from FILE, -, NAME=FILE or FOLDER, of {FORMS}, NCCL's topology XML, or what `discover --save` wrote; the cause"
    " of a failure in a log is shown by `l40s-deploy why --log FILE`"
)
_SAVED = (".json", ".json.gz")
_MOST_FILES = 256


@dataclass(frozen=True, slots=True)
class Given:
    """Nodes by name. topologies: of those that are NCCL's XML, whose snapshots are empty"""

    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)

    def only(self, names: Sequence[str], where: str) -> Given:
        """These nodes; all if none is named. Raises InputError for one that is not there."""
        for name in names:
            if name not in self.snapshots:
                raise no_such("node", name, list(self.snapshots), where=where)
        return replace(self, snapshots={n: one for n, one in self.snapshots.items() if not names or n in names})

    @property
    def words(self) -> str:
        """What was recognised: 'nvidia-smi topo -m, lspci -tv of node0'; '' where nothing was pasted."""
        forms: dict[tuple[str, ...], list[str]] = {}
        for name, snapshot in self.snapshots.items():
            if found := recognised(snapshot):
                forms.setdefault(found, []).append(name)
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
    if file != "-" and (files := _xml_files(path)):
        return _of_topologies({node if own else one.stem: _topology_of(one) for one in files})
    saved = file != "-" and (
        path.name.endswith((*TARBALLS, ".json", ".json.gz")) or (path.is_dir() and _is_saved(path))
    )
    found = Given(load_saved(path)) if saved else _of_folder(path) if path.is_dir() else _of_text(node, file)
    return _called(node, found) if own else found


def _called(node: str, found: Given) -> Given:
    """Under the name that was asked for, where it is one node."""
    if len(found.snapshots) != 1:
        return found
    (snapshot,) = found.snapshots.values()
    topologies = [(node, replace(one, node=node)) for one in found.topologies.values()]
    return Given({node: replace(snapshot, node=node)}, dict(topologies))


def _is_saved(folder: Path) -> bool:
    return (
        is_recorded(folder) or any(one.name.endswith(_SAVED) for one in folder.iterdir()) or not any(folder.iterdir())
    )


def _of_folder(folder: Path) -> Given:
    """A folder of folders has a node in each; the files of any other are one node's."""
    inner = sorted(one for one in folder.iterdir() if one.name[0] != ".")
    homes = [one for one in inner if one.is_dir()][:_MOST_FILES] or [folder]
    found: dict[str, Snapshot] = {}
    for home in homes:
        texts = {
            one.stem: "\n".join(lines_of_file(str(one), _FIX))
            for one in sorted(home.iterdir())[:_MOST_FILES]
            if one.is_file() and one.name[0] != "."
        }
        found |= {name: one for name, one in read_pasted(texts, home.resolve().name).items() if name not in found}
    if not found:
        raise InputError("contains nothing that is recognised", where=str(folder), fix=_FIX)
    return Given(found)


def _of_text(node: str, file: str) -> Given:
    text = "\n".join(lines_of_file(file, _FIX))
    name = node if file == "-" else Path(file).name.removesuffix(".gz").rpartition(".")[0] or node
    try:
        if text.lstrip().startswith("{") and '"format"' in text:
            snapshot = snapshot_from_json(json.loads(text))
            return Given({snapshot.node: snapshot})
        start, end = text.find("<system"), text.rfind("</system>")
        if 0 <= start < end:
            return _of_topologies({name: topology_of_xml(text[start : end + len("</system>")], name)})
    except (ValueError, RecursionError) as wrong:
        raise InputError(str(wrong), where=file, fix=_FIX) from None
    if found := read_pasted({name: text}, name):
        return Given(found)
    raise InputError("contains nothing that is recognised", where=file, fix=_FIX)


def _of_topologies(topologies: Mapping[str, Topology]) -> Given:
    empty = {name: Snapshot(node=name, taken_at=0.0, files={}, nvml={"error": NOT_RECORDED}) for name in topologies}
    return Given(empty, dict(topologies))


def _xml_files(path: Path) -> tuple[Path, ...]:
    """The topologies that NCCL wrote: the file, or all of a folder that holds nothing else to read."""
    if path.suffix == ".xml" and not path.is_dir():
        return (path,)
    names = tuple(sorted(path.iterdir())) if path.is_dir() else ()
    readable = [one for one in names if one.suffix == ".json" or one.is_dir()]
    return () if readable else tuple(one for one in names if one.suffix == ".xml")


def _topology_of(path: Path) -> Topology:
    try:
        return topology_of_xml(path.read_text("utf-8", "replace"), path.stem)
    except OSError as failure:
        raise InputError(f"can't be read: {failure.strerror}", where=str(path), fix="--from PATH") from None
    except ValueError as wrong:
        raise InputError(
            str(wrong), where=str(path), fix="specify a file that NCCL wrote with NCCL_TOPO_DUMP_FILE"
        ) from None


def examine_given(seen: Given, options: BuildOptions | None = None, *, accept: Collection[str] = ()) -> Examination:
    """The doctor on what --from named; without an inventory each node is taken to want the GPUs that it shows."""
    topologies = {name: seen.topologies.get(name) or build(one, options) for name, one in seen.snapshots.items()}
    return examine_topologies(topologies, seen.snapshots, accept=accept)
