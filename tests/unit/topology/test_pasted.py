"""What people paste: read cell by cell as it was posted, whatever a terminal, a forum or a log put around it."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.turns import sampled
from tests.support.waiting import examples

from orchestrator.doctor.commands.findings import document
from orchestrator.doctor.rules.support.registry import COSTLY
from orchestrator.doctor.steps import recordings
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.snapshot import Snapshot, snapshot_from_json, snapshot_json
from orchestrator.model.topology import PathType, Topology
from orchestrator.protocol.errors import InputError
from orchestrator.topology.build import build
from orchestrator.topology.nccl_xml import topology_of_xml
from orchestrator.topology.pasted.read import read_pasted
from orchestrator.topology.paths import NO_TREE, matrix, paths, shape, stated_groups
from orchestrator.topology.redaction import redact
from orchestrator.topology.stated import cards_of, lacking_of, recognised
from orchestrator.topology.text_facts import text_facts

RECORDED = Path(__file__).parents[2] / "recorded"
PASTED = RECORDED / "pasted"
POSTS = sorted(path.stem for path in PASTED.glob("*.topo"))
HALVES = ("GPU0", "GPU1", "GPU2", "GPU3"), ("GPU4", "GPU5", "GPU6", "GPU7")


def post(name: str) -> str:
    return (PASTED / name).read_text()


def only(text: str) -> Snapshot:
    (snapshot,) = read_pasted({"post": text}, "post").values()
    return snapshot


def cells(text: str) -> dict[tuple[str, str], str]:
    """An own reading of a tab-separated matrix: {(row, column): cell}."""
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    return {(row[0], head): cell for row in rows[1:] for head, cell in zip(rows[0][1:], row[1:], strict=False)}


def found(*snapshots: Snapshot) -> dict[str, str]:
    seen = examine_given(Given({snapshot.node: snapshot for snapshot in snapshots}))
    return {one.id: one.severity.value for one in seen.findings}


@pytest.mark.parametrize("name", POSTS)
def test_a_matrix_is_printed_back_as_it_was_posted(name: str) -> None:
    text = post(f"{name}.topo")
    snapshot = only(text)
    assert matrix(build(snapshot)) == text.rstrip("\n")
    assert recognised(snapshot) == ("nvidia-smi topo -m",)
    again = snapshot_from_json(snapshot_json(snapshot))
    (hidden,) = redact([snapshot], b"k" * 32)
    assert cells(matrix(build(again))) == cells(text) == cells(matrix(build(hidden)))
    assert hidden.node != snapshot.node
    wrong = {"NIC-MISSING": "slow"} if name == "8x4090-bond" else {}
    assert found(snapshot) == {**wrong, "NOT-RECORDED": "unknown"}


def wrapped(text: str, width: int = 40) -> str:
    """As a narrow terminal shows it, broken between cells."""
    lines = []
    for line in text.splitlines():
        row = ""
        for cell in line.replace("\t", " \t").split("\t") if "\t" in line else [line]:
            if len(row) + len(cell) > width and row.strip():
                lines.append(row)
                row = ""
            row += f"{cell}\t" if "\t" in line else cell
        lines.append(row)
    return "\n".join(lines)


def before(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


PREFIXES = {
    "bars": "| ",
    "quoted": "> ",
    "quoted twice": ">> ",
    "indented": "    ",
    "pdsh": "gpu-17: ",
    "kubectl": "[pod/gpu-17/engine] ",
    "compose": "gpu-17  | ",
    "docker, timestamps": "2026-11-25T10:11:12.123456789Z ",
    "CRI": "2026-11-25T10:11:12.123456789Z stdout F ",
    "journald": "Nov 25 10:11:12 gpu-17 sglang[4711]: ",
    "journald, ISO": "2026-11-25T10:11:12+0000 gpu-17 engine[11]: ",
    "srun": "0: ",
}
AROUND: dict[str, Callable[[str], str]] = {name: partial(before, prefix) for name, prefix in PREFIXES.items()} | {
    "colours without their escape": lambda text: text.replace("\tGPU0", "\t[4mGPU0", 1).replace(
        "NUMA ID", "NUMA ID[0m"
    ),
    "colours in carets": lambda text: text.replace("\tGPU0", "\t^[[4mGPU0", 1).replace("NUMA ID", "NUMA ID^[[0m"),
    "ansible": lambda text: f"gpu-17 | CHANGED | rc=0 >>\n{text}",
    "underlined and bold": lambda text: re.sub(
        r"(?m)^(GPU\d)", r"**\1**", text.replace("\nGPU0\t", f"\n|{'---|' * 9}\nGPU0\t", 1)
    ),
    "after topo -p2p": lambda text: f"\tGPU0\tGPU1\t\nGPU0\tX\tOK\t\nGPU1\tOK\tX\t\n\n{text}",
    "colours": lambda text: text.replace("\tGPU0", "\t\x1b[4mGPU0").replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "spaces": lambda text: text.replace("\t", "     "),
    "no-break spaces": lambda text: text.replace("\t", "\xa0\xa0"),
    "Markdown table": lambda text: "".join(
        f"| {line.strip().replace(chr(9), ' | ')} |\n" if "\t" in line else f"{line}\n" for line in text.splitlines()
    ),
    "semicolons": lambda text: "".join(
        f"{line.replace(chr(9), ';')}\n" if "\t" in line else f"{line}\n" for line in text.splitlines()
    ),
    "commas": lambda text: "".join(
        ",".join(f'"{cell}"' if "," in cell else cell.strip() for cell in line.split("\t")) + "\n"
        for line in text.splitlines()
    ),
    "fenced, amid words": lambda text: f"### My box\n\nIt hangs, see GPU0 below:\n```console\n{text}\n```\nThanks!\n",
    "in HTML": lambda text: f"<pre><code>{text}</code></pre>",
    "a translated legend": lambda text: text.replace(": mlx", "\uff1amlx"),
    "a list for a legend": lambda text: text.replace("  NIC0:", "* NIC0:").replace("  NIC1:", "- NIC1:"),
    "prompt": lambda text: f"(base) root@gpu-17:~/x# nvidia-smi topo -m\n{text}root@gpu-17:~/x# ",
    "wrapped": wrapped,
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "trailing tabs": lambda text: text.replace("\n", "\t\n"),
    "kubectl, of another beside it": lambda text: (
        before("[pod/gpu-17/engine] ", text) + before("[pod/b/engine] ", "ok")
    ),
    "journald, posted": lambda text: "How is this?\n" + before("> Nov 25 10:11:12 gpu-17 a.service[1]: ", text),
    "docker's JSON": lambda text: "".join(json.dumps({"log": one}) + "\n" for one in text.splitlines(keepends=True)),
    "ansible's stdout_lines": lambda text: (
        'ok: [gpu-17] => {\n    "stdout_lines": [\n'
        + ",\n".join(f"        {json.dumps(line)}" for line in text.splitlines())
        + "\n    ]\n}\n"
    ),
    "check_env": lambda text: f"GPU 0: NVIDIA L40S\nCUDA Driver Version: 550.127.05\nNVIDIA Topology: \n{text}",
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", POSTS)
def test_whatever_is_put_around_it(name: str, around: str) -> None:
    text = post(f"{name}.topo")
    snapshot = only(AROUND[around](text))
    assert cells(matrix(build(snapshot))) == cells(text)
    assert snapshot.node == ("gpu-17" if "gpu-17" in AROUND[around]("\n") else "post")


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ["articles.lspci-tv", "articles.lspci-vvv"])
def test_a_tree_with_something_around_it_is_no_other_tree(name: str, around: str) -> None:
    """What takes its indentation away leaves no place known."""
    text = post(name)
    plain, seen = only(text), read_pasted({"post": AROUND[around](text)}, "post")
    known = [snapshot for snapshot in seen.values() if snapshot.files]
    assert all(snapshot.files.items() <= plain.files.items() for snapshot in known)
    whole = [snapshot for snapshot in known if (snapshot.files, snapshot.links) == (plain.files, plain.links)]
    assert whole or around in LOSES_INDENTATION


LOSES_INDENTATION = ("wrapped", "Markdown table", "check_env", "commas", "semicolons")


WIDTHS = 8
"""Of a forum's column; `make long` plays all."""


@pytest.mark.parametrize("around", ["", "kubectl", "quoted"])
@pytest.mark.parametrize("name", ["8x4090-bond.topo", "l20-vm8.topo", "articles.lspci-tv", "articles.lspci-vvv"])
def test_what_a_forum_wrapped_is_unknown_rather_than_wrong(name: str, around: str) -> None:
    for width in sampled(f"{name} {around}", range(24, 160, 4), WIDTHS):
        unknown_rather_than_wrong(post(name), around, width, is_matrix=name.endswith(".topo"))


def unknown_rather_than_wrong(text: str, around: str, width: int, *, is_matrix: bool) -> None:
    lines = (AROUND[around](text) if around else text).splitlines()
    folded = "\n".join(line[at : at + width] for line in lines for at in range(0, len(line) or 1, width))
    plain = only(text)
    for snapshot in read_pasted({"post": folded}, "post").values():
        told = {path: said for path, said in snapshot.files.items() if path.endswith(("/class", "_width", "_speed"))}
        files = {path: said for path, said in told.items() if said != "0x000000"}
        assert files.items() <= plain.files.items(), width
        if not files and is_matrix:
            assert cells(matrix(build(snapshot))).items() <= cells(text).items()


def test_what_was_cut_off_is_unknown_and_nothing_is_found_by_it() -> None:
    lines = post("8x4090-bond.topo").splitlines()
    short = "\n".join("\t".join(line.split("\t")[:10]) for line in lines[:10])  # no affinity, no legend
    topology = build(only(short))
    assert cells(matrix(topology)) == cells(short) and topology.rdma[0].device == "NIC0"
    half = only("\n".join(lines[:5]))  # rows of the first half: the others' are the same cells
    assert {(pair.one, pair.other): pair.type for pair in paths(build(half))}["GPU4", "GPU5"] is None
    assert "NIC-MISSING" not in found(half)
    narrow = only("\n".join("\t".join(line.split("\t")[:7]) for line in lines[:9]))
    assert {pair.type for pair in paths(build(narrow))} == {PathType.PIX, PathType.SYS}


OLD = """\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV18\tPIX\tSOC\t0-15,32-47
GPU1\tNV18\t X \tSYS\tPXB\t16-31,48-63
mlx5_0\tPIX\tSYS\t X \tNODE\t
mlx5_1\tSOC\tPXB\tNODE\t X \t
"""


def costly(*snapshots: Snapshot) -> list[str]:
    """Ids of what is found to stop or to slow."""
    return [name for name, severity in found(*snapshots).items() if severity in ("stop", "slow")]


def test_gpus_share_a_switch_by_their_cards_where_nvlink_hides_the_way_between_them() -> None:
    topology = build(only(post("openpi-a800-8bond-pix-pairs.txt")))
    groups = [(group.gpus, len(group.nics)) for group in stated_groups(topology)]
    assert groups == [((f"GPU{2 * pair}", f"GPU{2 * pair + 1}"), 2) for pair in range(4)]


def test_names_without_a_blank_between_them_are_two() -> None:
    snapshot = only(post("vllm18335-38nics-glued.txt"))
    topology = build(snapshot)
    assert topology.stated is not None and len(topology.stated.heads) == 40
    words = {(pair.one, pair.other): pair.type for pair in paths(topology)}
    assert words["GPU0", "GPU1"] is PathType.PIX and words["GPU0", "NIC37"] is PathType.SYS
    assert costly(snapshot) == []


def test_a_matrix_that_says_it_is_cut_is_said_to_be() -> None:
    snapshot = only(post("vllm14537-76nics-cut.txt"))
    assert lacking_of(snapshot) == (
        "20 of 76 NICs, which nvidia-smi did not display",
        "the whole rows of GPU2, GPU3, GPU4, GPU5, GPU6, GPU7",
    )
    assert "rows of 6 of them are cut off" in shape(build(snapshot)).words
    assert costly(snapshot) == []


def test_a_flat_list_says_nothing_of_a_tree_and_names_its_cards() -> None:
    snapshot = only(post("g6e-l40s-efa.lspci"))
    topology = build(snapshot)
    assert len(topology.gpus) == 8 and shape(topology).words == f"8 GPUs, {NO_TREE}"
    assert cards_of(snapshot) == ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)",) * 4
    assert costly(snapshot) == []


def test_nobody_moves_cards_in_a_virtual_machine() -> None:
    snapshot = only(post("l20-vm-qemu.lspci"))
    assert len(build(snapshot).gpus) == 8
    assert costly(snapshot) == []


def test_a_single_rank_s_card_is_near_its_gpu_without_a_line_of_the_network() -> None:
    snapshots = read_pasted({"x": post("ibext-nic-without-net-graph.txt")}, "node0")
    topology = build(snapshots["6a9ab017bb44"])
    assert [(pair.one, pair.other, pair.type) for pair in paths(topology)] == [("GPU0", "roce0", PathType.PHB)]
    assert shape(build(snapshots["a4df80236412"])).words == "no list of GPUs in what was read"


HEALTHY = ["openpi-a800-8bond-pix-pairs.txt", "4xl40s.topo", "l20-vm8.topo", "2x5090-3975wx.topo", "h200-vm-flat.topo",
           "g6e-l40s-efa.lspci", "l20-vm-qemu.lspci", "ibext-nic-without-net-graph.txt"]  # fmt: skip
"""Of which the whole has nothing that stops or slows."""


def drawn_by_nccl() -> dict[str, str]:
    """Graphs of sound machines as NCCL prints them."""
    files = {name: (RECORDED / "nccl-topologies" / f"{name}.xml").read_text() for name in SOUND_XML}
    return {name: "\n".join(printed(topology_of_xml(text, "node0"))) for name, text in files.items()}


NO_LIST = "no list of GPUs in what was read"
SOUND_XML = ("rtp-llm-8xL20-cx8", "nccl2397-a", "nccl2397-b")
ABSENT = re.compile(r"(?<!\d)0 NICs|none behind a switch|no RDMA device|no network card")
"""What says that something is not there, and not that it was not read."""


def absences(snapshots: Mapping[str, Snapshot]) -> set[str]:
    """Words of absence in what is said of the machines."""
    examination = examine_given(Given(dict(snapshots)))
    said = [shape(topology).words for topology in examination.cluster.topologies.values()]
    said += [fact for node in document(examination)["nodes"] for fact in node.get("facts", [])]
    return {found for words in said for found in ABSENT.findall(words)}


SECOND_CARD = "-04.0-[9e]----00.0  Mellanox Technologies MT2892 Family [ConnectX-6 Dx]"


def sound_tree(second_card: str = SECOND_CARD) -> str:
    """The articles' node with each card behind a switch, and one apart for TCP."""
    lines = post("articles.lspci-tv").replace("-04.0-[9e]--", second_card).splitlines()
    at = next(place for place, line in enumerate(lines) if "[0000:37]" in line)
    return "\n".join([*lines[:at], *lines[at + 2 :]])


def sound_list(*lost: str) -> str:
    """Two switches of two GPUs and a card each, as `lspci -vv` has them. lost: addresses of functions left out"""

    def bridge(address: str, first: int, last: int) -> str:
        primary = address[:2]
        return (
            f"{address} PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch\n"
            f"\tBus: primary={primary}, secondary={first:02x}, subordinate={last:02x}, sec-latency=0\n"
            f"\tCapabilities: [68] Express (v2) {'Root Port' if address.endswith('01.0') else 'Downstream Port'}\n"
        )

    functions: dict[str, str] = {}
    for root in (0x15, 0x97):
        functions[f"{root:02x}:01.0"] = bridge(f"{root:02x}:01.0", root + 1, root + 5)
        functions[f"{root + 1:02x}:00.0"] = bridge(f"{root + 1:02x}:00.0", root + 2, root + 5)
        ends = ["3D controller: NVIDIA Corporation AD102GL [L40S]"] * 2 + [
            "Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]"
        ]
        for place, words in enumerate(ends):
            below = root + 3 + place
            port = f"{root + 2:02x}:{place + 2:02x}.0"
            functions[port] = bridge(port, below, below)
            functions[f"{below:02x}:00.0"] = f"{below:02x}:00.0 {words}\n"
    return "".join(f"{text}\n" for address, text in functions.items() if address not in lost)


def test_a_tree_whose_bus_numbers_have_no_gap_shows_what_is_missing() -> None:
    """The second card's port is drawn, with nothing behind it."""
    tree = sound_tree("-04.0-[9e]--")
    cut = tree[: tree.index(" \\-[0000:b7]")]
    no_card_apart = cut.replace(" +-[0000:97]", " \\-[0000:97]")
    assert found(only(tree))["NIC-NOT-UNDER-SWITCH"] == "unknown"
    assert found(only(cut))["NIC-MISSING"] == "unknown"
    assert found(only(no_card_apart))["NIC-MISSING"] == "slow"
    gap = "\n".join(line for line in no_card_apart.splitlines() if "[9e]" not in line)
    assert found(only(gap))["NIC-MISSING"] == "unknown"


def test_a_list_whose_bus_numbers_have_no_gap_shows_where_a_gpu_is() -> None:
    assert found(only(sound_list())) == {"NOT-RECORDED": "unknown"}
    moved = sound_list("9a:00.0") + "9a:00.0 Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD\n"
    assert found(only(moved))["GPU-GROUPS-UNEVEN"] == "slow"
    assert found(only(sound_list("99:02.0", "9a:00.0")))["GPU-GROUPS-UNEVEN"] == "unknown"
    assert found(only(sound_list("9a:00.0")))["GPU-GROUPS-UNEVEN"] == "unknown"


def test_a_gpu_that_is_alone_below_a_switch_may_have_lost_its_neighbours() -> None:
    """Whether the switch is the card's own one GPU of six does not show."""
    two_lines = "".join(post("l20-vm-qemu.lspci").splitlines(keepends=True)[:2])
    assert absences(read_pasted({"x": two_lines}, "node0")) == set()


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_of_a_sound_machine_no_part_of_a_text_looks_broken(data: st.DataObject) -> None:
    texts = {name: post(name) for name in HEALTHY} | drawn_by_nccl()
    texts |= {"lspci -tv": sound_tree(), "lspci -vv": sound_list(), "a host": post("l40s-host.sound")}
    whole = texts[data.draw(st.sampled_from(sorted(texts)))]
    lines = whole.splitlines()
    lost = data.draw(st.one_of(st.sets(st.integers(0, len(lines) - 1), max_size=3), st.just(set())))
    kept = data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1)) if not lost else set(range(len(lines))) - lost
    snapshots = read_pasted({"x": "\n".join(lines[place] for place in sorted(kept))}, "node0")
    if snapshots:
        assert costly(*snapshots.values()) == []
        assert absences(snapshots) <= absences(read_pasted({"x": whole}, "node0"))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_of_a_sound_machine_no_part_of_nccl_s_file_looks_broken(data: st.DataObject) -> None:
    """Cut anywhere, or without a line in its middle where it is a file all the same."""
    lines = (RECORDED / "nccl-topologies" / f"{data.draw(st.sampled_from(SOUND_XML))}.xml").read_text().splitlines()
    places = st.integers(1, len(lines) - 1)
    lost = data.draw(st.one_of(st.sets(places, max_size=2), places.map(lambda end: set(range(end, len(lines))))))
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file, contextlib.suppress(InputError):
        file.write("\n".join(line for place, line in enumerate(lines) if place not in lost))
        file.flush()
        findings = examine_given(recordings.given([file.name])).findings
        assert [finding.id for finding in findings if finding.severity in COSTLY] == []
        assert len([finding for finding in findings if finding.id == "NOT-RECORDED"]) <= 2


def test_what_nccl_s_file_leaves_open_is_one_line() -> None:
    file = RECORDED / "nccl-topologies" / "rtp-llm-8xL20-cx8.xml"
    (finding,) = examine_given(recordings.given([str(file)])).findings
    assert (finding.id, finding.evidence) == ("NOT-RECORDED", ())
    assert {"ACS-REDIRECT", "NVML-UNREADABLE", "PCIE-SETTINGS"} <= {*finding.devices}


GPU_IN_XML = """<cpu numaid="0">
<pci busid="0000:01:00.0" class="0x060400">
<pci busid="0000:02:00.0" class="0x030200"><gpu dev="0"/></pci>
<pci busid="0000:03:00.0" class="0x030200"><gpu dev="1"/></pci>
</pci></cpu>"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<system version="1"><cpu numaid="0"><pci busid="0000:00:1b.0"/></cpu></system>', [NO_LIST]),
        (f"{GPU_IN_XML}\n</system>", ["1 switch with 2 GPUs; between GPUs PIX inside"]),
        (f"<system>{GPU_IN_XML}</system>".replace("<", "&lt;"), ["1 switch with 2 GPUs; between GPUs PIX inside"]),
        (f"<system>{GPU_IN_XML}</system>\nnode 2:\n<system><cpu numaid='0'><pci busid='0000:00:1b.0'/></cpu></system>",
         ["1 switch with 2 GPUs; between GPUs PIX inside", NO_LIST]),
    ],
)  # fmt: skip
def test_nccl_s_file_in_other_states(text: str, words: list[str], tmp_path: Path) -> None:
    """A virtual machine's has no GPU; of others the beginning is lost, or two are in one text."""
    (tmp_path / "x.txt").write_text(text)
    seen = examine_given(recordings.given([str(tmp_path / "x.txt")]))
    assert [shape(topology).words for topology in seen.cluster.topologies.values()] == words
    assert {finding.severity.value for finding in seen.findings} == {"unknown"}


def test_older_drivers_and_other_words() -> None:
    topology = build(only(OLD))
    shown = cells(matrix(topology))
    assert {place: cell.strip() for place, cell in cells(OLD).items() if cell.strip()} == shown
    types = {(pair.one, pair.other): pair.type for pair in paths(topology)}
    assert types["GPU0", "GPU1"] is PathType.NVL and types["GPU0", "mlx5_1"] is PathType.SYS
    single = "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-31\t0\t\tN/A\n"
    assert cells(matrix(build(only(single)))) == {
        ("GPU0", "GPU0"): "X", ("GPU0", "CPU Affinity"): "0-31", ("GPU0", "NUMA Affinity"): "0",
        ("GPU0", "GPU NUMA ID"): "N/A",
    }  # fmt: skip


def test_several_machines_in_one_text() -> None:
    one, two = post("4xl40s.topo"), post("l20-vm8.topo")
    plain = read_pasted({"post": f"{one}\n{two}"}, "post")
    assert {name: len(build(snapshot).gpus) for name, snapshot in plain.items()} == {"post": 4, "post-2": 8}
    for text in (f"Node 1:\n{one}\nnode-2 topology:\n{two}", f"a@node-1:~$ x\n{one}\n[a@node-2 ~]$ x\n{two}"):
        assert [len(build(snapshot).gpus) for snapshot in read_pasted({"post": text}, "post").values()] == [4, 8]
        assert "node-2" in read_pasted({"post": text}, "post")
    mixed = [f"{name}: {line}" for name, text in (("n1", one), ("n2", one)) for line in text.splitlines()]
    pdsh = read_pasted({"post": "\n".join(sorted(mixed, key=lambda line: mixed.index(line) % len(mixed) // 2))}, "post")
    assert {name: cells(matrix(build(snapshot))) for name, snapshot in pdsh.items()} == {
        "n1": cells(one),
        "n2": cells(one),
    }


def test_the_articles_wrong_card_shows_in_a_matrix_too() -> None:
    """With a bonded main card the other one can only be misplaced; without, either may be."""

    def words(far: str) -> str:
        heads = [*HALVES[0], *HALVES[1], "mlx5_0", "mlx5_1", far]
        domain = dict.fromkeys((*HALVES[0], "mlx5_0"), 0) | dict.fromkeys((*HALVES[1], "mlx5_1", far), 1)
        switch = {**domain, "mlx5_1": 2, far: 3}

        def word(one: str, other: str) -> str:
            if one == other or switch[one] == switch[other]:
                return "X" if one == other else "PIX"
            return "NODE" if domain[one] == domain[other] else "SYS"

        rows = ["\t".join([row, *(word(row, head) for head in heads)]) for row in heads]
        return "\n".join(["\t" + "\t".join(heads), *rows])

    assert found(only(words("mlx5_bond_0")))["NIC-NOT-UNDER-SWITCH"] == "slow"
    unsure = found(only(words("mlx5_2")))
    assert unsure["NIC-NOT-UNDER-SWITCH"] == "unknown" and "NIC-MISSING" not in unsure


@pytest.mark.parametrize(("nics", "missing"), [(8, False), (7, True), (6, True), (5, False), (4, False)])
def test_a_gpu_without_a_card_is_found_where_nearly_every_other_one_has_its_own(nics: int, missing: bool) -> None:
    heads = [*HALVES[0], *HALVES[1], *(f"mlx5_{number}" for number in range(nics))]

    def word(one: str, other: str) -> str:
        return "X" if one == other else "PIX" if one[-1] == other[-1] else "NODE"

    rows = ["\t".join([row, *(word(row, head) for head in heads)]) for row in heads]
    assert ("NIC-MISSING" in found(only("\n".join(["\t" + "\t".join(heads), *rows])))) is missing


def test_a_slot_with_fewer_lanes_than_the_others_shows_in_nvidia_smi_q() -> None:
    def gpu(bus: str, width: int, name: str = "NVIDIA L40S") -> str:
        widths = f"        Link Width\n            Max   : {width}x\n            Current : {width}x\n"
        return f"GPU 00000000:{bus}:00.0\n    Product Name : {name}\n    GPU Link Info\n{widths}"

    assert found(only(gpu("18", 16) + gpu("19", 8)))["PCIE-LINK-REDUCED"] == "slow"
    other = found(only(gpu("18", 16) + gpu("19", 8, "NVIDIA T400")))
    assert "PCIE-LINK-REDUCED" not in other and other["GPU-MIXED"] == "note"


@pytest.mark.parametrize("name", ["articles.lspci-tv", "articles.lspci-vvv"])
def test_lspci_gives_the_tree(name: str) -> None:
    snapshot = only(post(name))
    topology = build(snapshot)
    assert [gpu.name for gpu in topology.gpus] == ["NVIDIA L40S"] * 8 and [gpu.index for gpu in topology.gpus] == list(
        range(8)
    )
    behind = {
        switch.address: [gpu.index for gpu in topology.gpus if gpu.switch == switch.key] for switch in topology.switches
    }
    assert {address: gpus for address, gpus in behind.items() if gpus} == {
        "0000:16:00.0": [0, 1, 2, 3], "0000:98:00.0": [4, 5, 6, 7],
    }  # fmt: skip
    types = {(pair.one, pair.other): pair.type for pair in paths(topology)}
    assert types["GPU0", "GPU3"] is PathType.PIX and types["GPU0", "0000:1c:00"] is PathType.PIX
    assert types["GPU0", "GPU4"] is None  # without NUMA domains it is PHB or SYS
    assert found(snapshot) == {"NIC-NOT-UNDER-SWITCH": "unknown", "NOT-RECORDED": "unknown"}


def test_a_narrow_link_shows_in_lspci() -> None:
    """In the tree, and of GPUs alone, as people cut it."""
    text = post("articles.lspci-vvv")
    start = text.index("\n18:00.0")
    place = text.index("LnkSta", start)
    for wide in (text, text[start : text.index("\n1a:00.0")]):
        narrow = wide.replace(text[start:place], text[start:place] + "X", 1).replace("XLnkSta:", "LnkSta:", 1)
        at = narrow.index("LnkSta", narrow.index("18:00.0 "))
        narrow = narrow[:at] + narrow[at:].replace("Width x16", "Width x8 (downgraded)", 1)
        assert found(only(narrow))["PCIE-LINK-REDUCED"] == "slow" and "PCIE-LINK-REDUCED" not in found(only(wide))
    smi = f"{SMI}        Link Width\n            Max                : 16x\n            Current            : 8x\n"
    assert found(only(smi))["PCIE-LINK-REDUCED"] == "slow"


def test_a_list_of_functions_has_gpus_and_no_places() -> None:
    text = "16:00.0 PCI bridge: LSI PEX880xx\n18:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)\n"
    snapshot = only(text + "18:00.1 Audio device: NVIDIA Corporation AD102 High Definition Audio Controller (rev a1)\n")
    (gpu,) = build(snapshot).gpus
    assert (gpu.name, gpu.address, gpu.switch) == ("NVIDIA L40S", "0000:18:00.0", "") and recognised(snapshot) == (
        "lspci",
    )
    assert not build(snapshot).pci and found(snapshot) == {"NOT-RECORDED": "unknown"}


def test_merged_ports_of_nccl_are_on_their_card() -> None:
    head = "n1:1:2 [0] NCCL INFO "
    tree = ["CPU/0-0 (1/1/2)", "+ PCI[24.0] - NIC/0-1a000", "              + NET[25.0] - NET/0-0 (0/0/0/25.0)",
            "+ PCI[24.0] - NIC/0-2a000", "              + NET[25.0] - NET/0-1 (0/0/0/25.0)",
            "+ PCI[24.0] - GPU/0-3a000 (0)"]  # fmt: skip
    four = (
        "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]={[2] mlx5_2:1/RoCE, [3] mlx5_3:1/RoCE} [RO]; OOB x:1.2.3.4<0>"
    )
    ports = build(only("\n".join(head + line for line in (f"NET/IB : Using {four}", *tree)))).rdma
    assert [(port.device, port.address, port.rate_gbps) for port in ports] == [
        ("mlx5_0", "0000:1a:00.0", 100), ("mlx5_1", "0000:1a:00.0", 100), ("mlx5_2", "0000:2a:00.0", 100),
        ("mlx5_3", "0000:2a:00.0", 100),
    ]  # fmt: skip


def test_a_tree_that_lost_its_indentation_or_its_bridges_has_no_places() -> None:
    flat = "\n".join(line.strip() for line in post("articles.lspci-tv").splitlines())
    assert not any(snapshot.files for snapshot in read_pasted({"post": flat}, "post").values())
    cut = post("articles.lspci-vvv")
    cut = cut[cut.index("\n18:00.0") :]
    assert not any(path.count("/0000:18:00.0") for path in only(cut).files)


def test_tree_and_matrix_together_name_the_same_gpus() -> None:
    text = post("articles.lspci-tv") + post("8x4090-bond.topo")
    topology = build(only(text))
    assert cells(matrix(topology)) == cells(post("8x4090-bond.topo"))
    assert topology.gpus[4].address == "0000:9a:00.0"
    other = only(post("articles.lspci-tv") + post("4xl40s.topo"))
    assert recognised(other) == ("lspci -tv (of other GPUs: left out)", "nvidia-smi topo -m")
    assert len(build(other).gpus) == 4


def printed(topology: Topology, host: str = "node0") -> Iterator[str]:
    """As NCCL prints a topology (src/graph/topo.cc, ncclTopoPrintRec), of one that its XML holds."""

    def number(address: str) -> str:
        return f"{int(re.sub('[:.]', '', address), 16):x}"

    kinds = {gpu.key: f"GPU/0-{number(gpu.address)} ({gpu.index})" for gpu in topology.gpus}
    nets: dict[str, list[int]] = {}
    for place, port in enumerate(topology.rdma):
        nets.setdefault(port.key, []).append(place)
    head = f"{host}:100:200 [0] NCCL INFO "
    using = " ".join(f"[{place}]{port.device}:1/RoCE" for place, port in enumerate(topology.rdma))
    yield f"{head}NET/IB : Using {using} [RO]; OOB eth0:10.0.0.1<0>"
    yield f"{head}=== System : maxBw 24.0 totalBw 24.0 ==="
    for numa in sorted({device.numa_node for device in topology.pci}):
        yield f"{head}CPU/0-{numa:x} (1/1/2)"
        stack = [(device, "") for device in topology.pci if not device.parent and device.numa_node == numa]
        while stack:
            device, indent = stack.pop(0)
            name = kinds.get(device.key, f"NIC/0-{number(device.address)}" if device.key in nets else "")
            ids = (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)
            name = name or f"PCI/0-{number(device.address)} ({int(''.join(f'{one:04x}' for one in ids), 16):x})"
            yield f"{head}{indent}+ PCI[24.0] - {name}"
            below = indent + " " * len("+ PCI[24.0] - ")
            for place in nets.get(device.key, ()):
                yield f"{head}{below}+ NET[50.0] - NET/0-{place:x} ({place}/0/0/50.000000)"
            stack = [(one, below) for one in topology.pci if one.parent == device.key] + stack
        yield f"{head}+ SYS[10.0] - CPU/0-{1 - numa}"
    yield f"{head}=========================================="


@pytest.mark.parametrize("name", ["rtp-llm-8xL20-cx8", "nccl2397-a", "nccl2397-b"])
def test_nccl_s_graph_lines_hold_the_tree_of_its_xml(name: str) -> None:
    """Each rank prints its half of the machine."""
    wanted = topology_of_xml((RECORDED / "nccl-topologies" / f"{name}.xml").read_text(), "node0")
    lines = list(printed(wanted))
    starts = [place for place, line in enumerate(lines) if " CPU/0-" in line and "SYS" not in line]
    halves = [
        lines[: starts[0]] + lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
    ]
    ranks = [
        line.replace(":100:200 [0]", f":10{rank}:20{rank} [{rank}]")
        for rank, half in enumerate(halves)
        for line in half
    ]
    for text in ("\n".join(lines), "\n".join(ranks), "\n".join(f"(TP0 pid=7) {line}" for line in lines),
                 "\n".join(re.sub(r"(?<=-)[0-9a-f]{4,}", lambda found: found[0].upper(), f"[1,3]<stdout>:{line}")
                           for line in lines)):  # fmt: skip
        snapshot = only(text)
        topology = build(snapshot)
        assert snapshot.node == "node0" and paths(topology) == paths(wanted)
        assert [(port.device, port.key.rpartition("/")[2], port.rate_gbps) for port in topology.rdma] == [
            (port.device, port.address, 400) for port in wanted.rdma
        ]
        assert not {"slow", "stop"} & {*found(snapshot).values()}


def test_nccl_s_log_over_tcp_says_so() -> None:
    snapshot = only((RECORDED / "nccl-2.28.9-tcp.log").read_text())
    assert snapshot.node == "node0" and recognised(snapshot) == ("NCCL's log",)
    assert [gpu.address for gpu in build(snapshot).gpus] == ["0000:00:06.0"]
    lines = (RECORDED / "nccl-2.28.9-tcp.log").read_text().splitlines()
    short = only("\n".join(line for line in lines if "NET/Socket : Using" in line))
    assert found(snapshot)["TRANSPORT-TCP"] == found(short)["TRANSPORT-TCP"] == "note"


VERBS = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t22.31.1014
\tboard_id:\t\t\tMT_0000000359
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t25.0 Gbps (32)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:ba59:9fff:fe00:0001, RoCE v1
\t\t\tGID[  3]:\t\t::ffff:10.1.0.11, RoCE v2
hca_id:\tmlx5_1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tlink_layer:\t\tEthernet
"""
GIDS = """DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV
---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---
mlx5_0\t1\t0\tfe80:0000:0000:0000:ba59:9fff:fe00:0001\t\t\tv1\tens5f0np0
mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:0a01:000b\t10.1.0.11  \tv2\tens5f0np0
n_gids_found=2
"""
BRIEF = """lo               UNKNOWN        127.0.0.1/8 ::1/128
bond0            UP             10.0.0.11/24 fe80::1/64
ens5f0np0        UP             10.1.0.11/24
veth1@if2        DOWN
"""
SMI = """Driver Version                            : 550.127.05
GPU 00000000:A1:00.0
    Product Name                          : NVIDIA L40S
    GPU UUID                              : GPU-1db6b1cf-de5e-b497-caca-1a027578d587
    FB Memory Usage
        Total                             : 46068 MiB
"""


def test_small_tools() -> None:
    topology = build(only(f"{VERBS}\n{GIDS}\n{BRIEF}\n{SMI}"))
    first, second = topology.rdma
    assert (first.state, first.rate_gbps, first.link_layer, first.board) == ("ACTIVE", 100, "Ethernet", "MT_0000000359")
    assert first.netdev == "ens5f0np0" and [(gid.index, gid.type) for gid in first.gids] == [
        (0, "IB/RoCE v1"), (3, "RoCE v2")]  # fmt: skip
    assert first.gids[1].ipv4 == "10.1.0.11" and second.state == "DOWN"
    assert {one.name: one.ipv4 for one in topology.interfaces} == {
        "lo": ("127.0.0.1/8",), "bond0": ("10.0.0.11/24",), "ens5f0np0": ("10.1.0.11/24",), "veth1": (),
    }  # fmt: skip
    (gpu,) = topology.gpus
    assert (gpu.name, gpu.memory_total, gpu.address) == ("NVIDIA L40S", 46068 << 20, "0000:a1:00.0")
    listed = build(only("GPU 0,1: NVIDIA L40S\nGPU 2: NVIDIA L20 (UUID: GPU-1db6b1cf-de5e-b497-caca-1a027578d587)\n"))
    assert [gpu.name for gpu in listed.gpus] == ["NVIDIA L40S", "NVIDIA L40S", "NVIDIA L20"]


IBSTAT = """CA 'mlx5_{0}'
\tFirmware version: 22.38.1900
\tPort 1:
\t\tState: {1}
\t\tPhysical state: {2}
\t\tRate: 100
\t\tLink layer: Ethernet
"""
IBSTATUS = """Infiniband device 'mlx5_{0}' port 1 status:
\tstate:\t\t 4: {1}
\tphys state:\t 5: {2}
\trate:\t\t 100 Gb/sec (4X EDR)
\tlink_layer:\t Ethernet
"""


@pytest.mark.parametrize("form", [IBSTAT, IBSTATUS])
def test_a_port_near_gpus_that_a_tool_calls_down_is_down(form: str) -> None:
    topo = "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tmlx5_2\nGPU0\tX\tPIX\tPIX\tPIX\tSYS\nGPU1\tPIX\tX\tPIX\tPIX\tSYS\n"
    up, down, far = (
        form.format(*words) for words in ((0, "Active", "LinkUp"), (1, "Down", "Polling"), (2, "Down", "x"))
    )
    snapshot = only(f"{topo}\n{up}{down}{far}")
    port = build(snapshot).rdma[1]
    assert (port.state, port.phys_state, port.rate_gbps, port.link_layer) == ("DOWN", "Polling", 100, "Ethernet")
    assert found(snapshot) == {"RDMA-PORT-DOWN": "slow", "NOT-RECORDED": "unknown"}
    for less in (f"{topo}\n{up}{far}", topo):
        assert found(only(less)) == {"NOT-RECORDED": "unknown"}
    assert found(only(f"{up}{down}{far}"))["RDMA-PORT-DOWN"] == "note", "whether they are for the GPUs is not known"


def test_an_old_table_of_nvidia_smi_has_names_without_their_maker() -> None:
    (gpu,) = build(only("|   0  A40                 On   | 00000000:01:00.0 Off |                    0 |\n")).gpus
    assert (gpu.name, gpu.address) == ("A40", "0000:01:00.0")


def seconds(text: str) -> float:
    before = time.process_time()
    read_pasted({"post": text}, "post")
    return time.process_time() - before


def test_one_machine_again_and_again_takes_no_longer_than_as_many_others() -> None:
    lines = [f"18:00.0 3D controller: NVIDIA Corporation Device {number:04x}\n" for number in range(20_000)]
    text = "".join(lines)
    assert len(read_pasted({"post": text}, "post")) == 64
    assert len(read_pasted({"post": lines[0] * 20_000}, "post")) == 1
    assert seconds(f"a@node1:~$ lspci\n{text}") < 4 * seconds(text)


def test_four_times_as_many_headings_take_four_times_as_long() -> None:
    short, long = ("GPU0 GPU1 X PIX\n" * rows for rows in (30_000, 120_000))
    assert any(seconds(long) < 7 * seconds(short) for _ in range(3))


TOKENS = st.sampled_from(
    ["GPU0", "GPU1", "NIC0", "X", "PIX", "SYS", "NV18", "\t", "\n", " ", "|", ">", "-[0000:00]-+-", "00.0", "+-", "\\-",
     "-[01]----", "00:1c.0 PCI bridge: x", "\tBus: primary=00, secondary=00, subordinate=ff,", "GID[  0]: ::",
     "\tLnkCap: Port #0, Speed 1..GT/s, Width x99", "n:1:2 [0] NCCL INFO ", "CPU/0-ffffffffffffff (1/1/4)",
     "+ PCI[..] - GPU/0-ffffffffff", "   + NET[1.2] - NET/0-0", "hca_id: mlx5_0", "\t\tport:\t1", "\tstate:\t",
     "NIC0: mlx5_0", "CPU Affinity", "eth0 UP 1.2.3.4/99", "| 0 NVIDIA L40S On | 00000000:A1:00.0 Off |",
     "GPU 0: NVIDIA L40S", "NET/IB : Using [0]mlx5_0:1/RoCE", "root@a:~# ", "node1: "]
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(st.one_of(st.text(max_size=400), st.lists(TOKENS, max_size=60).map("".join)))
def test_no_text_breaks_it(text: str) -> None:
    for snapshot in read_pasted({"post": text}, "post").values():
        topology = build(snapshot_from_json(snapshot_json(snapshot)))
        matrix(topology)
        found(snapshot)
        redact([snapshot], b"k" * 32)


NAMELESS = """-+-[0000:00]-+-00.0
 |           \\-01.1-[01]--+-00.0
 |                        \\-00.1
 \\-[0000:60]-+-00.0
             \\-03.1-[61]----00.0
"""


def test_a_tree_without_names_shows_neither_gpus_nor_that_there_are_none() -> None:
    snapshot = only(NAMELESS)
    assert shape(build(snapshot)).words == "no list of GPUs in what was read"
    assert found(snapshot) == {"NOT-RECORDED": "unknown"}


ROW = "|   {}  NVIDIA L40S          On  | 00000000:0{}:00.0 Off | {:>20} |"


def test_a_row_of_errors_is_a_gpu_that_does_not_answer() -> None:
    rows = [ROW.format(index, index + 5, cell) for index, cell in enumerate(("0", "ERR!", "N/A"))]
    (finding,) = (one for one in examine_given(Given({"n": only("\n".join(rows))})).findings if one.id == "GPU-HEALTH")
    assert (finding.severity.value, finding.title) == ("stop", "GPU 1 does not answer")


def test_a_count_of_uncorrectable_errors_in_the_table_is_a_gpu_s() -> None:
    rows = [ROW.format(index, index + 5, cell) for index, cell in enumerate(("0", "16", "N/A"))]
    (finding,) = (one for one in examine_given(Given({"n": only("\n".join(rows))})).findings if one.id == "GPU-HEALTH")
    assert (finding.severity.value, finding.title) == ("stop", "GPU 1 has 16 uncorrectable memory errors")


def facts_of(text: str) -> tuple[str, ...]:
    snapshot = only(text)
    return text_facts(build(snapshot), snapshot)


CONNECTED = "P2P Connectivity Matrix\n   D\\D   0   1   2\n     0\t   1   1   {0}\n     1\t   1   1   1\n"
SIMPLE = "> Peer access from NVIDIA L40S (GPU0) -> NVIDIA L40S (GPU1) : {}\n"
IOMMU = "[    0.5] iommu: Default domain type: {} (set via kernel command line)\n"
DEVINFO = "hca_id: mlx5_0\nphys_port_cnt: 1\nport:   1\nstate:   PORT_ACTIVE (4)\nlink_layer:   InfiniBand\n"
XID = "[12.3] NVRM: Xid (PCI:0000:c1:00): {}, pid=217, name=python3, Ch 00000008\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CONNECTED.format(1), "CUDA's devices that reach each other's memory: 0-1, 0-2, 1-2"),
        (CONNECTED.format(0), "CUDA's devices that can't reach each other's memory: 0-2"),
        (SIMPLE.format("Yes"), "CUDA's devices that reach each other's memory: 0-1"),
        (SIMPLE.format("No"), "CUDA's devices that can't reach each other's memory: 0-1"),
        ("n0$ ulimit -l\n64\n", "locked memory (ulimit -l): 64 KiB; RDMA needs unlimited"),
        ("max locked memory       (kbytes, -l) unlimited\n", "locked memory (ulimit -l): unlimited"),
        ("shm   64M   64M   0  100% /dev/shm\n", "/dev/shm has no room left"),
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on quiet\n",
         "the kernel's command line: intel_iommu=on (without iommu=pt)"),
        ('GRUB_CMDLINE_LINUX="quiet amd_iommu=on iommu=pt"\n', "the kernel's command line: amd_iommu=on iommu=pt"),
        (IOMMU.format("Translated"), "the IOMMU: translated"),
        (" IOMMU: disabled\n", "the IOMMU: disabled"),
        (DEVINFO, "RDMA ports: ACTIVE, InfiniBand: mlx5_0"),
        (XID.format(31), "the kernel's log: Xid 31 of the GPU at 0000:c1:00: an access to memory that is not mapped"),
        ("\tGPU0\tGPU1\tCPU Affinity\tNUMA\nGPU0\t X \tPHB\t0-3\t1\nGPU1\tPHB\t X \t0-3\t1\n",
         "NUMA domain 1: GPU0, GPU1"),
    ],
)  # fmt: skip
def test_small_tools_tell_facts(text: str, words: str) -> None:
    facts = facts_of(text)
    assert any(fact.startswith(words) for fact in facts), facts
    assert set(found(only(text))) <= {"NOT-RECORDED", "LIMITS", "IOMMU-TRANSLATING", "GPU-P2P-OFF"}


@pytest.mark.parametrize(
    ("line", "small"),
    [
        ("shm              64M     0   64M   0% /dev/shm", True),
        ("tmpfs          65536     0 65536   0% /dev/shm", True),
        ("tmpfs           504G  1.3G  503G   1% /dev/shm", False),
        ("tmpfs      528276300     0 528276300   0% /dev/shm", False),
        ("shm             1.0G     0  1.0G   0% /dev/shm", False),
    ],
)
def test_room_in_shared_memory_by_df(line: str, small: bool) -> None:
    assert (found(only(line)).get("LIMITS") == "stop") is small


PORT = "CA '{}'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tRate: 200\n"


def test_ports_alone_are_told_with_those_that_have_no_link() -> None:
    text = PORT.format("mlx5_0", "Down", "Disabled") + PORT.format("mlx5_1", "Active", "LinkUp")
    findings = {one.id: one for one in examine_given(Given({"n": only(text)})).findings}
    port = findings["RDMA-PORT-DOWN"]
    assert (port.severity.value, port.devices) == ("note", ("mlx5_0",)) and port.title.startswith("1 of 2 RDMA ports")
    healthy = PORT.format("mlx5_0", "Active", "LinkUp")
    assert "RDMA-PORT-DOWN" not in found(only(healthy))


ACCESS = " \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n\nLegend:\n\n  X    = Self\n"


@pytest.mark.parametrize(
    ("cell", "words"), [("GNS", "GPU not supported"), ("CNS", "chipset not supported"), ("OK", "")]
)
def test_a_matrix_of_accesses_says_which_gpus_reach_each_other(cell: str, words: str) -> None:
    snapshot = only(ACCESS.format(cell))
    assert recognised(snapshot) == ("nvidia-smi topo -p2p",)
    titles = [one.title for one in examine_given(Given({"n": snapshot})).findings if one.id == "GPU-P2P-OFF"]
    assert titles == ([f"1 pair of GPUs can't access each other directly: {words}"] if words else [])


def test_gpus_that_share_no_card_are_counted_beside_those_that_do() -> None:
    head = "\tGPU0\tGPU1\tGPU2\tNIC0\n"
    rows = "GPU0\t X \tNV18\tNV18\tPIX\nGPU1\tNV18\t X \tNV18\tNODE\nGPU2\tNV18\tNV18\t X \tPIX\n"
    words = shape(build(only(head + rows))).words
    assert words.startswith("3 GPUs, 2 behind a switch, 1 elsewhere")


@pytest.mark.parametrize("name", ["vllm18335-38nics-glued.txt"])
def test_a_cost_of_one_pasted_machine_names_its_condition(name: str) -> None:
    findings = examine_given(Given({"n": only(post(name))})).findings
    priced = [one.effect for one in findings if "tokens/s" in one.effect]
    assert priced and all("four such nodes serve one model: " in effect for effect in priced)


HEAD = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tPIX\t0-31\n"


@pytest.mark.parametrize("last", ["N", "NO", "NOD", "S", "SY", "P", "PX", "NV"])
def test_a_word_that_was_cut_loses_no_matrix(last: str) -> None:
    """NVIDIA/nccl#1737, deepseek-ai/DeepEP#60 and #137: posts that end amid a cell."""
    snapshot = only(f"{HEAD}GPU1\tNV18\t X \t{last}")
    assert matrix(build(snapshot)).startswith("\tGPU0\tGPU1\tNIC0")
    assert lacking_of(snapshot) == ("the whole rows of GPU1",)
    assert found(snapshot) == {"NOT-RECORDED": "unknown"}


@pytest.mark.parametrize("before", ["h1:12:13 [0]", "[0]"])
def test_of_a_graph_that_was_cut_nothing_is_missing(before: str) -> None:
    """NVIDIA/nccl-tests#62: 3 of 8 GPUs, without the host."""
    graph = [
        "CPU/0 (1/2/-1)",
        "+ PCI[12.0] - PCI/1000",
        "              + PCI[12.0] - GPU/E000 (0)",
        "              + PCI[12.0] - GPU/13000 (1)",
        "              + PCI[12.0] - NIC/5000",
        "+ PCI[12.0] - PCI/3D000",
        "              + PCI[12.0] - GPU/4A000 (2)",
    ]
    whole = [*graph, "=========================================="]
    cut, ended = ("\n".join(f"{before} NCCL INFO {line}" for line in lines) for lines in (graph, whole))
    assert found(only(cut)) == {"NOT-RECORDED": "unknown"}
    assert found(only(ended)) == {"NOT-RECORDED": "unknown", "GPU-GROUPS-UNEVEN": "unknown"}


@pytest.mark.parametrize(
    ("gbs", "links"), [("370.8", 18), ("721.8", 18), ("240.0", 12), ("60.0", 3), ("48.0", 4), ("36.0", 1), ("5.5", 1)]
)
def test_nvlinks_of_nccl_s_graph_are_counted_by_their_bandwidth(gbs: str, links: int) -> None:
    """36.0 is two links of a P100 or three of an A6000."""
    gpus = [f"+ PCI[24.0] - GPU/{bus} ({rank})\nh1:1:2 [0] NCCL INFO      + NVL[{gbs}] - GPU/{other}"
            for rank, (bus, other) in enumerate((("17000", "31000"), ("31000", "17000")))]  # fmt: skip
    text = "\n".join(f"h1:1:2 [0] NCCL INFO {line}" for line in ("CPU/0 (1/1/2)", *gpus, "=========="))
    assert f"GPU0\tX\tNV{links}\t" in matrix(build(only(text)))


def test_rdma_link_tells_which_ports_are_down_and_their_interfaces() -> None:
    text = """0/1: mlx5_0/1: subnet_prefix fe80:0000:0000:0000 lid 11 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
link mlx5_1/1 state DOWN physical_state POLLING netdev ens3 netdev_index 4
"""
    snapshot = only(text)
    assert found(snapshot)["RDMA-PORT-DOWN"] == "note"
    assert snapshot.files["/sys/class/infiniband/mlx5_1/ports/1/phys_state"].endswith("Polling")


def test_widths_that_were_queried_are_those_of_the_links() -> None:
    text = """index, name, pci.bus_id, pcie.link.width.current, pcie.link.width.max
0, NVIDIA L40S, 00000000:16:00.0, 16, 16
1, NVIDIA L40S, 00000000:27:00.0, 8, 16
"""
    assert found(only(text))["PCIE-LINK-REDUCED"] == "slow"
    assert "PCIE-LINK-REDUCED" not in found(only(text.replace(" 8, 16", " 16, 16")))


def test_a_card_without_a_place_is_listed_with_its_narrower_link() -> None:
    text = """41:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
        LnkCap: Port #0, Speed 16GT/s, Width x16, ASPM not supported
        LnkSta: Speed 16GT/s (ok), Width x16 (ok)
42:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
        LnkCap: Port #0, Speed 16GT/s, Width x16, ASPM not supported
        LnkSta: Speed 16GT/s (ok), Width x8 (downgraded)
"""
    seen = examine_given(Given({"post": only(text)}))
    facts = [fact for node in document(seen)["nodes"] for fact in node["facts"]]
    assert any("ConnectX-6 Dx], PCIe x8 of x16" in fact for fact in facts)
