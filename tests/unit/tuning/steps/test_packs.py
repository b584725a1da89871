"""`tuning fetch`: the shipped set is what the engines look for, and only files with its digests become a pack."""

from __future__ import annotations

import hashlib
import io
import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.main import main
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import wanted_files
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack, stack_recipe
from orchestrator.model.errors import DeployError, InputError, Unreachable, VerificationDiffers
from orchestrator.protocol.layout import Layout
from orchestrator.tuning.pack import Pack, Published, devices, parts_of
from orchestrator.tuning.steps.packs import fetch, fetched_json, load_pack, load_published

OLD, NEW = "sglang-0.4.4-l40s", "sglang-0.5.23"
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 3}
FOLDER = "python/sglang/srt/layers"
MOE = "moe/fused_moe_triton/configs/E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
GEMM = "quantization/configs/N=768,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"


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
    for path in (MOE, GEMM):
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
    assert set(read.texts) == {f"moe/{Path(MOE).name}", f"linear/{Path(GEMM).name}"}
    assert (read.made, read.origin) == ("published", f"example.org, commit {'a' * 40}, Apache-2.0")
    assert fetched_json(published, pack, tmp_path)["licence"] == "Apache-2.0"


def test_another_version_gets_the_same_tiles_under_its_own_name_marked_derived(checkout: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((checkout / FOLDER / MOE).read_bytes()).hexdigest()
    name = Path(MOE).name.replace("E=256", "E=257")
    write_set(tmp_path, derived={name: {"from": MOE, "sha256": digest}})
    _, pack = ask(tmp_path, stack_name=NEW)
    assert pack.made == load_pack(tmp_path / "out.tar.gz").made == "derived"
    assert list(pack.texts) == [f"moe/triton_3_1_0/{name}"]
    assert pack.texts[f"moe/triton_3_1_0/{name}"] == (checkout / FOLDER / MOE).read_text()


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
    file = checkout / FOLDER / MOE
    if spoil == "changed":
        file.write_text(file.read_text() + " ")
    elif spoil == "gone":
        file.unlink()
    elif spoil == "tiles":
        file.write_text(json.dumps({"1": TILES | {"BLOCK_SIZE_K": 128}}))
        write_set(tmp_path, files={MOE: hashlib.sha256(file.read_bytes()).hexdigest()})
    with pytest.raises(error) as caught:
        ask(tmp_path, **({"gpu": "NVIDIA H200"} if spoil == "gpu" else {}))
    assert says in caught.value.what and caught.value.fix
    assert not (tmp_path / "out.tar.gz").exists()


def test_a_download_takes_the_commit_s_files(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        name = MOE if "E%3D256" in address else GEMM
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
