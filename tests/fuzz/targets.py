"""What is fuzzed: a reader, sound input for it, and how that is made odd."""

from __future__ import annotations

import functools
import io
import json
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.fuzz.answers import COSTLY, NAMES, hear, odd_answer
from tests.fuzz.forged import believe, forged
from tests.fuzz.mutate import deep, dumped, odd_bytes, odd_json, odd_value
from tests.fuzz.secret_lines import odd_line, scrub

from orchestrator.checkpoint.on_node.directory import look, read_shard
from orchestrator.checkpoint.on_node.push.target import checked
from orchestrator.checkpoint.on_node.tensors import HeaderError
from orchestrator.doctor.steps.recordings import load_saved
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.resources import data_dir
from orchestrator.node.agent import weights
from orchestrator.planning.judgement import draft, judge
from orchestrator.planning.steps.plan import read_request
from orchestrator.protocol.jobs import PushLine
from orchestrator.remote import ssh_target
from orchestrator.tuning.steps.packs import load_pack

INDEX = "model.safetensors.index.json"
SSH = b"""Host node*
    User l40s
    Port 22
    IdentityFile ~/.ssh/%h
    ProxyJump jump
Include other.conf
Match host x
    ServerAliveInterval 5
"""


@dataclass(frozen=True, slots=True)
class Target:
    """sound: what the reader takes; odd: made from it; read: reads a file of this name in a folder; also: other
    exceptions that are its own words."""

    name: str
    sound: bytes
    odd: Callable[[random.Random, bytes], bytes]
    read: Callable[[Path], object]
    also: tuple[type[Exception], ...] = ()
    suffix: str = "json"
    share: float = 1.0
    """Of the cases, beside the other targets'."""


def odd_yaml(rng: random.Random, text: bytes) -> bytes:
    """A YAML text: another value in it, or other bytes."""
    if rng.random() < 0.5:
        return odd_bytes(rng, text)
    value = _loaded(text)
    for _ in range(rng.choice((1, 1, 2))):
        value = odd_value(rng, value)
    return dumped(value).encode("utf-8", "surrogatepass")


@functools.cache
def _loaded(text: bytes) -> Any:
    return yaml.safe_load(text)


def targets(folder: Path) -> tuple[Target, ...]:
    """Every one; folder: a place of their own."""
    shipped = data_dir("inventory")
    profile = next(shipped.glob("models/DeepSeek-V3-0324-Block64x64.yml")).read_bytes()
    stack = next(shipped.glob("stacks/sglang-0.5.23.yml")).read_bytes()
    return (
        Target("inventory", (shipped / "reference.yml").read_bytes(), odd_yaml, load_inventory, suffix="yml"),
        Target("profile", profile, odd_yaml, lambda path: load_profile(str(path)), suffix="yml"),
        Target("stack", stack, odd_yaml, lambda path: load_stack(str(path)), suffix="yml"),
        Target("plan", json.dumps(_PLAN).encode(), odd_json, read_request),
        Target("config", json.dumps(_CONFIG).encode(), odd_json, lambda path: _inspect(path, "config.json")),
        Target("index", json.dumps(_INDEX).encode(), odd_json, lambda path: _inspect(path, INDEX)),
        Target("shard", _shard(), _odd_shard, read_shard, (HeaderError, OSError)),
        Target("ssh_config", SSH, odd_bytes, _ssh),
        Target("snapshot", json.dumps(_SNAPSHOT).encode(), odd_json, load_saved),
        Target("pack", _tar(), odd_bytes, load_pack, suffix="tar"),
        Target("forged", b"", forged, lambda path: believe(path.read_bytes()), share=4.0),
        Target("answers", b"", odd_answer(NAMES), lambda path: hear(NAMES, path.read_bytes()), share=4.0),
        Target("probe", b"", odd_answer(COSTLY), lambda path: hear(COSTLY, path.read_bytes()), share=0.05),
        Target("secret lines", b"", odd_line, lambda path: scrub(path.read_bytes()), (ValueError, RecursionError)),
        Target("push list", json.dumps(_LIST).encode(), odd_json, _push_list, (ValueError, RecursionError)),
    )


_PLAN: Mapping[str, Any] = {
    "format": 1, "plan_id": "abc", "facts": [{"node": "a", "name": "b", "value": "c"}],
    "nodes": [{"name": "a", "argv": ["python3", "--tp", "8"], "env": {"A": "b"}}],
    "request": {"model": "M", "stack": None, "tp": 8, "pp": None, "ep": 1, "extra_args": [], "gangs": ["g"]},
}  # fmt: skip
_CONFIG: Mapping[str, Any] = {
    "architectures": ["X"], "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 64,
    "intermediate_size": 64, "num_key_value_heads": 8, "vocab_size": 10, "n_routed_experts": 4,
    "moe_intermediate_size": 64, "text_config": {"head_dim": 8},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"},
}  # fmt: skip
_INDEX: Mapping[str, Any] = {
    "metadata": {"total_size": 16},
    "weight_map": {"model.layers.0.a.weight": "s.safetensors", "model.layers.1.mlp.experts.3.w": "t.safetensors"},
}
_HEADER: Mapping[str, Any] = {
    "__metadata__": {"format": "pt"},
    "model.layers.0.a.weight": {"dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [0, 16]},
}
_SNAPSHOT: Mapping[str, Any] = {
    "format": 1, "node": "a", "taken_at": 1.0, "duration_s": 1.0, "files": {"/sys/x": "1"}, "links": {},
    "directories": {}, "errors": {}, "nvml": {"devices": []}, "host": {"addresses": {}},
}  # fmt: skip
_LIST = {"a/b": 5, "e": 0}


def _shard(header: Mapping[str, Any] = _HEADER) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


def _odd_shard(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.5:
        return odd_bytes(rng, data)
    text = odd_json(rng, json.dumps(_HEADER).encode())
    return len(text).to_bytes(8, "little") + text + bytes(16)


def _inspect(path: Path, name: str) -> None:
    """A directory whose one file is this one: what inspect, models add and a start make of it."""
    folder = path.parent / "checkpoint"
    folder.mkdir(exist_ok=True)
    texts = {"config.json": json.dumps(_CONFIG).encode(), INDEX: json.dumps(_INDEX).encode(), "s.safetensors": _shard()}
    for one, text in {**texts, name: path.read_bytes()}.items():
        (folder / one).write_bytes(text)
    list(weights.check(folder))
    judgement = judge(look(folder))
    json.dumps(judgement.as_json(), default=str)
    draft(judgement, name="m", directory="m", source="s")


def _ssh(path: Path) -> None:
    ssh_target._parsed.cache_clear()
    ssh_target.look_up("node0", str(path))


def _push_list(path: Path) -> None:
    said = PushLine.read({"files": json.loads(path.read_bytes())})
    if isinstance(said, PushLine):
        checked(said.files or {})


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in (("manifest.json", b"{}"), ("linear/N=1,K=1,device_name=X.json", b"{}")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return out.getvalue()


NESTED = (
    *(json.dumps(deep(depth, mapping=mapping)).encode() for depth in (90, 900) for mapping in (True, False)),
    b"[" * 100_000, b'{"a":' * 100_000, b"- " * 100_000, b"",
)  # fmt: skip
"""Tried by every target, whatever the seed."""
