"""Kinds of files with the real engine (tests/support/turns.py)."""

from __future__ import annotations

import pytest

WITH_ITS_TORCH = pytest.mark.turns(of="the engine's torch and kernels on emulated nodes", play=2)
"""The network's test by Gloo; kernels that are checked, and tuned. In each run with stand-ins: tests/unit/nettest,
tests/unit/tuning."""
SAME_AS_THE_ENGINES = pytest.mark.turns(of="the engine's own code says what ours says", play=2)
"""What we have copied of the engine, against its own code: degrees, memory, tuned names, flags, the loader, the
benchmark's client. Of these files a run plays two: each takes ten seconds of a processor for the engine's imports."""
