"""`tuning fetch`: the shipped set is what the engines look for, and only files with its digests become a pack."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.tuning.steps.test_tuning import GOOD, LINEAR, MODEL, MOE, QKV, UP, config, environment, inventory, node

from orchestrator.cli.main import main
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import wanted_files
from orchestrator.loading.profiles import load_profile, load_stack, stack_recipe
from orchestrator.loading.resources import data_dir
from orchestrator.model.inventory import Inventory, Overrides
from orchestrator.protocol.errors import DeployError, InputError, NodeError, Unreachable, VerificationDiffers
from orchestrator.protocol.planned import Layout
from orchestrator.remote import node_app
from orchestrator.tuning.pack import Pack, Published, devices, parts_of
from orchestrator.tuning.steps.packs import fetch, fetched_json, load_pack, load_published, pull, push, save_pack

OLD, NEW = "sglang-0.4.4-l40s", "sglang-0.5.23"
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 3}
FOLDER = "python/sglang/srt/layers"
PUBLISHED_MOE = (
    "moe/fused_moe_triton/configs/E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
)
PUBLISHED_GEMM = "quantization/configs/N=768,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"


@pytest.mark.parametrize(
    ("stack", "model", "most_missing"),
    [(OLD, "DeepSeek-V3-0324-Block64x64", 0), (NEW, "DeepSeek-V3-0324-Block64x64", None)],
)
def test_the_shipped_set_has_what_the_engine_looks_for(stack: str, model: str, most_missing: int | None) -> None:
    known, lookup = load_published("l40s-dsfp8"), engine_of(load_stack(stack)).tuned
    parts = parts_of(known, lookup, "NVIDIA_L40S")
    wanted = wanted_files(load_profile(model), TP32, lookup, gpu="NVIDIA L40S", triton="3.1.0")
    names = {part.rpartition("/")[2] for part in parts}
    missing = [one.name for one in wanted if one.name not in names and not one.optional]
    if most_missing is None:
        assert all(one.startswith("N=") for one in missing), "only GEMMs are left out for this version"
        assert all(part.startswith("moe/triton_3_1_0/E=257,N=64,") for part in parts)
    else:
        assert missing == []


def test_the_shipped_set_is_the_recipe_s_commit_and_has_all_of_it() -> None:
    known = load_published("l40s-dsfp8")
    assert f"ARG COMMIT={known.commit}\n" in (stack_recipe(OLD)[0] / "Containerfile").read_text()
    assert devices(known) == ("NVIDIA_L20", "NVIDIA_L40S")
    assert len(known.files) == 29 and known.licence == "Apache-2.0"
    int8 = wanted_files(
        load_profile("DeepSeek-R1-Channel-INT8"),
        TP32,
        engine_of(load_stack(NEW)).tuned,
        gpu="NVIDIA L40S",
        triton="3.8.0",
    )
    assert int8[0].name in known.derived


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A publisher's repository with two configs, and a set with their digests: `tmp_path/set.yml`."""
    root, digests = tmp_path / "checkout", {}
    for path in (PUBLISHED_MOE, PUBLISHED_GEMM):
        file = root / FOLDER / path
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"1": TILES}))
        digests[path] = hashlib.sha256(file.read_bytes()).hexdigest()
    write_set(tmp_path, files=digests)
    return root


def write_set(folder: Path, **changed: Any) -> str:
    file = folder / "set.yml"
    document = yaml.safe_load(file.read_text()) if file.exists() else {
        "name": "mine", "source": "example.org", "commit": "a" * 40, "licence": "Apache-2.0", "folder": FOLDER,
        "address": "https://example.org/{commit}/{file}", "triton": "3.1.0", "files": {}, "derived": {},
    }  # fmt: skip
    file.write_text(yaml.safe_dump({**document, **changed}))
    return str(file)


def ask(folder: Path, **more: Any) -> tuple[Published, Pack]:
    said: dict[str, Any] = {"stack_name": OLD, "gpu": "NVIDIA L40S", "checkout": folder / "checkout", **more}
    return fetch(str(folder / "set.yml"), folder / "out.tar.gz", **said)


def test_a_pack_says_whose_it_is(checkout: Path, tmp_path: Path) -> None:
    published, pack = ask(tmp_path)
    read = load_pack(tmp_path / "out.tar.gz")
    assert read == pack
    assert set(read.texts) == {f"moe/{Path(PUBLISHED_MOE).name}", f"linear/{Path(PUBLISHED_GEMM).name}"}
    assert (read.made, read.origin) == ("published", f"example.org, commit {'a' * 40}, Apache-2.0")
    assert fetched_json(published, pack, tmp_path)["licence"] == "Apache-2.0"


def test_another_version_gets_the_same_tiles_under_its_own_name_marked_derived(checkout: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((checkout / FOLDER / PUBLISHED_MOE).read_bytes()).hexdigest()
    name = Path(PUBLISHED_MOE).name.replace("E=256", "E=257")
    write_set(tmp_path, derived={name: {"from": PUBLISHED_MOE, "sha256": digest}})
    _, pack = ask(tmp_path, stack_name=NEW)
    assert pack.made == load_pack(tmp_path / "out.tar.gz").made == "derived"
    assert list(pack.texts) == [f"moe/triton_3_1_0/{name}"]
    assert pack.texts[f"moe/triton_3_1_0/{name}"] == (checkout / FOLDER / PUBLISHED_MOE).read_text()


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        ("changed", VerificationDiffers, "its SHA-256 is"),
        ("gone", InputError, "can't be read: No such file"),
        ("tiles", InputError, "the pack would not be valid"),
        ("gpu", InputError, "has no config for NVIDIA H200"),
    ],
)
def test_what_can_not_be_proved_is_not_written(
    checkout: Path, tmp_path: Path, spoil: str, error: type[DeployError], says: str
) -> None:
    file = checkout / FOLDER / PUBLISHED_MOE
    if spoil == "changed":
        file.write_text(file.read_text() + " ")
    elif spoil == "gone":
        file.unlink()
    elif spoil == "tiles":
        file.write_text(json.dumps({"1": TILES | {"BLOCK_SIZE_K": 128}}))
        write_set(tmp_path, files={PUBLISHED_MOE: hashlib.sha256(file.read_bytes()).hexdigest()})
    with pytest.raises(error) as caught:
        ask(tmp_path, **({"gpu": "NVIDIA H200"} if spoil == "gpu" else {}))
    assert says in caught.value.what and caught.value.fix
    assert not (tmp_path / "out.tar.gz").exists()


def test_a_download_takes_the_commit_s_files(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        name = PUBLISHED_MOE if "E%3D256" in address else PUBLISHED_GEMM
        return io.BytesIO((checkout / FOLDER / name).read_bytes())

    monkeypatch.setattr("urllib.request.urlopen", answer)
    _, pack = ask(tmp_path, checkout=None)
    assert len(pack.texts) == 2
    assert all(address.startswith(f"https://example.org/{'a' * 40}/{FOLDER}/") for address in asked)


def test_a_place_that_can_not_be_reached_is_told_with_the_other_way(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(address: str, timeout: float) -> io.BytesIO:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", answer)
    with pytest.raises(Unreachable) as caught:
        ask(tmp_path, checkout=None)
    assert "Name or service not known" in caught.value.what and "--checkout DIR" in caught.value.fix


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"commit": "main"}, "wanted 40 hexadecimal digits"),
        ({"files": {"../x.json": "0" * 64}}, "wanted a relative path"),
        ({"files": {"moe/x.json": "12"}}, "wanted 64 hexadecimal digits"),
        ({"address": "http://example.org/{file}"}, "wanted https://"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_a_wrong_set_is_refused(checkout: Path, tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_published(write_set(tmp_path, **changed))


def test_the_command_line_takes_an_l40s_where_none_is_named(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tuning", "fetch", str(tmp_path / "set.yml"), str(tmp_path / "out.tar"), "--stack", OLD)
    assert main([*words, "--checkout", str(checkout)]) == 0
    assert f"2 configs for NVIDIA_L40S, published; from example.org, commit {'a' * 40}, Apache-2.0" in " ".join(
        capsys.readouterr().out.split()
    )


STACK = "sglang-0.5.23"
ELSEWHERE = "N=4096,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def sites(tmp_path: Path) -> list[Path]:
    """Three environments; the first has tuned configs, the second a different one under one of their names."""
    made = [environment(tmp_path / f"venv{rank}") for rank in range(3)]
    config(made[0] / MOE / "triton_3_8_0" / UP)
    config(made[0] / LINEAR / QKV)
    config(made[0] / LINEAR / ELSEWHERE)
    config(made[0] / LINEAR / QKV.replace("L40S", "L20"))
    config(made[1] / LINEAR / QKV, num_stages=2)
    return made


@pytest.fixture
def cluster(tmp_path: Path, sites: list[Path]) -> Inventory:
    assert sites
    return inventory(*(node(rank, tmp_path, stack=STACK) for rank in range(3)))


def everything(site: Path) -> dict[str, bytes]:
    """Every file of an environment, and every empty folder."""
    venv = site.parents[2]
    return {
        str(path.relative_to(venv)): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(venv.rglob("*"))
    }


@pytest.mark.turns
@pytest.mark.parametrize("name", ["pack", "pack.tar", "pack.tar.gz"])
def test_from_one_node_onto_all_and_back(tmp_path: Path, cluster: Inventory, sites: list[Path], name: str) -> None:
    before = [everything(site) for site in sites]
    pulled = pull(cluster, tmp_path / name, node="node0")
    assert sorted(pulled.pack.texts) == [f"linear/{QKV}", f"linear/{ELSEWHERE}", f"moe/triton_3_8_0/{UP}"]
    assert (pulled.pack.engine_version, pulled.pack.triton) == ("0.5.23", "3.8.0")

    would = push(cluster, tmp_path / name, check=True).all()
    assert [len(put.written) for put in would.values()] == [0, 3, 3]
    assert [everything(site) for site in sites] == before, "a check writes nothing"

    push(cluster, tmp_path / name).all()
    for site in sites:
        for place in (f"{MOE}/triton_3_8_0/{UP}", f"{LINEAR}/{QKV}", f"{LINEAR}/{ELSEWHERE}"):
            assert (site / place).read_bytes() == (sites[0] / place).read_bytes()
    after = [everything(site) for site in sites]

    again = push(cluster, tmp_path / name).all()
    assert [(len(put.written), len(put.unchanged)) for put in again.values()] == [(0, 3)] * 3
    assert [everything(site) for site in sites] == after, "a second push changes nothing"

    back = push(cluster, None).all()
    assert [(len(put.restored), len(put.removed)) for put in back.values()] == [(0, 0), (1, 2), (0, 3)]
    # the first node's own files existed before: no undo may remove them
    assert [everything(site) for site in sites] == before


@pytest.mark.parametrize("own", [False, True], ids=["the node's stack", "a stack named by its file"])
def test_a_model_takes_only_what_it_looks_for(tmp_path: Path, sites: list[Path], own: bool) -> None:
    assert sites
    file = tmp_path / "own.yml"
    shipped = (data_dir("inventory") / "stacks" / f"{STACK}.yml").read_text()
    file.write_text(shipped.replace(f"name: {STACK}\n", "name: own\n"))
    one = inventory(node(0, tmp_path, gpus=32, stack=None if own else STACK))
    pulled = pull(one, tmp_path / "pack", model=MODEL, stack_name=str(file) if own else None)
    assert sorted(pulled.pack.texts) == [f"linear/{QKV}", f"moe/triton_3_8_0/{UP}"]


def test_unusable_ones_are_left_out_and_told(tmp_path: Path, cluster: Inventory, sites: list[Path]) -> None:
    config(sites[0] / LINEAR / QKV, BLOCK_SIZE_K=128)
    pulled = pull(cluster, tmp_path / "pack")
    assert [part for part, _ in pulled.left] == [f"linear/{QKV}"]
    assert f"linear/{QKV}" not in pulled.pack.texts


def test_a_place_that_is_taken_is_not_written_over(tmp_path: Path, cluster: Inventory) -> None:
    (tmp_path / "pack").mkdir()
    with pytest.raises(InputError, match="already exists"):
        pull(cluster, tmp_path / "pack")


def test_a_node_without_an_engine_or_configs_gives_no_pack(tmp_path: Path, sites: list[Path]) -> None:
    with pytest.raises(InputError, match="no engine"):
        pull(inventory(node(7, tmp_path, stack=STACK)), tmp_path / "pack")
    with pytest.raises(InputError, match="no usable config"):
        pull(inventory(node(2, tmp_path, stack=STACK)), tmp_path / "pack")
    assert sites


def made(folder: Path, name: str = "pack", **changed: Any) -> Path:
    """A pack of the first environment's configs."""
    text = json.dumps({"1": GOOD | changed, "4096": GOOD | changed})
    parts = (f"linear/{QKV}", f"linear/{ELSEWHERE}", f"moe/triton_3_8_0/{UP}")
    pack = Pack(
        dialect="sglang-0.5",
        engine_version="0.5.23",
        device="NVIDIA_L40S",
        triton="3.8.0",
        texts=dict.fromkeys(parts, text),
    )
    save_pack(folder / name, pack)
    return folder / name


def edit(pack: Path, **changed: Any) -> None:
    file = pack / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def wrong_tile(pack: Path) -> None:
    """A hand-made pack: its digests are right, its config is not."""
    text = json.dumps({"1": GOOD | {"BLOCK_SIZE_K": 128}})
    (pack / "linear" / QKV).write_text(text)
    files = json.loads((pack / "manifest.json").read_text())["files"]
    edit(pack, files=files | {f"linear/{QKV}": hashlib.sha256(text.encode()).hexdigest()})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda pack: config(pack / "linear" / QKV, num_warps=8), "its digest differs"),
        (lambda pack: (pack / "linear" / QKV).unlink(), "is missing"),
        (lambda pack: config(pack / "linear" / QKV.replace("2112", "2113")), "not listed in the manifest"),
        (lambda pack: (pack / "linear" / "link.json").symlink_to("/etc/passwd"), "not a regular file"),
        (lambda pack: (pack / "manifest.json").unlink(), "no manifest.json"),
        (lambda pack: edit(pack, format=2), "its format is 2"),
        (lambda pack: edit(pack, kind="a bundle"), "not one of tuned configs"),
        (lambda pack: edit(pack, dialect="sglang-9"), "'sglang-9'"),
        (lambda pack: edit(pack, device="NVIDIA_L20"), "is for NVIDIA_L40S, but the pack is for NVIDIA_L20"),
        (wrong_tile, "the quantisation block 64 is not divisible by BLOCK_SIZE_K 128"),
    ],
)
def test_a_wrong_pack_is_refused_and_nothing_is_written(
    tmp_path: Path, cluster: Inventory, sites: list[Path], spoil: Callable[[Path], None], reason: str
) -> None:
    pack = made(tmp_path)
    spoil(pack)
    before = [everything(site) for site in sites]
    with pytest.raises(InputError, match=reason.replace("(", r"\(")):
        push(cluster, pack)
    assert [everything(site) for site in sites] == before


def test_a_tar_that_leaves_its_folder_is_refused(tmp_path: Path, cluster: Inventory) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        entry = tarfile.TarInfo("../manifest.json")
        tar.addfile(entry)
    with pytest.raises(InputError, match="the pack is not valid"):
        load_pack(tmp_path / "bad.tar")
    (tmp_path / "no.tar").write_text("no tar")
    with pytest.raises(InputError, match="the pack is not valid"):
        push(cluster, tmp_path / "no.tar")
    with pytest.raises(InputError, match="can't be read"):
        push(cluster, tmp_path / "nowhere")
    whole = made(tmp_path, "whole.tar.gz").read_bytes()
    (tmp_path / "damaged.tar.gz").write_bytes(whole[:40] + b"\xff" * 40 + whole[80:])
    with pytest.raises(InputError, match="the pack is not valid"):
        load_pack(tmp_path / "damaged.tar.gz")


def test_one_node_that_can_not_take_it_keeps_all_from_being_written(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    pack = made(tmp_path)
    (sites[2] / "sglang-0.5.23.dist-info").rename(sites[2] / "sglang-0.5.24.dist-info")
    before = everything(sites[1])
    with pytest.raises(NodeError, match=r"sglang 0\.5\.24 is installed, but the pack is for 0\.5\.23"):
        push(cluster, pack)
    assert everything(sites[1]) == before


def test_a_pack_for_another_stack_is_refused(tmp_path: Path, cluster: Inventory) -> None:
    with pytest.raises(InputError, match=r"the pack is for sglang-0\.5"):
        push(cluster, made(tmp_path), stack_name="sglang-0.4.4-l40s")


@pytest.mark.turns(of="packs: what is taken back", play=2)
def test_what_somebody_changed_since_is_neither_overwritten_nor_taken_back(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    """A file that was ours alone, and one whose original is kept until it is gone."""
    before, places = everything(sites[1]), [site / LINEAR / QKV for site in sites[1:]]
    push(cluster, made(tmp_path)).all()
    for place in places:
        config(place, num_stages=5)
    with pytest.raises(NodeError, match="has been changed since"):
        push(cluster, made(tmp_path, "second", num_stages=4))
    back = push(cluster, None).all()
    assert [list(back[name].left) for name in ("node1", "node2")] == [[str(place)] for place in places]
    assert [json.loads(place.read_text())["1"]["num_stages"] for place in places] == [5, 5]
    (original,) = (sites[1].parents[2] / "share/l40s-tuning/originals").iterdir()
    assert str(original) in back["node1"].left[str(places[0])]
    with pytest.raises(NodeError, match="has been changed since"):
        push(cluster, tmp_path / "pack")
    places[0].unlink()
    assert push(cluster, tmp_path / "pack").all()["node1"].written, "the advice was to delete it"
    places[0].unlink()
    assert push(cluster, None).all()["node1"].restored == (str(places[0]),)
    assert everything(sites[1]) == before


@pytest.mark.turns(of="packs: what is taken back", play=2)
def test_a_newer_pack_replaces_an_older_one_and_the_first_original_comes_back(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    original = (sites[1] / LINEAR / QKV).read_bytes()
    push(cluster, made(tmp_path)).all()
    push(cluster, made(tmp_path, "second", num_stages=4)).all()
    assert json.loads((sites[1] / LINEAR / QKV).read_text())["1"]["num_stages"] == 4
    push(cluster, None).all()
    assert (sites[1] / LINEAR / QKV).read_bytes() == original


def test_a_directory_of_the_variables_is_made_with_configs_in_it(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    pack = made(tmp_path)
    own = Overrides(env=(("SGLANG_MOE_CONFIG_DIR", str(tmp_path / "own")),))
    moved = inventory(node(2, tmp_path, stack=STACK, overrides=own))
    push(moved, pack).all()
    assert (tmp_path / "own" / "configs" / "triton_3_8_0" / UP).is_file()
    assert not (sites[2] / MOE / "triton_3_8_0").exists()
    push(moved, None).all()
    assert not (tmp_path / "own").exists()


def test_another_tritons_configs_are_told_to_be_a_fallback(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    pack = made(tmp_path)
    (sites[2] / "triton-3.8.0.dist-info").rename(sites[2] / "triton-3.9.0.dist-info")
    done = push(cluster, pack).all()
    assert not done["node1"].remarks
    assert "only as a fallback" in done["node2"].remarks[0]


@pytest.mark.turns(of="packs: what is taken back", play=2)
def test_a_kill_between_the_record_and_the_file_is_taken_back(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    """The record is written before the files: a file found then is the original, or there is none."""
    pack = made(tmp_path)
    push(cluster, pack).all()
    (sites[2] / LINEAR / QKV).unlink()
    originals = sites[1].parents[2] / "share" / "l40s-tuning" / "originals"
    (only,) = originals.iterdir()
    (sites[1] / LINEAR / QKV).write_bytes(only.read_bytes())
    push(cluster, pack).all()
    assert (sites[2] / LINEAR / QKV).read_bytes() == (sites[0] / LINEAR / QKV).read_bytes()
    back = push(cluster, None).all()
    assert not back["node1"].left
    assert not back["node2"].left


def test_nodes_of_another_gpu_are_refused(
    tmp_path: Path, cluster: Inventory, monkeypatch: pytest.MonkeyPatch, sites: list[Path]
) -> None:
    from orchestrator.tuning.steps import packs

    pack = made(tmp_path)
    monkeypatch.setattr(packs, "gpu_of", lambda snapshot: "NVIDIA L20" if snapshot.node == "node2" else "")
    before = everything(sites[1])
    with pytest.raises(InputError, match="node2 has NVIDIA L20"):
        push(cluster, pack)
    assert everything(sites[1]) == before


def test_a_node_that_names_files_elsewhere_writes_nothing_on_this_machine(
    tmp_path: Path, cluster: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node_app.call

    def lie(*asked: Any, **more: Any) -> Any:
        answer = real(*asked, **more)
        if "folders" not in answer or LINEAR not in answer["folders"]:
            return answer
        texts = answer["folders"][LINEAR]
        escaped = {f"../../../escaped/{QKV}": texts[QKV], f"/{tmp_path}/escaped/{QKV}": texts[QKV], f"a\0/{QKV}": "{}"}
        return {**answer, "folders": {**answer["folders"], LINEAR: {**texts, **escaped}}}

    monkeypatch.setattr(node_app, "call", lie)
    pulled = pull(cluster, tmp_path / "pack", node="node0")
    assert sorted(pulled.pack.texts) == [f"linear/{QKV}", f"linear/{ELSEWHERE}", f"moe/triton_3_8_0/{UP}"]
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("name", ["odd", "odd.tar"])
def test_a_pack_with_a_path_elsewhere_is_not_saved(tmp_path: Path, name: str) -> None:
    texts = {"linear/../../escaped": "{}"}
    (tmp_path / "deep").mkdir()
    pack = Pack(dialect="sglang-0.5", engine_version="1", device="NVIDIA_L40S", triton="", texts=texts)
    with pytest.raises(InputError, match="a name that no engine uses"):
        save_pack(tmp_path / "deep" / name, pack)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.turns
@pytest.mark.parametrize("linked", ["folder", "file"])
def test_a_link_in_the_environment_is_not_followed(
    tmp_path: Path, cluster: Inventory, sites: list[Path], linked: str
) -> None:
    pull(cluster, tmp_path / "pack", node="node0")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("root's")
    place = sites[2] / LINEAR
    if linked == "folder":
        if place.exists():
            place.rmdir()
        place.symlink_to(elsewhere)
    else:
        place.mkdir(parents=True, exist_ok=True)
        (place / QKV).symlink_to(elsewhere / "secret")
    with pytest.raises(NodeError, match="is a symbolic link"):
        push(cluster, tmp_path / "pack")
    assert [path.name for path in elsewhere.iterdir()] == ["secret"]


@pytest.mark.turns(of="packs: what is taken back", play=2)
def test_a_record_that_names_another_file_takes_nothing_back(
    tmp_path: Path, cluster: Inventory, sites: list[Path]
) -> None:
    """The record is in the environment, whose owner need not be root."""
    pull(cluster, tmp_path / "pack", node="node0")
    push(cluster, tmp_path / "pack").all()
    record = sites[2].parents[2] / "share" / "l40s-tuning" / "record.json"
    other = tmp_path / "passwd"
    other.write_text("root's")
    digest = hashlib.sha256(b"root's").hexdigest()
    record.write_text(json.dumps({"files": {str(other): {"sha256": digest, "original": ""}}, "folders": []}))
    with pytest.raises(NodeError, match="not a path for a tuned config"):
        push(cluster, None).all()
    assert other.read_text() == "root's"
