"""`python -m tests.room` writes the page."""

import sys

from tests.room import starters, writers

if __name__ == "__main__":
    writers.PAGE.write_text(writers.page() + starters.section())
    sys.stdout.write(f"{writers.PAGE}\n")
