from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l40s_lab.node.tree import FileTree, split_common, write, write_layer

CONTENTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([b"1", b"2", b"3"]))


@given(st.lists(CONTENTS, min_size=1, max_size=5))
def test_common_and_own_together_are_the_whole(contents: list[dict[str, bytes]]) -> None:
    trees = [FileTree(files=dict(files), links=dict.fromkeys(files, "x")) for files in contents]
    common, own = split_common(trees)
    for tree, rest in zip(trees, own, strict=True):
        assert {**common.files, **rest.files} == tree.files
        assert {**common.links, **rest.links} == tree.links
        assert not common.files.keys() & rest.files.keys()


def test_files_links_and_modes_are_written_as_described(tmp_path: Path) -> None:
    tree = FileTree()
    tree.put("/devices/card/vendor", "0x15b3")
    tree.put("/devices/card/again", "0x15b3")
    tree.put("/bin/tool", b"#!/bin/sh\n", 0o755)
    tree.link("/class/net/eth0", "/devices/card")
    tree.folders.add("/empty")
    write(tree, tmp_path)
    assert (tmp_path / "class/net/eth0/vendor").read_text() == "0x15b3\n"
    assert (tmp_path / "class/net/eth0").readlink() == Path("../../devices/card")
    assert (tmp_path / "bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "devices/card/again").samefile(tmp_path / "devices/card/vendor")
    assert (tmp_path / "empty").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes need root")
def test_a_layer_carries_what_overlayfs_needs(tmp_path: Path) -> None:
    tree = FileTree(opaque={"/bus"}, borrowed={"/net/a": "/virtual/a"}, einval={"/gids/4", "/gids/5"}, hidden={"/x/y"})
    try:
        write_layer(tree, tmp_path, einval_from="/lo/speed")
    except OSError as failure:
        pytest.skip(f"no trusted attributes here: {failure}")
    assert os.getxattr(tmp_path / "bus", "trusted.overlay.opaque") == b"y"
    assert os.getxattr(tmp_path / "net/a", "trusted.overlay.redirect") == b"/virtual/a"
    assert os.getxattr(tmp_path / "gids/5", "trusted.overlay.redirect") == b"/lo/speed"
    assert (tmp_path / "x/y").is_char_device()
