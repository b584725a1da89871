"""known_hosts lines, compared with ssh-keygen -F if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.remote.ssh_keys import keys_for
from orchestrator.remote.ssh_target import host_key_name

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0R1zvmC5Qwv0rYQm4j9m0n8S0Ea1Q3V3tXr3i1xY7h"


@pytest.mark.parametrize(
    ("patterns", "name", "found"),
    [
        ("a.example", "a.example", True),
        ("A.Example", "a.example", True),
        ("a,b", "b", True),
        ("*.example", "n.example", True),
        ("*.example,!n.example", "n.example", False),
        ("n?", "n1", True),
        ("n?", "n12", False),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("10.0.0.1", "[10.0.0.1]:2222", False),
        ("[10.0.0.*]:2222", "[10.0.0.1]:2222", True),
        ("[ab]", "a", False),
        ("|1|nonsense|x", "a", False),
        ("|2|YQ==|YQ==", "a", False),
    ],
)
def test_names_and_patterns(patterns: str, name: str, found: bool) -> None:
    assert bool(list(keys_for(name, f"{patterns} ssh-ed25519 {KEY}\n", "file"))) is found


def test_markers_comments_and_lines() -> None:
    text = f"# c\n\n@revoked h ssh-rsa AAAA\n@cert-authority *.x ssh-rsa BBBB\nh ssh-ed25519 {KEY} remark\nbroken\n"
    found = list(keys_for("h", text, "kh"))
    assert [(key.marker, key.kind, key.line) for key in found] == [("@revoked", "ssh-rsa", 3), ("", "ssh-ed25519", 5)]


@pytest.mark.parametrize(("host", "port"), [("Node.Example", 22), ("10.0.0.1", 2222), ("fe80::1", 2200)])
def test_hashed_names_are_those_of_ssh_keygen(host: str, port: int, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen on this machine")
    file = tmp_path / "kh"
    name = host_key_name(host, port)
    file.write_text(f"{name} ssh-ed25519 {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, timeout=20, capture_output=True)
    text = file.read_text()
    assert text.startswith("|1|")
    assert [key.key for key in keys_for(name, text, "kh")] == [KEY]
    assert not list(keys_for(name + "x", text, "kh"))
