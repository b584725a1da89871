"""README's quick start on four bare nodes that boot systemd: its commands, in its order; none of them may fail.

Replaced: the lab's names, keys and addresses, the stand-in as the stack's engine, and a tiny FP8 model on our own hub.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from tests.support.model_hub import REPO, ModelHub, model_hub
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import DIMENSIONS, ENVIRONMENT, SmallLab, small_lab
from tests.support.waiting import slack
from tests.support.wheels import wheel

from l40s_lab.life.blueprint import Blueprint
from l40s_lab.node import files as node_files

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes that boot systemd need root"),
]

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\nAfterwards:")[0]
MODEL = "DeepSeek-V3-0324"
ENGINE = "0.5.23"
SIZES = {**DIMENSIONS, "moe_intermediate_size": 512}
"""With eight ranks each has 64 columns of an expert: 128x128 does not fit, 64x64 does."""


def typed() -> list[str]:
    """Every command of the numbered steps, in a block or in the text; of the two forms of `init`, the one that asks
    nothing."""
    found = re.findall(r"(?:^ {7}|`)(l40s-deploy [^`\n]+)", QUICK_START, re.MULTILINE)
    return [words for words in found if words != "l40s-deploy init"]


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """The safetensors format: length of the header, header, data."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def checkpoint() -> dict[str, bytes]:
    """Two FP8 matrices in blocks of 128x128; the stand-in needs no more."""
    weights: dict[str, tuple[str, list[int], bytes]] = {}
    for name in ("gate_proj", "up_proj"):
        plain = f"model.layers.0.mlp.{name}.weight"
        weights[plain] = ("F8_E4M3", [1024, 512], bytes(range(64)) * 8192)
        weights[f"{plain}_scale_inv"] = ("F32", [8, 4], b"\0\0\x80\x3f" * 32)
    shard = "model-00001-of-00001.safetensors"
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **SIZES,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
    }
    index = {"metadata": {"total_size": 1 << 20}, "weight_map": dict.fromkeys(weights, shard)}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        shard: safetensors(weights),
    }


def profile(name: str) -> str:
    """A profile of the tiny model, under the name that the quick start serves."""
    return yaml.safe_dump(
        {
            "name": name,
            "source": "made by the tests",
            "directory": name,
            "architecture": "DeepseekV3ForCausalLM",
            "quantisation": "fp8-block",
            "block": [64, 64],
            "dimensions": SIZES,
            "canary": {"prompt": "The capital of France is", "max_tokens": 8, "expect_any": ["Paris"]},
        }
    )


def client(name: str = "huggingface-hub") -> dict[str, str]:
    """The hub's client and all its dependencies, by name, as installed here."""
    found: dict[str, str] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found[one] = metadata.version(one)
        wanted = [Requirement(line) for line in metadata.requires(one) or ()]
        todo += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def _bring(pins: Mapping[str, str], python: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    words = [f"{name}=={version}" for name, version in pins.items()]
    subprocess.run([*pip, "--python-version", python, "-d", str(folder), *words], check=True, timeout=300)


def stack(folder: Path) -> Path:
    """A stack with the hub's client from the index, and the stand-in as its sglang; its wheels next to it."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    show = 'import sys; print("%d.%d" % sys.version_info[:2])'
    python = subprocess.run(["/usr/bin/python3", "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    parts = {"standin": node_files.STANDIN, "standin/flags": node_files.STANDIN.parents[1] / "engines" / "flags"}
    engine = {
        f"{inside}/{path.relative_to(folder)}": path.read_text()
        for inside, folder in parts.items()
        for path in folder.rglob("*")
        if path.suffix in (".py", ".json")
    }
    engine["sglang/__init__.py"] = ""
    engine["sglang/launch_server.py"] = (
        f"import sys\nfrom standin.__main__ import main\nsys.exit(main(sys.argv[1:], {ENGINE!r}))\n"
    )
    wheel(wheels, "sglang", ENGINE, engine)
    path = folder / "small.yml"
    path.write_text(
        f'name: small\nsource: made by hand\ndialect: sglang-0.5\nengine_version: {ENGINE}\npython: "{python}"\n'
    )
    _bring(client(), python, wheels)
    pins = {"sglang": ENGINE, **client()}
    path.with_suffix(".lock").write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    return path


@dataclass(frozen=True)
class Newcomer:
    """A user with this README, a key, and four hosts."""

    lab: SmallLab
    home: Path
    hub: ModelHub
    bundle: Path

    @property
    def inventory(self) -> Path:
        return self.home / "inventory" / "hosts.yml"

    def words(self, command: str) -> list[str]:
        """As it is typed here."""
        variables = self.lab.lab_inventory()["all"]["vars"]
        hosts = " ".join(f"l40s-{number}={address}" for number, address in enumerate(self.lab.hosts().values()))
        reach = f"--port {variables['ansible_port']} --key id --stack small"
        put_in = {
            "'l40s-[0:3]' --user deploy": f"{hosts} --user {variables['ansible_user']} {reach}",
            "l40s-deploy prepare": f"l40s-deploy prepare --bundle {self.bundle}",
            f"download {MODEL}": f"download {REPO} --as {MODEL} --endpoint {self.hub.url}",
        }
        for theirs, ours in put_in.items():
            command = command.replace(theirs, ours)
        return shlex.split(command)[1:]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in self.lab.environment.items() if name != "L40S_INVENTORY"}
        return subprocess.run(
            [*L40S_DEPLOY, *self.words(command)],
            env={**ours, "HOME": str(self.home)},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300 * slack(),
            check=False,
        )

    def settle(self) -> None:
        """The inventory that `init` wrote, with this lab's settings: short phases, our known_hosts, few packages."""
        document = yaml.safe_load(self.inventory.read_text())
        variables = self.lab.lab_inventory()["all"]["vars"]
        document["gangs"]["vars"] |= {
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.home}/.ssh/known_hosts",
            "l40s_env": dict(ENVIRONMENT),
            "system_packages_wanted": ["rsync"],
            **{name: value for name, value in variables.items() if name == "l40s_accept"},
        }
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with small_lab("quickstart", level=2, nodes=4) as lab:
        if lab.json("lab", "status", "--name", lab.name)["level"] != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        home = lab.folder / "home"
        (home / "inventory" / "models").mkdir(parents=True)
        shutil.copy(lab.lab_inventory()["all"]["vars"]["ansible_ssh_private_key_file"], home / "id")
        small, bundle = stack(home / "inventory" / "stacks"), home / "small.bundle"
        served = f"{MODEL}-Block64x64"
        (home / "inventory" / "models" / f"{served}.yml").write_text(profile(served))
        words = ("stack", "build", str(small), "--out", str(bundle), "--debian", "rsync")
        subprocess.run(
            [*L40S_DEPLOY, *words, "--find-links", str(small.parent / "wheels")],
            env={**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},  # not the index's own sglang
            check=True,
            timeout=300,
        )
        for node in lab.hosts():
            lab.on(node, "rm -rf /opt/l40s /workspace")
        with model_hub(checkpoint(), host=Blueprint.read(lab.folder / "labs" / lab.name).controller) as hub:
            yield Newcomer(lab, home, hub, bundle)


def test_from_four_bare_nodes_to_ready_as_the_readme_says_it(newcomer: Newcomer) -> None:
    commands = typed()
    verbs = [" ".join(words.split()[1 : 3 if " checkpoint " in words else 2]) for words in commands]
    assert verbs == [
        *("init", "doctor", "prepare"),
        *("checkpoint download", "checkpoint reblock", "checkpoint push"),
        *("plan", "up"),
    ]
    for command in commands:
        done = newcomer.run(command)
        print(command, done.returncode, done.stdout[-1500:], done.stderr[-1500:], sep="\n")
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        if " init " in command:
            newcomer.settle()
    (gang,) = json.loads(newcomer.run("l40s-deploy status --json").stdout)["gangs"]
    assert gang["state"] == "ready" and gang["model"] == f"{MODEL}-Block64x64"
    newcomer.run("l40s-deploy down")
