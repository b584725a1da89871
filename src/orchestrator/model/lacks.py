"""What this machine lacks or bars, in words: files that can't be used; threads, descriptors and memory that run out.

An operator's machine is theirs: such an error is no defect of ours, wherever in the program it comes up.
"""

from __future__ import annotations

import shlex
import traceback
from dataclasses import dataclass

from orchestrator.protocol.errors import InputError
from orchestrator.protocol.lacks import NO_THREAD, OF, Lack

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class KnownLack:
    """{path}, {folder}: of the file in question, quoted; {place}: of our code. fix: a command where one exists"""

    what: str
    fix: str


KNOWN = {
    Lack.FILE: KnownLack("can't be used: {words}", "see what it is: ls -ld {path}{place}"),
    Lack.SPACE: KnownLack("can't be written: {words}", "free space or quota: df -h {folder}; df -i {folder}"),
    Lack.RIGHTS: KnownLack(
        "can't be used: {words}",
        "see whose it is with `ls -ld {path}`, and change its owner or its mode, or name another",
    ),
    Lack.DESCRIPTORS: KnownLack(
        "no file can be opened: {words}",
        "raise the limit (ulimit -n 4096), or end programs that hold many files open",
    ),
    Lack.PROCESSES: KnownLack(
        "no more threads or processes can be started",
        "raise the limit (ulimit -u; systemd's TasksMax), or end programs",
    ),
    Lack.MEMORY: KnownLack("the memory is used up", "end programs that use much of it: ps aux --sort=-rss | head"),
    Lack.READ_ONLY: KnownLack("can't be written: {words}", "name a place that can be written, or mount it read-write"),
}
_NO_FILE_NEEDED = (Lack.DESCRIPTORS, Lack.PROCESSES, Lack.MEMORY, Lack.SPACE)
_OURS = __file__.rpartition("/")[0].rpartition("/")[0]


def lack_of(error: BaseException) -> InputError | None:
    """The error in words; None for one that says nothing about this machine, a file of ours included.

    A file that is missing or of another kind may be a defect of ours all the same: the words name the line of code.
    """
    if isinstance(error, MemoryError):
        return InputError(KNOWN[Lack.MEMORY].what, where=HERE, fix=KNOWN[Lack.MEMORY].fix)
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        return InputError(KNOWN[Lack.PROCESSES].what, where=HERE, fix=KNOWN[Lack.PROCESSES].fix)
    if isinstance(error, FileNotFoundError) and "usable temporary directory" in str(error):
        return InputError(f"{error.strerror}", where=HERE, fix="free space there, or name another place in $TMPDIR")
    return _file_lack(error) if isinstance(error, OSError) else None


def _file_lack(error: OSError) -> InputError | None:
    path, lack = "" if error.filename is None else _text(error.filename), OF.get(error.errno or 0)
    if lack is None or (not path and lack not in _NO_FILE_NEEDED) or path.startswith(f"{_OURS}/"):
        return None
    words = error.strerror or str(error)
    about = {"words": words, "path": shlex.quote(path), "place": _place(error)}
    folder = shlex.quote(path.rpartition("/")[0] or ".")
    known = KNOWN[lack]
    return InputError(known.what.format(words=words), where=path or HERE, fix=known.fix.format(folder=folder, **about))


_USED_UP = (Lack.SPACE, Lack.DESCRIPTORS, Lack.PROCESSES, Lack.MEMORY)


def fix_of(error: OSError, fix: str) -> str:
    """What shows what is used up, where something is; else the given one: another file helps against all else."""
    lack = _file_lack(error) if OF.get(error.errno or 0) in _USED_UP else None
    return fix if lack is None else lack.fix


def _place(error: BaseException) -> str:
    """Of our code where it was raised, for what may be our defect."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if frame.f_code.co_filename.startswith(f"{_OURS}/")]
    if not ours:
        return ""
    name = ours[-1].f_code.co_filename.removeprefix(f"{_OURS}/")
    return f". If no file of yours should be there, report this: {name}:{ours[-1].f_lineno}"


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
