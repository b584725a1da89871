"""Errors that a user can cause or must act on. Each states what was found, where, and the fix."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """One meaning a number, whatever the command."""

    DONE = 0
    DEFECT = 1
    INPUT = 2
    FINDINGS = 3
    """`doctor`, `up`: findings; a node refused or failed; `status`: a gang is degraded."""
    UNREACHABLE = 4
    GANG_FAILED = 5
    LOCK_HELD = 6
    DIFFERS = 7
    UNWRITTEN = 8
    """The answer could not be written: a full disk, a closed stdout."""
    INTERRUPTED = 130
    """By Ctrl-C, as a shell tells it (128 and the signal's number)."""


class DeployError(Exception):
    """A failure with a sentence for the operator; `cli` prints it and exits with `exit_code`.

    what:  what was found, and what is wanted
    where: the file with the path inside it, or the node
    fix:   what to do about it, a command where one exists
    kind:  of a node's: a word for programs, for example port-taken, gpu-busy, no-model, bad-request

    On a node `where` is a file, port or device of it; the controller puts the node's name before that.
    """

    exit_code: int = Exit.DEFECT

    def __init__(self, what: str, *, where: str, fix: str, kind: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        self.kind = kind

    def at(self, where: str) -> DeployError:
        """The same failure at another place, or at several."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.where = where
        return other

    def as_json(self) -> dict[str, str]:
        """As every JSON document has an error."""
        return {"what": self.what, "where": self.where, "fix": self.fix}

    def as_told(self) -> dict[str, str]:
        """As a node tells its controller."""
        return {"kind": self.kind, **self.as_json()}

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.fix})"


class Detached(KeyboardInterrupt):
    """The terminal is gone, or SIGTERM arrived: like Ctrl-C, but nobody reads the output."""


class Undone(KeyboardInterrupt):
    """As Ctrl-C, before any rank of some gangs was started: nothing of them is left. goes_on: other gangs of the same
    command rise by themselves"""

    def __init__(self, gangs: tuple[str, ...], *, goes_on: bool) -> None:
        super().__init__()
        self.gangs, self.goes_on = gangs, goes_on


class InputError(DeployError):
    """An inventory, profile, flag or command line that cannot be used."""

    exit_code = Exit.INPUT


class StagedByNewer(DeployError):
    """What a gang's nodes hold was staged by a release whose protocol this one does not know."""

    exit_code = Exit.INPUT


class FindingsError(DeployError):
    """A finding of severity stop: starting would fail or give wrong results."""

    exit_code = Exit.FINDINGS


class Unreachable(DeployError):
    """A node, or the path to it, does not answer within its deadline."""

    exit_code = Exit.UNREACHABLE


class HostKeyError(Unreachable):
    """A node's host key is unknown or is not the one we know."""


class NodeError(DeployError):
    """A node answered, and what it answered cannot be used (old python3, sudo refused, no directory)."""

    exit_code = Exit.FINDINGS


class Disturbed(NodeError):
    """Others' requests ran during a measurement: it says nothing of what was measured."""


class RunsElsewhere(NodeError):
    """A gang runs on a node, with its state where this inventory does not look: nothing is known of it here."""


class WithoutFiles(NodeError):
    """An agent lives on a node, and the files that tell of it are gone: nothing is known of it but that it runs."""


class GangFailed(DeployError):
    """A gang did not reach the state that was asked for; nothing that we started is left running."""

    exit_code = Exit.GANG_FAILED


class LockHeld(DeployError):
    """Somebody else works on this gang."""

    exit_code = Exit.LOCK_HELD


class VerificationDiffers(DeployError):
    """Two things that had to be equal are not."""

    exit_code = Exit.DIFFERS


class OutputLost(DeployError):
    """The answer did not arrive where stdout goes to."""

    exit_code = Exit.UNWRITTEN
