"""A run that outlives the command that began it, for machines that end a command after some minutes.

`begin` starts it in a session of its own; `wait` shows what it has written meanwhile and brings its figures back.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

_LOG, _ENDED = "log", "ended"
_LOOK_EACH_S = 0.5


def begin(words: Sequence[str], home: Path) -> None:
    """`python -m tests.slice WORDS`, with log and exit code in this folder. Ends what an earlier run left there."""
    home.mkdir(parents=True, exist_ok=True)
    (home / _ENDED).unlink(missing_ok=True)
    script = 'cd "$1"; shift; "$@"; echo $? >"$0/ended.new"; mv "$0/ended.new" "$0/ended"'
    command = ["sh", "-c", script, str(home), str(Path.cwd()), sys.executable, "-u", "-m", "tests.slice", *words]
    with (home / _LOG).open("w") as log:
        subprocess.run(["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)


def wait(home: Path, seconds: float, bring: Path, figures: Path, kept: Path) -> int | None:
    """Until it has ended, or for so long; what it writes is printed. Then its figures, its log and what it has kept are
    in `bring`. Returns its exit code, None where it still runs."""
    end, place = time.monotonic() + seconds, 0
    while True:
        ended = exit_code(home)
        place = _show(home / _LOG, place)
        if ended is not None or time.monotonic() > end:
            break
        time.sleep(_LOOK_EACH_S)
    bring.mkdir(parents=True, exist_ok=True)
    for file in (figures, home / _LOG):
        if file.exists():
            shutil.copy(file, bring / file.name)
    with tarfile.open(bring / "kept.tar.xz", "w:xz") as archive:
        if kept.exists():
            archive.add(kept, "kept")
    return ended


def exit_code(home: Path) -> int | None:
    """None while it runs."""
    file = home / _ENDED
    return int(file.read_text()) if file.exists() else None


def _show(log: Path, place: int) -> int:
    if not log.exists():
        return place
    with log.open("rb") as file:
        file.seek(place)
        new = file.read()
    sys.stdout.write(new.decode("utf-8", "replace"))
    sys.stdout.flush()
    return place + len(new)
