"""Which paths are allowed in another machine's answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.files import LONGEST, plain_path, refuse_clashes, refuse_links
from orchestrator.protocol.errors import DeployError

ODD = [
    "", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "nul\0", "new\nline", "\udc80",
    "a\x1b[2J", ".hidden", "a/.b/c", "x" * (LONGEST + 1), None, 7, ["a"], b"a",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_path_is_refused_in_words(odd: object) -> None:
    with pytest.raises(ValueError, match="path"):
        plain_path(odd)


@pytest.mark.parametrize("good", ["model-1.safetensors", "sub dir/x [1]*.json", "a/b/c", "ü", "a..b", "..a"[2:]])
def test_a_plain_path_stays_as_it_is(good: str) -> None:
    assert plain_path(good) == good


def test_a_hubs_cache_may_have_hidden_folders_where_that_is_said() -> None:
    assert plain_path(".cache/blobs/1", hidden=True) == ".cache/blobs/1"


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "b/c", "\0"]), max_size=5).map("/".join))
def test_whatever_passes_stays_below_the_folder(text: str) -> None:
    try:
        path = plain_path(text, hidden=True)
    except ValueError:
        return
    root = Path("/root/of/it")
    assert Path(root, path).resolve().is_relative_to(root)
    assert not path.startswith("/")


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "a/b"], ["a/b/c", "a/b"]])
def test_paths_that_clash_are_refused(paths: list[str]) -> None:
    with pytest.raises(ValueError, match="path"):
        refuse_clashes(paths)


def test_a_link_on_the_way_is_refused_and_a_last_part_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to("/etc")
    (tmp_path / "root" / "file").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to(tmp_path / "root")
    refuse_links(tmp_path / "root", "sub/new/file")
    refuse_links(tmp_path / "root", "file")
    for root, path in (("root", "out/cron.d/x"), ("linked", "x")):
        with pytest.raises(DeployError, match="is a symbolic link") as told:
            refuse_links(tmp_path / root, path)
        assert told.value.kind == "outside"
