"""Which release a root file system is made of, and from which mirrors."""

from __future__ import annotations

from pathlib import Path

import pytest

from l40s_lab.node import rootfs
from l40s_lab.node.rootfs import Release, sources, this_release
from orchestrator.model.errors import NodeError

BOOKWORM = Release("debian", "bookworm")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", BOOKWORM),
        ('NAME="Ubuntu"\nID=ubuntu\nVERSION_CODENAME="noble"\n', Release("ubuntu", "noble")),
        ("ID=fedora\nVERSION_ID=41\n", None),
        ("ID=debian\nPRETTY_NAME=sid\n", None),
        ("", None),
    ],
)
def test_the_release_is_this_machines(text: str, release: Release | None) -> None:
    assert this_release(text) == release


ONE_LINE = """
# deb http://commented.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb https://packages.example/cloud cloud-bookworm main
deb https://download.example/docker bookworm stable
"""
DEB822 = """
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# a comment
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def test_only_the_distributions_own_sources_count_in_either_form() -> None:
    assert sources(BOOKWORM, [ONE_LINE]) == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian-security bookworm-security main",
    ]
    assert sources(BOOKWORM, [DEB822]) == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
    ]


def test_a_mirror_may_be_an_ipv6_address_and_options_may_have_spaces() -> None:
    assert sources(BOOKWORM, ["deb [ arch=amd64 trusted=yes ] http://[2001:db8::1]/debian bookworm main # near"]) == [
        "deb http://[2001:db8::1]/debian bookworm main"
    ]


def test_without_the_release_itself_the_maker_chooses() -> None:
    assert sources(BOOKWORM, ["deb http://mirror.example/security bookworm-security main"]) == []
    assert sources(Release("debian", "trixie"), [ONE_LINE, DEB822]) == []


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for mmdebstrap; caches and PATH are the test's own."""
    if rootfs.this_release() is None:
        pytest.skip("this machine is neither Debian nor Ubuntu")
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("L40S_CACHE", str(tmp_path / "cache"))
    return program


def script(maker: Path, text: str) -> None:
    maker.write_text(f"#!/bin/sh\n{text}\n")
    maker.chmod(0o755)


def test_a_failed_build_tells_why_and_leaves_nothing(maker: Path, tmp_path: Path) -> None:
    script(maker, "echo 'E: cannot reach the mirror' >&2; exit 1")
    said: list[str] = []
    with pytest.raises(NodeError, match="E: cannot reach the mirror"):
        rootfs.ensure(said.append)
    assert "half a minute" in said[0]
    assert rootfs.cached() is None
    assert not [path for path in (tmp_path / "cache/lab/rootfs").iterdir() if path.suffix != ".lock"]


def test_a_made_one_is_found_again(maker: Path) -> None:
    script(maker, 'for word; do case "$word" in */root) mkdir "$word" ;; esac; done')
    assert rootfs.cached() is None
    made = rootfs.ensure(lambda _: None)
    assert made == rootfs.cached()
    script(maker, "exit 1")
    assert rootfs.ensure(lambda _: None) == made
