"""The project's own source files, for the tests that read them: the product's and the lab's."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "src" / "orchestrator"
LAB = ROOT / "lab" / "src" / "l40s_lab"


def source_files() -> dict[str, Path]:
    """By their name below the package; the lab's stand below `lab/`."""
    found = {path.relative_to(PRODUCT).as_posix(): path for path in sorted(PRODUCT.rglob("*.py"))}
    return found | {f"lab/{path.relative_to(LAB).as_posix()}": path for path in sorted(LAB.rglob("*.py"))}
