"""The real benchmark client and the stand-in's: same command line, same answer, same keys."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES
from tests.support.ports import free_port
from tests.support.sources import LAB
from tests.support.waiting import until

from l40s_lab.engine.environment import ensure_engine, ensure_model
from orchestrator.bench.text import own_text
from orchestrator.engines import bench_client
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_stack
from orchestrator.model.profile import Load

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    SAME_AS_THE_ENGINES,
]

LOAD = Load(input=20, output=10, prompts=8, rate=100, concurrency=4)
STANDIN = LAB / "standin"
KEY = "key-of-the-test"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The stand-in engine on loopback, which requires a key: (its URL, a folder from which it can be imported)."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "standin").symlink_to(STANDIN)
    port = free_port()
    words = ["--model-path", str(ensure_model()), "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "standin", "--plays", "0.5.23", "--", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "STANDIN_SPEED": "0.02",
            "L40S_LAB_GPU_CLAIMS": str(folder / "c"),
        },
        stdout=log,
        stderr=log,
    )
    try:
        until(lambda: "fired up" in (folder / "log").read_text(), 30, "the stand-in serves")
        yield f"http://127.0.0.1:{port}", folder
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def run(python: Path | str, module: str, engine: tuple[str, Path], out: Path, **env: str) -> dict[str, Any]:
    """The result that a client writes, run as the node runs it."""
    url, _ = engine
    data = out / "dataset.json"
    data.write_text(own_text(32))
    told = out / f"{module}.jsonl"
    facts = engine_of(load_stack("sglang-0.5.23"))
    real, *words = bench_client.command(facts, LOAD, url=url, model="tiny", tokenizer=str(ensure_model()))
    paths = {bench_client.DATASET: str(data), bench_client.RESULT: str(told)}
    done = subprocess.run(
        [python, "-m", module or real, *(paths.get(word, word) for word in words)],
        env={"PATH": os.environ["PATH"], "HOME": str(out), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
             "OPENAI_API_KEY": KEY, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert re.findall(bench_client.PROGRESS, done.stderr)[-1] == ("8", "8")
    document: dict[str, Any] = json.loads(told.read_text().splitlines()[-1])
    return document


def test_the_real_client_and_the_stand_ins_agree(engine: tuple[str, Path], tmp_path: Path) -> None:
    # The CPU stack leaves out this package, which the client imports for a data set that we don't use.
    (tmp_path / "left_out").mkdir()
    (tmp_path / "left_out" / "datasets.py").write_text("load_dataset = None\n")
    real = run(ensure_engine() / "bin" / "python3", "", engine, tmp_path, PYTHONPATH=str(tmp_path / "left_out"))
    played = run(sys.executable, "standin.bench", engine, tmp_path, PYTHONPATH=str(engine[1]))
    assert played.keys() - real.keys() == {"stand_in"}
    for document in (real, played):
        result = bench_client.read(json.dumps(document))
        assert bench_client.flaw(result, LOAD) == ""
        assert (result.completed, result.output_tokens, result.stand_in) == (8, 80, True)
        assert "server_info" not in result.raw
        assert KEY not in json.dumps(result.raw)
        assert result.figures["output_tok_s"] * result.figures["duration_s"] == pytest.approx(80, rel=0.01)
    assert bench_client.read(json.dumps(real)).figures.keys() == bench_client.read(json.dumps(played)).figures.keys()
