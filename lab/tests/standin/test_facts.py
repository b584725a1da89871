"""What the stand-in derives from a command line, a model's config and the environment, without running anything."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from l40s_lab.standin import moe, nccl
from l40s_lab.standin.claims import visible_gpu
from l40s_lab.standin.config import merged
from l40s_lab.standin.failures import Failure, read_failures
from l40s_lab.standin.flags import Given, build_parser, find_flag_list
from l40s_lab.standin.log import shard_bar
from l40s_lab.standin.model import read_model, routed_experts
from l40s_lab.standin.settings import Settings, read_settings
from l40s_lab.standin.versions import PLAYED

from .conftest import PACKAGE, model_directory


def settings(*words: str, plays: str = "0.5.23") -> Settings:
    version = PLAYED[plays]
    parser = build_parser(find_flag_list(version, None))
    return read_settings(version, Given(parser, ["--model-path", "m", "--dist-init-addr", "10.0.0.1:5000", *words]))


@pytest.mark.parametrize(
    ("words", "world", "tp", "gpus"),
    [
        ("--tp-size 32 --nnodes 4 --node-rank 2", range(16, 24), range(16, 24), range(8)),
        ("--tp-size 8 --pp-size 4 --nnodes 4 --node-rank 3", range(24, 32), range(8), range(8)),
        ("--tp-size 16 --pp-size 2 --nnodes 4 --node-rank 1", range(8, 16), range(8, 16), range(8)),
        ("--tp-size 4 --pp-size 2", range(8), (0, 1, 2, 3, 0, 1, 2, 3), range(8)),
        ("--tp-size 2 --base-gpu-id 4 --gpu-id-step 2", range(2), range(2), (4, 6)),
    ],
)
def test_a_nodes_ranks(words: str, world: Any, tp: Any, gpus: Any) -> None:
    ranks = settings(*words.split()).ranks
    assert [rank.world for rank in ranks] == list(world)
    assert [rank.tp for rank in ranks] == list(tp)
    assert [rank.gpu for rank in ranks] == list(gpus)


@pytest.mark.parametrize(
    ("words", "plays", "prefix"),
    [
        ("--tp-size 4", "0.5.23", " TP3"),
        ("--tp-size 4 --pp-size 2", "0.5.23", " PP1 TP3"),
        ("--tp-size 4 --ep-size 2", "0.5.23", " TP3 EP1"),
        ("--tp-size 1", "0.5.23", ""),
        ("--tp-size 1", "0.4.4", " TP0"),
    ],
)
def test_log_prefixes(words: str, plays: str, prefix: str) -> None:
    made = settings(*words.split(), plays=plays)
    assert made.prefix(made.ranks[-1]) == prefix


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Invalid network address: '10\.0\.0\.1'"):
        settings("--dist-init-addr", "10.0.0.1")


def test_an_ipv6_rendezvous() -> None:
    made = settings("--dist-init-addr", "[fd00::1]:5000")
    assert (made.dist_host, made.dist_port) == ("fd00::1", 5000)


@pytest.mark.parametrize(
    ("shown", "position", "gpu"), [(None, 3, 3), ("4,5", 1, 5), ("4,5", 2, None), ("", 0, None), ("2,-1,3", 1, None)]
)
def test_visible_gpus(shown: str | None, position: int, gpu: int | None) -> None:
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert visible_gpu(position, environment) == gpu


@pytest.mark.parametrize(
    ("word", "number"), [("4096", 4096), ("8k", 8000), ("8Ki", 8192), ("25.6k", 25_600), (" 1M ", 1_000_000)]
)
def test_numbers_as_people_write_them(word: str, number: int) -> None:
    assert settings("--max-total-tokens", word).max_total_tokens == number


@pytest.mark.parametrize("word", ["8x", "8K", "1.5Ki", "", "-"])
def test_numbers_that_are_none(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings("--max-total-tokens", word)
    assert "Invalid integer value" in capsys.readouterr().err


def test_flags_of_a_config_file_come_first(tmp_path: Path) -> None:
    """So that those of the command line win, as in 0.5.23."""
    file = tmp_path / "secrets.yml"
    file.write_text('# not this\napi-key: "k\\"q"\nport: 8000\n')
    argv = ["--model-path", "m", "--config", str(file), "--tp-size", "2"]
    assert merged(argv) == ["--api-key", 'k"q', "--port", "8000", "--model-path", "m", "--tp-size", "2"]
    assert merged(["--tp-size", "2"]) == ["--tp-size", "2"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--config"], "No config file specified"),
        (["--config", "x.json"], "must be YAML"),
        (["--config", "/none.yml"], "not found"),
    ],
)
def test_the_engines_own_refusals_of_a_config_file(argv: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        merged(argv)


def test_failures_are_read_or_refused() -> None:
    assert read_failures("rank=3,phase=weights,how=oom; rank=1,phase=ready,how=signal:9,after=2") == (
        Failure(3, "weights", "oom"),
        Failure(1, "ready", "signal:9", 2.0),
    )
    with pytest.raises(ValueError, match="unknown how=flood"):
        read_failures("rank=3,phase=weights,how=flood")
    with pytest.raises(ValueError, match="lacks how, rank"):
        read_failures("phase=weights")


def test_the_reference_model_fits_as_it_did_on_the_hardware(tmp_path: Path) -> None:
    """21.27 GB of weights and 70 272 bytes of KV a token on each GPU of the reference cluster."""
    made = model_directory(tmp_path / "m", num_hidden_layers=61, hidden_size=7168, vocab_size=129280)
    (made / "model.safetensors.index.json").unlink()
    model = read_model(str(made), PLAYED["0.5.23"])
    assert model.kv_bytes_per_token(32, 1) == 70_272
    assert model.weights_gib(32) == pytest.approx(21.0, abs=0.5)


@pytest.mark.parametrize(("words", "gib"), [("--quantization w8a8_int8", 21.0), ("", 42.0)])
def test_a_quantised_checkpoint_whose_config_says_nothing_is_counted_by_the_flag(
    tmp_path: Path, words: str, gib: float
) -> None:
    made = model_directory(tmp_path / "m", num_hidden_layers=61, hidden_size=7168, vocab_size=129280)
    (made / "model.safetensors.index.json").unlink()
    config = json.loads((made / "config.json").read_text())
    del config["quantization_config"]
    (made / "config.json").write_text(json.dumps(config))
    asked = settings(*words.split(), plays="0.5.23").quantization
    assert read_model(str(made), PLAYED["0.5.23"], asked).weights_gib(32) == pytest.approx(gib, abs=1.0)


@pytest.mark.parametrize(
    ("plays", "words", "shape"),
    [
        ("0.5.23", "--tp-size 32 --nnodes 4", "E=257,N=64"),
        ("0.4.4", "--tp-size 32 --nnodes 4", "E=256,N=64"),
        ("0.5.23", "--tp-size 8 --disable-shared-experts-fusion", "E=256,N=256"),
    ],
)
def test_the_moe_file_that_a_version_looks_for(tmp_path: Path, plays: str, words: str, shape: str) -> None:
    model = read_model(str(model_directory(tmp_path / "m")), PLAYED[plays])
    name = f"{shape},device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
    assert moe.config_name(settings(*words.split(), plays=plays), model) == name


@pytest.fixture
def infiniband(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two devices below switches, one of them in a root port's slot, one port down."""
    below = {
        "mlx5_0": "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0",
        "mlx5_1": "pci0000:c9/0000:c9:01.0/0000:ca:00.0/0000:cb:00.0/0000:cc:00.0",
        "mlx5_2": "pci0000:c9/0000:c9:05.0/0000:d0:00.0",
        "mlx5_3": "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.1",
    }
    shown = tmp_path / "infiniband"
    for name, path in below.items():
        device = tmp_path / "devices" / path
        device.mkdir(parents=True)
        (shown / name / "ports" / "1").mkdir(parents=True)
        (shown / name / "ports" / "1" / "state").write_text("1: DOWN\n" if name == "mlx5_3" else "4: ACTIVE\n")
        (shown / name / "device").symlink_to(device)
    monkeypatch.setattr(nccl, "_INFINIBAND", shown)
    return shown


@pytest.mark.usefixtures("infiniband")
@pytest.mark.parametrize(
    ("environment", "ports"),
    [
        ({}, ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1"]),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1"}, ["mlx5_0:1", "mlx5_1:1"]),
        ({"NCCL_IB_HCA": "^mlx5_2"}, ["mlx5_0:1", "mlx5_1:1"]),
        ({"NCCL_IB_HCA": "mlx5_3"}, []),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_NET": "Socket"}, []),
    ],
)
def test_rdma_ports_that_nccl_would_use(environment: dict[str, str], ports: list[str]) -> None:
    assert nccl.rdma_ports(environment) == ports


@pytest.mark.usefixtures("infiniband")
@pytest.mark.parametrize(
    ("hca", "said"),
    [
        ("=mlx5_0,mlx5_1", "nNodes 8 localRanks 4 localRank 1"),
        ("=mlx5_0,mlx5_2", "nNodes 4 localRanks 8 localRank 5"),
        ("=mlx5_3", "nNodes 4 localRanks 8 localRank 5"),
    ],
)
def test_what_nccl_says_of_the_wiring(
    hca: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_IB_HCA", hca)
    made = settings("--tp-size", "32", "--nnodes", "4", "--node-rank", "1")
    nccl.tell(made, made.ranks[5])
    assert said in capfd.readouterr().out


def test_a_shard_line_reads_as_the_loaders() -> None:
    assert shard_bar("Loading", 0, 163, 0.0) == "\rLoading:   0% Completed | 0/163 [00:00<?, ?it/s]"
    assert shard_bar("Loading", 80, 160, 40.0) == "\rLoading:  50% Completed | 80/160 [00:40<00:40, 2.00it/s]"
    assert shard_bar("Loading", 2, 2, 1.0).endswith("| 2/2 [00:01<00:00, 2.00it/s]\n")


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_it_needs_the_standard_library_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("name", ["n_routed_experts", "num_experts", "num_local_experts"])
def test_experts_by_the_names_that_models_give_them(name: str) -> None:
    assert routed_experts({"num_hidden_layers": 3, name: 256}) == 256
    assert routed_experts({"num_hidden_layers": 3}) == 0
