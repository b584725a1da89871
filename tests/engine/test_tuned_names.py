"""Names and places of tuned configs, taken from the real look-up code: 0.5.23 imported as the lab installs it, and
0.4.4's functions cut out of its wheel. Only the GPU's name is replaced; the files they look for are recorded.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES

from l40s_lab.engine.environment import ensure_engine
from orchestrator.engines.engine import Lookup
from orchestrator.engines.registry import dialect
from orchestrator.engines.tuned_validity import read_name
from orchestrator.engines.tuned_wanted import Wanted, resolve, wanted_files
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.node.look.reading import LARGEST_TEXT
from orchestrator.protocol.planned import Layout

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    SAME_AS_THE_ENGINES,
]

GPU = "NVIDIA L40S"
MODELS = ("DeepSeek-V3-0324-Block64x64", "DeepSeek-R1-Channel-INT8", "DeepSeek-V3-0324")
LAYOUTS = ((32, 1), (8, 1), (16, 2))
TRITON = "3.9.0"
"""Triton's version in the stack that the lab installs."""

PREAMBLE = """
import json, os, sys, types
request, looked = json.load(sys.stdin), []
real_exists = os.path.exists
def exists(path):
    looked.append(str(path))
    return real_exists(path)
"""

ASK_0_5 = (
    PREAMBLE
    + """
import sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config as moe
import sglang.kernels.ops.gemm.fp8_kernel as linear
import sglang
parent = os.path.dirname(os.path.dirname(os.path.realpath(sglang.__file__)))
plain = types.SimpleNamespace(deterministic=types.SimpleNamespace(enable_deterministic_inference=False))
moe.get_exec = lambda: plain
moe.get_device_name = linear.get_device_name = lambda *_: request["gpu"]
os.path.exists = exists

def first(ask, *words, **named):
    looked.clear()
    ask.cache_clear()
    ask(*words, **named)
    return os.path.relpath(looked[0], parent)

answers = []
for one in request["asks"]:
    shape = dict(one["shape"])
    if one["kernel"] == "moe":
        answers.append(first(moe.get_moe_configs, shape["E"], shape["N"], one["dtype"] or None, *one["block"],
                             per_channel_quant=one["channel"], down_moe=one["down"]))
    else:
        answers.append(first(linear.get_w8a8_block_fp8_configs, shape["N"], shape["K"], *one["block"]))

names = []
for dtype in ("", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16", "float32"):
    for block in ([0, 0], [128, 128]):
        for channel in (False, True):
            for down in (False, True):
                made = moe.get_config_file_name(8, 64, dtype or None, block, channel, down_moe=down)
                names.append((dtype, block, channel, down, made))
folders = [os.path.dirname(moe.__file__), os.path.dirname(linear.__file__)]
shipped = [name for folder in folders for _, _, inside in os.walk(folder + "/configs") for name in inside
           if name.startswith(("E=", "N="))]
used = []
os.path.exists = real_exists
for root, down in request["searches"]:
    os.environ["SGLANG_MOE_CONFIG_DIR"] = root
    moe.get_moe_configs.cache_clear()
    configs = moe.get_moe_configs(257, 64, "fp8_w8a8", 64, 64, down_moe=down)
    used.append(configs[1]["GROUP_SIZE_M"] if configs else 0)
os.environ["SGLANG_MOE_CONFIG_DIR"] = request["nowhere"]
moe.get_moe_configs.cache_clear()
try:
    moe.get_moe_configs(257, 64, "fp8_w8a8", 64, 64)
    missing = ""
except FileNotFoundError as error:
    missing = str(error)

import torch
import sglang.srt.models.deepseek_v2 as model
model._is_cuda = True
torch.cuda.get_device_capability = lambda *_: (8, 9)
model.is_sbo_enabled = model.is_tbo_enabled = model.is_deepep_class_backend = lambda: False
model.get_exec = lambda: types.SimpleNamespace(moe=types.SimpleNamespace(enforce_shared_experts_fusion=False))
reasons = []
for expert in (1, 2):
    model.get_parallel = lambda: types.SimpleNamespace(moe_ep_size=expert)
    config = types.SimpleNamespace(architectures=["DeepseekV3ForCausalLM"], n_routed_experts=256, n_shared_experts=1,
                                   num_experts_per_tok=8)
    reasons.append(model.DeepseekV3ForCausalLM.shared_experts_fusion_disable_reason(config, None))

import ast, inspect, textwrap
made = ast.parse(textwrap.dedent(inspect.getsource(model.DeepseekV2MoE.__init__)))
sums = [ast.unparse(one.value) for one in ast.walk(made) if isinstance(one, ast.Assign)
        and "num_fused_shared_experts" in ast.unparse(one.value) and ast.unparse(one.targets[0]) == "top_k_for_moe"]
tops = [[eval(one, {"config": config, "self": types.SimpleNamespace(num_fused_shared_experts=int(reason is None))})
         for one in sums] for reason in reasons]

import triton
said = {"names": names, "shipped": shipped, "first": answers, "used": used, "missing": missing, "reasons": reasons,
        "tops": tops, "triton": triton.__version__}
with open(sys.argv[1], "w") as file:
    json.dump(said, file)
"""
)


def asks(wanted: tuple[Wanted, ...], dtype: str, channel: bool) -> list[dict[str, Any]]:
    return [
        {"kernel": one.kernel, "shape": one.shape, "block": one.block, "dtype": dtype, "channel": channel,
         "down": one.optional}
        for one in wanted
    ]  # fmt: skip


def newest(family: str) -> Lookup:
    return dialect(family).engine({"sglang-0.4.4": "0.4.4.post1", "sglang-0.5": "0.5.23"}[family]).tuned


def wanted_of(family: str, triton: str) -> list[tuple[tuple[Wanted, ...], str, bool]]:
    """For every model and layout: our answer, the kernel's type, and whether its scales are per channel."""
    found = []
    for profile in map(load_profile, MODELS):
        for tensor, expert in LAYOUTS if family == "sglang-0.5" else LAYOUTS[:2]:
            layout = Layout(tensor_parallel=tensor, expert_parallel=expert, nnodes=4, gpus_per_node=8)
            files = wanted_files(profile, layout, newest(family), gpu=GPU, triton=triton)
            int8 = profile.quantisation == "int8-channel"
            found.append((files, "int8_w8a8" if int8 else "fp8_w8a8", int8))
    return found


SEARCHES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "its own triton": (("3_9_0", "3_1_0", "3_10_0"), ()),
    "the newest other one": (("3_1_0", "3_8_0", "3_5_1"), ()),
    "a number is no text": (("3_1_0", "3_10_0", "3_8_0"), ()),
    "a down projection of its own": (("3_9_0",), ("3_1_0",)),
    "the up projection's for down": (("3_8_0",), ()),
    "none": ((), ()),
}
"""Triton folders with an up projection's file, and those with a down projection's."""


def search_folder(root: Path, name: str) -> Path:
    """A directory for SGLANG_MOE_CONFIG_DIR; each file has its own GROUP_SIZE_M."""
    up, down, *_ = wanted_of("sglang-0.5", TRITON)[0][0]
    folder = root / name.replace(" ", "-").replace("'", "")
    (folder / "configs").mkdir(parents=True)
    number = 0
    for one, versions in zip((up, down), SEARCHES[name], strict=True):
        for version in versions:
            number += 1
            place = folder / "configs" / f"triton_{version}"
            place.mkdir(exist_ok=True)
            config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": number}
            (place / one.name).write_text(json.dumps({"1": config}))
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, bool]]:
    root = tmp_path_factory.mktemp("searches")
    folders = [search_folder(root, name) for name in SEARCHES]
    return [(folder, down) for folder in folders for down in (False, True)]


@pytest.fixture(scope="module")
def said_by_0_5(tmp_path_factory: pytest.TempPathFactory, searched: list[tuple[Path, bool]]) -> Mapping[str, Any]:
    """The files that the real 0.5.23 looked for and used."""
    folder = tmp_path_factory.mktemp("asked")
    wanted = wanted_of("sglang-0.5", TRITON)
    request = {
        "gpu": GPU,
        "asks": [ask for files, dtype, channel in wanted for ask in asks(files, dtype, channel)],
        "searches": [(str(place), down) for place, down in searched],
        "nowhere": str(folder / "nowhere"),
    }
    done = subprocess.run(
        [ensure_engine() / "bin" / "python3", "-c", ASK_0_5, folder / "answer.json"],
        input=json.dumps(request),
        env={"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: Mapping[str, Any] = json.loads((folder / "answer.json").read_text())
    assert answer["triton"] == TRITON
    return answer


def test_0_5_looks_first_where_we_say(said_by_0_5: Mapping[str, Any]) -> None:
    ours = [f"{one.folder}/{one.name}" for files, _, _ in wanted_of("sglang-0.5", TRITON) for one in files]
    assert said_by_0_5["first"] == ours


def test_every_name_that_0_5_makes_or_ships_is_read(said_by_0_5: Mapping[str, Any]) -> None:
    for dtype, block, channel, down, name in said_by_0_5["names"]:
        said = read_name(name)
        assert said is not None, name
        assert (said.kernel, said.dtype, said.block) == ("moe", dtype, tuple(block)), (name, channel, down)
    shipped = [name for name in said_by_0_5["shipped"] if "=NVIDIA" in name and read_name(name) is None]
    assert len(said_by_0_5["shipped"]) > 300 and shipped == []


def test_0_5_takes_the_file_that_we_say(said_by_0_5: Mapping[str, Any], searched: list[tuple[Path, bool]]) -> None:
    profile = load_profile(MODELS[0])
    layout = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
    lookup = newest("sglang-0.5")
    for (place, down), used in zip(searched, said_by_0_5["used"], strict=True):
        files = wanted_files(profile, layout, lookup, gpu=GPU, triton=TRITON, moe_directory=str(place))
        folders = {str(one): {file.name for file in one.iterdir()} for one in (place / "configs").iterdir()}
        found = resolve(files[1 if down else 0], lookup, folders)
        ours = json.loads(Path(*found).read_text())["1"]["GROUP_SIZE_M"] if all(found) else 0
        assert ours == used, (place.name, down, found)


def test_0_5_fails_where_the_variable_names_a_directory_without_configs(said_by_0_5: Mapping[str, Any]) -> None:
    assert "nowhere/configs" in said_by_0_5["missing"]


def test_0_5_fuses_the_shared_expert_on_sm89_but_not_with_expert_parallelism(said_by_0_5: Mapping[str, Any]) -> None:
    without, spread = said_by_0_5["reasons"]
    assert without is None
    assert "expert parallelism" in spread


def test_a_token_goes_through_as_many_experts_as_0_5_itself_says(said_by_0_5: Mapping[str, Any]) -> None:
    """Nine with the fused shared one: what `tuning run` and `stack check` run."""
    ours = [
        [files[0].top]
        for (tensor, expert), (files, _, _) in zip(LAYOUTS, wanted_of("sglang-0.5", TRITON), strict=False)
        if (tensor, expert) != LAYOUTS[1]
    ]
    assert said_by_0_5["tops"] == ours == [[9], [8]]


def of_the_engine(stack: str) -> list[tuple[str, str]]:
    """The stack's evidence about the engine's own files: the kernels' package has no build for a CPU."""
    found = [(file, text) for file, text in load_stack(stack).evidence if file.startswith("sglang/")]
    assert found
    return found


def test_0_5_has_the_evidence_that_its_stack_names_where_a_look_reads_it() -> None:
    (site,) = (ensure_engine() / "lib").glob("python3*/site-packages")
    for file, text in of_the_engine("sglang-0.5.23"):
        assert text.encode() in (site / file).read_bytes()[:LARGEST_TEXT]


def test_the_stock_wheel_of_0_4_4_lacks_what_the_articles_stack_has(wheel_of_0_4_4: Path) -> None:
    with zipfile.ZipFile(wheel_of_0_4_4) as wheel:
        for file, text in of_the_engine("sglang-0.4.4-l40s"):
            assert text.encode() not in wheel.read(file)


@pytest.fixture(scope="module")
def wheel_of_0_4_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sglang-0.4.4")
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "sglang==0.4.4.post1"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"the wheel can't be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return next(folder.glob("*.whl"))


class _Lookups:
    """Functions of one source file of the wheel, run with replacements for all names that they use."""

    def __init__(self, wheel: Path, path: str, *names: str) -> None:
        import functools
        import logging
        import os
        import typing
        from types import SimpleNamespace

        self.looked: list[str] = []
        where = SimpleNamespace(
            join=os.path.join, dirname=os.path.dirname, realpath=lambda path: path, exists=self._exists
        )
        self.space: dict[str, Any] = {
            "functools": functools, "json": json, "os": SimpleNamespace(path=where), "logger": logging.getLogger(path),
            "Optional": typing.Optional, "Dict": dict, "Any": Any, "List": list, "get_device_name": lambda: GPU,
            "__file__": path,
        }  # fmt: skip
        with zipfile.ZipFile(wheel) as archive:
            tree = ast.parse(archive.read(path))
        chosen: list[ast.stmt] = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names
        ]
        assert {node.name for node in chosen if isinstance(node, ast.FunctionDef)} == set(names)
        exec(compile(ast.Module(chosen, []), path, "exec"), self.space)

    def _exists(self, path: str) -> bool:
        self.looked.append(path)
        return False

    def first(self, name: str, *words: Any) -> str:
        self.looked.clear()
        self.space[name].cache_clear()
        assert self.space[name](*words) is None
        return self.looked[0]


def test_0_4_4_looks_where_we_say(wheel_of_0_4_4: Path) -> None:
    moe = _Lookups(
        wheel_of_0_4_4, "sglang/srt/layers/moe/fused_moe_triton/fused_moe.py", "get_config_file_name", "get_moe_configs"
    )
    linear = _Lookups(wheel_of_0_4_4, "sglang/srt/layers/quantization/fp8_kernel.py", "get_w8a8_block_fp8_configs")
    count = 0
    for files, dtype, _ in wanted_of("sglang-0.4.4", "3.1.0"):
        for one in files:
            sizes = [size for _, size in one.shape]
            if one.kernel == "moe":
                real = moe.first("get_moe_configs", *sizes, dtype, *one.block)
            else:
                real = linear.first("get_w8a8_block_fp8_configs", *sizes, *one.block)
            assert real == f"{one.folder}/{one.name}"
            count += 1
    assert count > 20
