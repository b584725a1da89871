"""Nodes as they are, without the paths between them: from themselves, or from what --from names and what is written to
be read so: saved snapshots, machines that others recorded (a tarball of /sys and /proc, a sysfs directory), NCCL's
topologies, and texts that somebody pasted."""

from __future__ import annotations

import gzip
import html
import json
import re
import secrets
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from orchestrator.doctor.netplan import NodeFiles
from orchestrator.doctor.steps.doctor import Examination, check_accept, cluster_of, diagnose
from orchestrator.loading.given_files import lines_of_file, named_file
from orchestrator.model.chosen import chosen
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Overrides, Reach
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot, snapshot_from_json, snapshot_json
from orchestrator.model.topology import Topology
from orchestrator.node.look.hardware import PARTS
from orchestrator.node.look.reading import LARGEST_TEXT, SnapshotReader
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import InputError, VerificationDiffers
from orchestrator.records.documents import write_whole
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build
from orchestrator.topology.gpus import NVIDIA_GPUS, Accelerators
from orchestrator.topology.nccl_xml import beheaded, closed, nccl_xml, topology_of_xml
from orchestrator.topology.pasted.read import FORMS, read_pasted
from orchestrator.topology.rdma import natural
from orchestrator.topology.redaction import redact as under_pseudonyms
from orchestrator.topology.stated import recognised

SUFFIX = ".json"
PACKED = (SUFFIX, f"{SUFFIX}.gz")
TARBALLS = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar", ".tgz", ".tbz2", ".txz")
_LARGEST_SNAPSHOT = 64 << 20
_MOST_MEMBERS = 200_000
_MOST_TEXT = 64 << 20
_SYSFS_FOLDERS = ("bus", "class", "devices")


def save_snapshots(snapshots: Mapping[str, Snapshot], folder: Path) -> tuple[Path, ...]:
    """One JSON file a node, each replaced atomically. Raises InputError where the folder can't be written."""
    texts = {
        f"{file_name(name)}{SUFFIX}": f"{json.dumps(snapshot_json(snapshot), indent=1)}\n"
        for name, snapshot in snapshots.items()
    }
    return _write(texts, folder, "--save")


def dump_xml(topologies: Mapping[str, Topology], folder: Path) -> tuple[Path, ...]:
    """One NCCL topology file a node. Raises InputError where the folder can't be written."""
    return _write(
        {f"{file_name(name)}.xml": nccl_xml(topology) for name, topology in topologies.items()}, folder, "--dump-xml"
    )


def write_netplan(files: Iterable[NodeFiles], folder: Path) -> tuple[Path, ...]:
    """A folder of files a node. Raises InputError where they can't be written."""
    texts = {f"{file_name(node.node)}/{path}": text for node in files for path, (_, text) in node.wanted.items()}
    paths = _write(texts, folder, "--netplan")
    for path in paths:
        path.chmod(0o600)
    return paths


def _write(texts: Mapping[str, str], folder: Path, option: str) -> tuple[Path, ...]:
    for name, text in texts.items():
        write_whole(folder / name, text, folders=0o777, fix=f"choose another folder with {option}")
    return tuple(folder / name for name in texts)


def load_saved(path: Path) -> dict[str, Snapshot]:
    """Snapshots by node, from a folder of saved ones, one saved file, a tarball that hwloc-gather-topology made,
    or a directory that holds `sys` (and `proc`), or is a copy of /sys.

    Raises InputError where there is nothing of the kind.
    """
    if path.is_dir() and not _is_recorded(path):
        return _saved_folder(path)
    if not path.exists():
        raise InputError(
            "does not exist",
            where=str(path),
            fix="specify a file or folder of `l40s-deploy discover --save snapshots`",
        )
    if path.is_dir():
        snapshot = _recorded_directory(path)
    else:
        snapshot = _tarball(path) if path.name.endswith(TARBALLS) else _saved_file(path)
    return {snapshot.node: snapshot}


def file_name(node: str) -> str:
    """A node's name as one that stays in its folder."""
    name = quote(node, safe="")
    return name if name.strip(".") else name.replace(".", "%2E") or "node"


def _saved_folder(folder: Path) -> dict[str, Snapshot]:
    try:
        files = sorted(path for path in folder.iterdir() if path.name.endswith(PACKED) and path.name[0] != ".")
    except OSError as failure:
        raise InputError(f"can't be listed: {failure.strerror}", where=str(folder), fix="--from FOLDER") from None
    snapshots: dict[str, Snapshot] = {}
    for path in sorted(files, key=lambda path: natural(path.stem)):
        snapshot = _saved_file(path)
        if snapshot.node in snapshots:
            raise InputError(f"node {snapshot.node!r} appears twice", where=str(path), fix="keep one file per node")
        snapshots[snapshot.node] = snapshot
    if not snapshots:
        raise InputError(
            "contains no snapshot (*.json), and no `sys` or `bus`, `class`, `devices`",
            where=str(folder),
            fix="specify a folder from `l40s-deploy discover --save snapshots`, or one with a recorded /sys",
        )
    return snapshots


def _saved_file(path: Path) -> Snapshot:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read(_LARGEST_SNAPSHOT + 1)
        if len(data) > _LARGEST_SNAPSHOT:
            raise ValueError(f"is larger than {_LARGEST_SNAPSHOT >> 20} MiB")  # noqa: TRY301 - told with the others
        return snapshot_from_json(json.loads(data))
    except (OSError, EOFError, zlib.error) as failure:
        words = getattr(failure, "strerror", None) or failure
        raise InputError(f"can't be read: {words}", where=str(path), fix="--from PATH") from None
    except (ValueError, RecursionError) as wrong:
        raise InputError(
            f"is not a snapshot: {wrong}",
            where=str(path),
            fix="specify a file from `l40s-deploy discover --save snapshots`",
        ) from None


def _is_recorded(folder: Path) -> bool:
    """Whether a folder is a copy of /sys, or holds one."""
    return (folder / "sys").is_dir() or any((folder / name).is_dir() for name in _SYSFS_FOLDERS)


def _recorded_directory(folder: Path) -> Snapshot:
    """A recorded machine below a folder, read by the production reader."""
    mount = "" if (folder / "sys").is_dir() else "/sys"
    reader = SnapshotReader(root=str(folder), mount=mount)
    for read in PARTS.values():
        read(reader)
    return _snapshot(folder.resolve().name or "machine", reader.files, reader.links, reader.errors)


def _snapshot(name: str, files: dict[str, str], links: dict[str, str], errors: dict[str, str]) -> Snapshot:
    """NVML has no data of a recorded machine: its absence is reported as an error, as by the probe."""
    nvml, host = {"error": NOT_RECORDED}, {"hostname": name}
    return Snapshot(node=name, taken_at=0.0, files=files, links=links, errors=errors, nvml=nvml, host=host)


def _tarball(path: Path) -> Snapshot:
    """Read in memory: nothing of a foreign archive is written to disk."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    size = 0
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive):
                if count > _MOST_MEMBERS or size > _MOST_TEXT:
                    raise _unfit(path, "is larger than any recorded machine")
                place = _machine_path(member.name)
                if place and member.issym():
                    links[place] = member.linkname
                elif place and member.isreg() and member.size <= LARGEST_TEXT:
                    files[place], read = _text_and_size(member, archive)
                    size += read
    except (tarfile.TarError, EOFError, OSError, ValueError) as failure:
        raise _unfit(path, f"can't be read as a tarball: {failure}") from None
    if not any(place.startswith("/sys/") for place in files):
        raise _unfit(path, "contains no /sys")
    name = re.sub(r"\.(?:tar(?:\.(?:bz2|gz|xz))?|t(?:gz|bz2|xz))$", "", path.name)
    return _snapshot(name, files, links, {})


def _text_and_size(member: tarfile.TarInfo, archive: tarfile.TarFile) -> tuple[str, int]:
    """A file of the archive as a snapshot has it: a card's configuration space in hexadecimals."""
    file = archive.extractfile(member)
    data = file.read(LARGEST_TEXT) if file else b""
    text = data.hex() if member.name.endswith("/config") else data.decode("utf-8", "surrogateescape")
    return text, len(data)


def _unfit(path: Path, words: str) -> InputError:
    return InputError(words, where=str(path), fix="specify a tarball from hwloc-gather-topology")


def _machine_path(name: str) -> str:
    """The path on the machine of a member: 'name/sys/bus/...' is '/sys/bus/...'; '' for none."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    start = next((index for index, part in enumerate(parts[:2]) if part in ("sys", "proc", "etc")), None)
    return "" if start is None or ".." in parts else "/" + "/".join(parts[start:])


_FIX = (
    f"--from FILE, -, NAME=FILE or FOLDER, of {FORMS}, NCCL's topology XML, or what `discover --save` wrote; the cause"
    " of a failure in a log is shown by `why --log`"
)
_MOST_FILES = 256
_HAS_DEVICES = re.compile(r"<cpu [^<>]{1,400}>\s{0,64}<pci ")
"""In NCCL's topology: what comes before the first device."""


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
        forms = collected((form, name) for name, snapshot in self.snapshots.items() if (form := recognised(snapshot)))
        return "; ".join(
            f"{', '.join(dict.fromkeys(forms_of))} of {', '.join(names)}" for forms_of, names in forms.items()
        )


def given(names: Sequence[str]) -> Given:
    """Everything that is named, as one cluster. Raises InputError for what is nothing of the kind."""
    everything = Given()
    for name in names:
        node, file = named_file(name)
        named = _named(node, file, own=name != file)
        for twice in everything.snapshots.keys() & named.snapshots.keys():
            raise InputError(f"node {twice!r} appears twice", where=f"--from {name}", fix="name them: --from NAME=FILE")
        everything = Given({**everything.snapshots, **named.snapshots}, {**everything.topologies, **named.topologies})
    return everything


def _named(node: str, file: str, *, own: bool) -> Given:
    path = Path(file)
    if file != "-" and not path.exists():
        raise InputError("does not exist", where=file, fix=_FIX)
    saved = file != "-" and (_is_saved(path) if path.is_dir() else file.endswith((*TARBALLS, *PACKED)))
    if saved:
        everything = Given(load_saved(path))
    else:
        everything = _of_folder(path) if path.is_dir() else _of_text(node, file)
    if not everything.snapshots:
        raise InputError("contains nothing that is recognised", where=file, fix=_FIX)
    if not own or len(everything.snapshots) != 1:
        return everything
    (snapshot,) = everything.snapshots.values()  # one node, under the name that was asked for
    trees = [(node, replace(topology, node=node)) for topology in everything.topologies.values()]
    return Given({node: replace(snapshot, node=node)}, dict(trees))


def _is_saved(folder: Path) -> bool:
    inside = [entry.name for entry in folder.iterdir()]
    return _is_recorded(folder) or not inside or any(name.endswith(PACKED) for name in inside)


def _of_folder(folder: Path) -> Given:
    """A folder of folders, or of NCCL's topologies, has a node in each; the files of any other are one node's."""
    inner = sorted(entry for entry in folder.iterdir() if entry.name[0] != ".")
    homes = [entry for entry in inner if entry.is_dir()][:_MOST_FILES] or [folder]
    if homes == [folder] and (trees := [str(entry) for entry in inner if entry.suffix == ".xml"]):
        return given(trees)
    snapshots: dict[str, Snapshot] = {}
    for home in homes:
        for name, snapshot in read_pasted(_texts_in(home), home.resolve().name).items():
            snapshots.setdefault(name, snapshot)
    return Given(snapshots)


def _texts_in(home: Path) -> dict[str, str]:
    files = (entry for entry in sorted(home.iterdir())[:_MOST_FILES] if entry.is_file() and entry.name[0] != ".")
    return {entry.stem: "\n".join(lines_of_file(str(entry), _FIX)) for entry in files}


def _of_text(node: str, file: str) -> Given:
    text = "\n".join(lines_of_file(file, _FIX))
    if not text.strip():
        raise _nothing_in(file)
    name = node if file == "-" else Path(file).name.removesuffix(".gz").rpartition(".")[0] or node
    try:
        if text.lstrip().startswith("{") and '"format"' in text:
            snapshot = snapshot_from_json(json.loads(text))
            return Given({snapshot.node: snapshot})
        xmls = _systems_in(text)
        if xmls or file.endswith(".xml"):
            return _of_xmls(xmls or [text], name)
    except (ValueError, RecursionError) as wrong:
        raise InputError(str(wrong), where=file, fix=_FIX) from None
    return Given(read_pasted({name: text}, name))


def _of_xmls(xmls: Sequence[str], name: str) -> Given:
    """Nodes by NCCL's files, the first under the name of what has them."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(xmls) + 1))]
    empty = {each: Snapshot(node=each, taken_at=0.0, files={}, nvml={"error": NOT_RECORDED}) for each in names}
    return Given(empty, {each: topology_of_xml(xml, each) for each, xml in zip(names, xmls, strict=True)})


def _systems_in(text: str) -> list[str]:
    """The <system> elements of NCCL's topologies, closed where the text ends within one, and one whose beginning is
    not there; [] if there is none."""
    if "&lt;pci " in text:
        text = html.unescape(text)
    whole = _SYSTEM.findall(text)[:_MOST_FILES]
    start = text.find("<system")
    if not whole and start >= 0 and _HAS_DEVICES.search(text, start):
        return [closed(text[start:])]
    headless = start < 0 and _HAS_DEVICES.search(text)
    return [beheaded(text)] if headless else whole


_SYSTEM = re.compile(r"<system\b.*?</system>", re.DOTALL)


def _nothing_in(file: str) -> InputError:
    if file == "-":
        fix = "run the command before the pipe alone, and see why it prints nothing"
        return InputError("is empty", where="standard input", fix=fix)
    return InputError("is empty", where=file, fix="see why what wrote it printed nothing")


def examine_given(
    seen: Given, accelerators: Accelerators = NVIDIA_GPUS, *, accept: Collection[str] = (), redact: bool = False
) -> Examination:
    """The doctor on what --from named. Without an inventory all of it is taken for one gang, each node of which wants
    the GPUs that it shows. redact: under pseudonyms, nodes' names too"""
    hidden = redacted(seen.snapshots) if redact else seen.snapshots
    names = {name: snapshot.node if redact else name for name, snapshot in hidden.items()}
    topologies = {
        names[name]: replace(seen.topologies[name], node=names[name])
        if name in seen.topologies
        else build(snapshot, accelerators)
        for name, snapshot in hidden.items()
    }
    check_accept(accept, topologies)
    nodes = specs_of(topologies)
    snapshots = {names[name]: snapshot for name, snapshot in hidden.items()}
    return diagnose(cluster_of(nodes, topologies, snapshots, saved=True), {}, accept=accept)


def specs_of(topologies: Mapping[str, Topology]) -> list[NodeSpec]:
    """Recorded nodes as one gang, each of which wants the GPUs that it shows."""
    return [
        NodeSpec(
            name=name,
            gang="saved",
            node_rank=rank,
            reach=Reach(host=name, connection="local"),
            gpus=sum(1 for gpu in topology.gpus if not gpu.lost),
        )
        for rank, (name, topology) in enumerate(topologies.items())
    ]


def recorded_inventory(snapshots: Mapping[str, Snapshot]) -> Inventory:
    """Recorded nodes as a cluster of one gang."""
    specs = specs_of({name: build(snapshot) for name, snapshot in snapshots.items()})
    return Inventory(path="a recorded cluster", gangs=(GangSpec(name="saved", nodes=tuple(specs)),))


def discover_inventory(
    inventory: Inventory, only: Sequence[str] = (), accelerators: Accelerators = NVIDIA_GPUS, *, redact: bool = False
) -> Examination:
    """Inspect every node of an inventory (or those named) over connections of its own, without the paths between them.

    redact: everything that was seen is under pseudonyms, nodes' names too; failures keep theirs
    """
    nodes = [node for node in inventory.nodes if not only or node.name in only]
    with Fleet(nodes) as fleet:
        looked = look(fleet, nodes)
    seen = redacted(looked.values) if redact else looked.values
    snapshots = {snapshot.node: snapshot for snapshot in seen.values()}
    topologies = {name: build(snapshot, accelerators) for name, snapshot in snapshots.items()}
    specs = (_renamed(node, seen[node.name].node) for node in nodes if node.name in seen)
    return diagnose(cluster_of(specs, topologies, snapshots), looked.failures)


def _renamed(spec: NodeSpec, name: str) -> NodeSpec:
    """Under a pseudonym the inventory's addresses and names fit nothing any more."""
    return spec if spec.name == name else replace(spec, name=name, address=None, overrides=Overrides())


KEY_BYTES = 32


def redacted(snapshots: Mapping[str, Snapshot], tries: int = 3) -> dict[str, Snapshot]:
    """The same machines under pseudonyms, by their original names. The key is forgotten.

    Raises VerificationDiffers where something that tells who they are would stay: nothing may be shown then.
    """
    try:
        return dict(zip(snapshots, under_pseudonyms(snapshots.values(), secrets.token_bytes(KEY_BYTES)), strict=True))
    except ValueError as left:
        if tries > 1:  # a pseudonym may happen to be another one's original
            return redacted(snapshots, tries - 1)
        raise VerificationDiffers(
            f"data that identifies a machine would remain: {left}",
            where="--redact",
            fix="nothing was written. Inspect that part without --redact",
        ) from None
