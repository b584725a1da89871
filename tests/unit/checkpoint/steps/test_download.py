"""`checkpoint download` with the hubs' own clients, from a local server with their HTTP API."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_hub import REPO, ModelHub, model_hub
from tests.support.waiting import until

from orchestrator.checkpoint.on_node.download import PARTIAL
from orchestrator.checkpoint.steps.checkpoint import Hub, download, hub_request
from orchestrator.cli.main import main
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.protocol.jobs import Downloaded, HubLine, HubRequest

for _client in ("huggingface_hub", "modelscope"):
    pytest.importorskip(_client, reason="make setup installs the hubs' clients")

SHARD = "model-00001-of-00002.safetensors"
FILES = {
    "config.json": b'{"architectures": ["DeepseekV3ForCausalLM"]}',
    SHARD: os.urandom(3 << 20),
    "model-00002-of-00002.safetensors": os.urandom(1 << 20),
    "figures/one.txt": b"one\n",
    ".gitattributes": b"*.safetensors filter=lfs\n",
}
WANTED = {path: data for path, data in FILES.items() if not path.startswith(".")}
HUBS: tuple[Hub, ...] = ("huggingface", "modelscope")


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    with model_hub(FILES) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    (tmp_path / "models").mkdir()
    reach = Reach(host="localhost", connection="local", python=sys.executable)
    return NodeSpec(name="node0", gang="gang0", node_rank=0, reach=reach, model_root=str(tmp_path / "models"))


def request(node: NodeSpec, hub: ModelHub, of: Hub = "huggingface", **more: Any) -> HubRequest:
    return hub_request(node, REPO, hub=of, endpoint=hub.url, python=sys.executable, **more)


def bring(node: NodeSpec, hub: ModelHub, of: Hub = "huggingface", **more: Any) -> Downloaded:
    seen: list[HubLine] = []
    done = download(node, request(node, hub, of, **more), seen.append)
    assert done.by_size == 0
    assert all(0 <= one.done <= one.total == sum(map(len, WANTED.values())) for one in seen)
    return done


def held(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.turns
@pytest.mark.parametrize("of", HUBS)
def test_every_file_arrives_and_nothing_of_the_client_s_stays(node: NodeSpec, hub: ModelHub, of: Hub) -> None:
    done = bring(node, hub, of)
    assert (done.files, done.bytes, done.there) == (len(WANTED), sum(map(len, WANTED.values())), False)
    assert held(Path(done.directory)) == WANTED
    assert [path.name for path in Path(node.model_root).iterdir()] == ["tiny"]
    before = len(hub.sent(SHARD))
    assert bring(node, hub, of).there and len(hub.sent(SHARD)) == before
    (Path(done.directory) / SHARD).write_bytes(bytes(3 << 20))
    with pytest.raises(VerificationDiffers, match=SHARD) as caught:
        bring(node, hub, of)
    assert "--as NAME" in caught.value.fix and sorted(path.name for path in Path(node.model_root).iterdir()) == ["tiny"]


def _typed(node: NodeSpec, folder: Path, *words: str) -> list[str]:
    inventory = folder / "hosts.yml"
    facts = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "l40s_model_root": node.model_root,
    }
    inventory.write_text(json.dumps({"gangs": {"children": {"gang0": {"hosts": {"node0": facts}}}}}))
    return ["checkpoint", *words, "-i", str(inventory)]


@pytest.mark.turns
@pytest.mark.parametrize("of", HUBS)
def test_a_killed_download_goes_on_where_it_stopped(node: NodeSpec, hub: ModelHub, of: Hub, tmp_path: Path) -> None:
    hub.files[SHARD] = os.urandom(24 << 20)
    hub.slow[SHARD] = 0.01
    words = _typed(node, tmp_path, "download", REPO, "--from", of, "--endpoint", hub.url, "--python", sys.executable)
    running = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *words],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: hub.bytes_sent.get(SHARD, 0) > 12 << 20, 90.0, "half of the first shard has been sent")
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    partial = Path(node.model_root) / f"tiny{PARTIAL}"
    until(lambda: not _users(partial), 60.0, "the client has ended with us")
    assert not (Path(node.model_root) / "tiny").exists()
    hub.slow.clear()
    sent = len(hub.sent(SHARD))
    done = download(node, request(node, hub, of), lambda _: None)
    assert held(Path(done.directory)) == {**WANTED, SHARD: hub.files[SHARD]} and not partial.exists()
    assert len(hub.sent("model-00002-of-00002.safetensors")) == 1  # it was complete
    if of == "modelscope":  # huggingface_hub restarts a file since 1.0
        assert any(re.fullmatch(r"bytes=[1-9]\d+-\d*", wanted) for wanted in hub.sent(SHARD)[sent:])


def _users(partial: Path) -> list[str]:
    """Processes of the download."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found += [place.parent.name] * (str(partial).encode() in place.read_bytes())
    return found


def test_bytes_that_are_not_the_hub_s_are_removed_and_fetched_again(node: NodeSpec, hub: ModelHub) -> None:
    hub.lie.add(SHARD)
    with pytest.raises(VerificationDiffers, match=SHARD) as caught:
        bring(node, hub)
    assert "resumes" in caught.value.fix and not (Path(node.model_root) / "tiny").exists()
    hub.lie.clear()
    assert held(Path(bring(node, hub).directory)) == WANTED


@pytest.mark.turns
@pytest.mark.parametrize("of", HUBS)
def test_a_dry_run_says_what_there_is_and_brings_nothing(
    node: NodeSpec, hub: ModelHub, of: Hub, typed: Callable[..., tuple[int, str]]
) -> None:
    words = ("download", REPO, "--from", of, "--endpoint", hub.url, "--python", sys.executable, "--dry-run")
    code, out = typed(*words, "--json")
    (told,) = json.loads(out)["nodes"]
    assert code == 0 and (told["node"], told["files"], told["there"]) == ("node0", len(WANTED), False)
    assert told["bytes"] == sum(map(len, WANTED.values())) and told["held"] == 0 < told["free"]
    code, out = typed(*words)
    assert code == 0 and "node0:" in out and "would be downloaded: 4.0 MiB in 4 files" in out
    assert not list(Path(node.model_root).iterdir()) and not any(map(hub.sent, WANTED))
    bring(node, hub, of)
    assert "already exists; would be compared" in typed(*words)[1]
    assert typed("download", "lab/none", *words[2:])[0] == 2


def test_a_token_is_read_from_a_private_file_and_never_stands_in_argv(node: NodeSpec, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("hf_secret\n")
    secret.chmod(0o600)
    with model_hub(FILES, token="hf_secret") as hub:
        with pytest.raises(InputError) as caught:
            bring(node, hub)
        assert "--token-file" in caught.value.fix
        assert held(Path(bring(node, hub, token_file=secret).directory)) == WANTED
    secret.chmod(0o644)
    with pytest.raises(InputError, match="may be read by others"):
        bring(node, hub, token_file=secret)


def test_what_is_left_out_is_not_asked_for(node: NodeSpec, hub: ModelHub) -> None:
    download(node, request(node, hub, exclude=("*-00002-*",)), lambda _: None)
    assert "model-00002-of-00002.safetensors" not in held(Path(node.model_root) / "tiny")
    assert not hub.sent("model-00002-of-00002.safetensors")


def test_an_interpreter_without_the_client_is_told_with_what_to_do(
    node: NodeSpec, hub: ModelHub, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    for python, what in ((str(bare / "bin/python"), "has no huggingface_hub"), ("/none/python", "no such interpreter")):
        with pytest.raises(NodeError, match=what) as caught:
            download(node, hub_request(node, REPO, endpoint=hub.url, python=python), lambda _: None)
        assert "--python" in caught.value.fix


def test_a_stack_may_be_named_by_its_file(node: NodeSpec, tmp_path: Path) -> None:
    stack = tmp_path / "file.yml"
    stack.write_text("name: ours\nsource: made by the tests\ndialect: sglang-0.5\nengine_version: 0.5.23\n")
    with pytest.raises(NodeError, match="/opt/l40s/venvs/ours/bin/python"):
        download(node, hub_request(replace(node, stack=str(stack)), REPO), lambda _: None)


def test_two_into_one_directory(node: NodeSpec, hub: ModelHub) -> None:
    import fcntl

    partial = Path(node.model_root) / f"tiny{PARTIAL}"
    partial.mkdir()
    with (partial / ".l40s-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockHeld):
            bring(node, hub)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("a/b/c",), "wanted OWNER/NAME"),
        (("no-such-profile",), "no-such-profile"),
        ((REPO, "--as", "../x"), "not a directory's name"),
        ((REPO,), "no stack is set"),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], what: str, node: NodeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_typed(node, tmp_path, "download", *words)) == 2
    assert what in capsys.readouterr().err


@pytest.fixture
def typed(node: NodeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*words: str) -> tuple[int, str]:
        code = main(_typed(node, tmp_path, *words))
        return code, capsys.readouterr().out

    return run


def test_a_checkpoint_of_a_node_is_inspected_there(typed: Callable[..., tuple[int, str]], node: NodeSpec) -> None:
    place = Path(node.model_root) / "one"
    place.mkdir()
    (place / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}')
    code, out = typed("check", f"node0:{place}", "--json")
    assert code == 3 and json.loads(out)["findings"]
    assert typed("check", f"node0:{place}x")[0] == 2
    assert typed("check", "nodeX:/one")[0] == 2


def test_a_profile_is_made_from_a_checkpoint_of_a_node(
    node: NodeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(node.model_root) / "two"
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    more = {"num_key_value_heads": 4, "vocab_size": 100, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    place.mkdir()
    (place / "config.json").write_text(json.dumps(small | more))
    (place / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    words = _typed(node, tmp_path, "unused")[2:]
    out = tmp_path / "like-this.yml"
    code = main(["models", "add", f"node0:{place}", "--out", str(out), *words, "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert f"node0:{place}" in out.read_text() and json.loads(told.out)["file"] == str(out)
    assert {"like-this", "two"} <= set(re.findall(r"^(?:name|directory): \W?([\w-]+)", out.read_text(), re.MULTILINE))
