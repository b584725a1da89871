"""The script that passes an engine its API key from a file: like `python3 -m`, except where arguments come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.loading.resources import data_dir

SCRIPT = data_dir("templates") / "launch_with_secrets.py"
MODULE = """
import json, multiprocessing, sys
from pathlib import Path

def child(queue):
    queue.put([sys.argv, Path("/proc/self/cmdline").read_text()])

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=child, args=(queue,))
    process.start()
    told = queue.get(timeout=20)
    process.join()
    print(json.dumps({"argv": sys.argv, "cmdline": Path("/proc/self/cmdline").read_text(), "child": told,
                      "path": sys.path[0]}))
"""


@pytest.mark.timeout(60)
def test_the_module_gets_the_key_and_no_command_line_shows_it(tmp_path: Path) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(MODULE)
    (tmp_path / "gang").mkdir()
    stub = tmp_path / "gang" / "launch_with_secrets.py"
    stub.write_text(SCRIPT.read_text())
    secret = tmp_path / "gang" / "engine-secrets.args"
    secret.write_text("--api-key\nsk-very-secret\n")
    done = subprocess.run(
        [sys.executable, stub, secret, "engine.launch_server", "--port", "1"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["argv"][1:] == ["--api-key", "sk-very-secret", "--port", "1"]
    assert "sk-very-secret" not in told["cmdline"] + told["child"][1]
    assert told["child"][0][1:] == told["argv"][1:]
    assert told["path"] != str(stub.parent)
