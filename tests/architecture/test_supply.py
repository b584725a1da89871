"""What comes in from outside is pinned, dated and looked through; no secret is in the repository."""

from __future__ import annotations

import datetime
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
assert _spec and _spec.loader
audit = sys.modules["audit"] = importlib.util.module_from_spec(_spec)  # dataclasses look their module up
_spec.loader.exec_module(audit)

TODAY = datetime.date(2026, 11, 28)
LOOKS_REAL = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{24,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abprs]-[\w-]{20,}|AKIA[0-9A-Z]{16}|(?:nvapi|pypi|xapp|dckr_pat|dop_v1|npm|[sr]k_live)[_-][\w-]{24,}"
    r"|AIza[\w-]{30,}|AGE-SECRET-KEY-1\w{20,}|eyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]{16,}"
    r"|hooks\.slack\.com/services/T\w{8,}/B\w{8,}/\w{20,}|(?:https?|ssh|ftp)://[\w.-]+:[^\s@/{}$<'\"]{8,}@[\w.-]+\.(?:com|net|io|cn)\b)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----\s*\n[A-Za-z0-9+/=\n]{64,}"
)
"""Tokens as their vendors make them, in full length, addresses with a password, and keys with a body."""
IMAGE = re.compile(r"(?m)^\s*(?:-\s+)?(?:image|container):\s*[\"']?([\w./:@-]+)|^FROM\s+([^\s$]+)")
ACTION = re.compile(r"(?m)^\s*(?:-\s+)?uses:\s*([^\s#]+)")


def tracked() -> list[Path]:
    """Files of the repository, those too that are new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    if not files:
        pytest.skip("this is no repository")
    return files


def secrets_in(text: str) -> list[str]:
    return [match.group() for match in LOOKS_REAL.finditer(text)]


def test_no_file_holds_a_secret() -> None:
    texts = {file: file.read_bytes().decode("utf-8", "replace") for file in tracked()}
    assert not {
        str(file.relative_to(ROOT)): where[0][:12] for file, text in texts.items() if (where := secrets_in(text))
    }


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "aB3dE5gH7j" * 3 + "KLMN", "token: ghp_" + "aB3dE5gH7j" * 4, "sk-proj-" + "aB3dE5gH7j" * 3,
        "AKIA" + "ABCD1234" * 2, "https://anna:" + "correct-horse@hub.example.com/x",
        "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + "b3Blb" * 20,
        "https://hooks.slack.com/services/T" + "12345678/B12345678/" + "aB3dE5gH7j" * 2,
    ],
)  # fmt: skip
def test_a_secret_would_be_found(text: str) -> None:
    assert secrets_in(f"x = 1\n{text}\n")


def loose(text: str) -> list[str]:
    """Actions and images that another hand can change: without a digest."""
    actions = [name for name in ACTION.findall(text) if not name.startswith("./")]
    images = [first or second for first, second in IMAGE.findall(text)]
    return [name for name in actions if not re.search(r"@[0-9a-f]{40}$", name)] + [
        name for name in images if "@sha256:" not in name and not name.startswith("sha256:")
    ]


def test_actions_and_images_are_pinned_by_digest() -> None:
    """An image that a digest replaces before it is built is an argument, and its script says which one it was."""
    files = [file for file in tracked() if ".github/workflows" in str(file) or "Containerfile" in file.name]
    files += [file for file in tracked() if file.suffix in (".yml", ".yaml") and "inventory/" in str(file)]
    assert not {str(file.relative_to(ROOT)): names for file in files if (names := loose(file.read_text()))}


def test_what_is_not_pinned_is_found() -> None:
    good = f"- uses: actions/checkout@{'a' * 40} # v4\n  image: x/y@sha256:{'0' * 64}\n- uses: ./mine\n"
    assert loose(good) == []
    assert loose("- uses: actions/checkout@v4\n  image: x/y:latest\nFROM python:3.11\n") == [
        "actions/checkout@v4", "x/y:latest", "python:3.11"
    ]  # fmt: skip


def test_exceptions_have_a_reason_and_a_date_that_is_not_over(tmp_path: Path) -> None:
    assert all(entry.until >= datetime.date.today() for entry in audit.accepted())
    file = tmp_path / "audit.yml"
    for odd in ("why: '', until: 2026-12-01", "why: x, until: soon", "why: x, until: 2099-01-01"):
        file.write_text(f"- {{id: A, package: b, {odd}}}\n")
        with pytest.raises(ValueError, match="A: "):
            audit.accepted(file)


REPORT = {
    "dependencies": [
        {
            "name": "jinja2", "version": "3.1.2",
            "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3.1.3"]}],
        },
        {"name": "rich", "version": "13.7", "vulns": []},
        {"name": "ours", "skip_reason": "Dependency not found on PyPI"},
    ]
}  # fmt: skip


@pytest.mark.parametrize(("until", "left"), [("2026-12-31", 0), ("2026-11-28", 0), ("2026-11-27", 1)])
def test_a_finding_is_accepted_until_its_date(until: str, left: int) -> None:
    known, found = audit.read(REPORT)
    entry = audit.Accepted(id="CVE-1", package="Jinja2", why="x", until=datetime.date.fromisoformat(until))
    assert (known, len(found)) == (2, 1)
    assert len(audit.unaccepted(found, [entry], TODAY)) == left
    assert "jinja2 3.1.2: PYSEC-1 CVE-1, fixed in 3.1.3" in str(found[0])


@pytest.mark.parametrize("answer", ["No module named pip_audit", {"dependencies": [{"name": "a", "skip_reason": "x"}]}])
def test_where_nothing_can_be_known_it_says_so(
    answer: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index without vulnerability data answers for every package that it is not found: that is no clean bill."""
    monkeypatch.setattr(audit, "ask", lambda _: answer)
    assert audit.main([]) == 0
    assert audit.main(["--must"]) == 1
    assert "the product: not audited: " in capsys.readouterr().out


def test_what_is_installed_and_every_lock_is_audited() -> None:
    pins = audit.pins()
    assert {"the product", *(lock.name for lock in (ROOT / "inventory/stacks").glob("*.lock"))} == pins.keys()
    assert "paramiko==" in pins["the product"] and "l40s" not in pins["the product"]
    assert all(re.fullmatch(r"(?:[\w.-]+==[\w.!]+\n)+", text) for text in pins.values())
    assert audit.pinned("torch==2.9.0+cu128 \\\n    --hash=sha256:00\n") == "torch==2.9.0\n"
