"""README claims what docs/proven.yml has, and nothing more; UPDATE_GOLDEN=1 makes its table anew."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support import proven

from orchestrator.support.steps.certify import STEPS, StepVerdict, certificate, certified_step

ROOT = Path(__file__).parents[3]
PAGES = {"README.md": ("claim", "class", "result"), "README.zh.md": ("结论", "类别", "结果")}
TABLE = re.compile(r"(?<=<!-- made of docs/proven.yml -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
FIGURES = re.compile(r"\b\d[\d,.]*(?= (?:s|of|requests|ranks|tokens|tok|GB|MB|%|nodes|GPUs)\b)")
GIVEN = {"671", "4", "8", "32", "42", "154", "15", "110"}
"""The reference cluster's, the articles' and the table of sizes'."""


@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_made_of_the_file(page: str) -> None:
    path = ROOT / page
    text = path.read_text("utf-8")
    claims = proven.claims()
    if page != "README.md":  # translated by hand: its figures are the file's
        shown = TABLE.search(text)
        assert shown and shown[0].count("\n") == len(claims) + 1
        assert all(str((row["figures"] and row["date"]) or "") in shown[0] for row in claims.values())
        return
    wanted = proven.table(claims, PAGES[page])
    if os.environ.get("UPDATE_GOLDEN"):
        text = TABLE.sub(lambda _: wanted, text)
        path.write_text(text, "utf-8")
    assert TABLE.findall(text) == [wanted]


def test_every_row_says_what_was_run_and_where() -> None:
    for name, row in proven.claims().items():
        assert row.keys() == {"claim", "class", "date", "figures", "how"}, name
        assert row["class"] in proven.CLASSES
        assert isinstance(row["date"], datetime.date) == bool(row["figures"]) == bool(row["how"]), name
    order = [proven.CLASSES.index(row["class"]) for row in proven.claims().values()]
    assert order == sorted(order) and {*order} == {*range(len(proven.CLASSES))}


def test_readme_has_no_figure_that_the_file_lacks() -> None:
    text = TABLE.sub("", (ROOT / "README.md").read_text("utf-8"))
    told = GIVEN | {
        figure for row in proven.claims().values() for figure in re.findall(r"\d[\d,.]*", str(row["figures"]))
    }
    assert {*FIGURES.findall(text)} <= told
    assert not re.search(r"\b(?:proven|tested|measured|verified) (?:on|with|at|in)\b", text)


def test_a_run_writes_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "proven.yml"
    file.write_text(proven.FILE.read_text("utf-8"))
    monkeypatch.setattr(proven, "FILE", file)
    before, made = proven.claims(), {"how": "make rdma"}
    proven.record("rdma", "4 of 4 pairs", "make rdma")
    after = proven.claims()
    assert list(after) == list(before) and file.read_text().startswith("# What was run")
    assert after.pop("rdma") == {**before.pop("rdma"), "date": datetime.date.today(), "figures": "4 of 4 pairs", **made}
    assert after == before
    with pytest.raises(KeyError):
        proven.record("no such claim", "")


RESULTS: dict[str, dict[str, Any]] = {
    "up": {"seconds": 412.3},
    "bench": {"decode": [{"requests": count, "tok_s": 10.0 * count, "source": "client: all"} for count in (1, 128)]},
}


def certified(**about: Any) -> dict[str, Any]:
    """As `certify` writes it on the reference cluster."""
    usual = {
        "at": "2026-12-01T10:00:00Z",
        "model": "DeepSeek-V3-0324-Block64x64",
        "stand_in": False,
        "transport": "rdma",
        "hardware": {"nodes": 4, "gpus": {"NVIDIA L40S": 32}},
    }
    return certificate(
        usual | about, [certified_step(name, StepVerdict.OK, 1.0, result=RESULTS.get(name, {})) for name in STEPS]
    )


def test_a_certificate_of_the_reference_cluster_is_taken_in_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "proven.yml"
    file.write_text(before := proven.FILE.read_text("utf-8"))
    monkeypatch.setattr(proven, "FILE", file)
    faster = certified()
    faster["steps"][4]["result"] = {"decode": []}
    wrong = {
        "changed": faster,
        "ended": {**certified(), "complete": False},
        "real": certified(stand_in=None),
        "RDMA": certified(transport="tcp"),
        "others": certified(hardware={"nodes": 4, "gpus": {"NVIDIA L20": 32}}),
        "671B": certified(model="GLM-4.6-FP8"),
    }
    for words, document in wrong.items():
        with pytest.raises(ValueError, match=words):
            proven.take(document)
        assert file.read_text("utf-8") == before
    proven.take(document := certified())
    row = proven.claims()["l40s"]
    assert row["date"] == datetime.date(2026, 12, 1) and row["how"].endswith(document["digest"][:12])
    assert row["figures"] == "DeepSeek-V3-0324-Block64x64 ready in 412 s, 10.0, 1280.0 tokens/s at 1, 128"
