"""docs/prediction.md is what the code says; UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.prediction_page import page

PAGE = Path(__file__).parents[3] / "docs" / "prediction.md"


def test_the_page_is_what_the_code_predicts() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page(), "utf-8")
    assert PAGE.read_text("utf-8") == page()
