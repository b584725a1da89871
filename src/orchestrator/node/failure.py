"""A failure on the node, as the controller shows it to its operator."""

from __future__ import annotations


class Failure(Exception):
    """Something that the node found and that stops its work.

    kind:  a word for programs, for example port-taken, gpu-busy, no-model, bad-request
    what:  what was found, and what is wanted
    where: file, port or device on this node; the controller puts the node's name before it
    fix:   what to do about it, '' if unknown
    """

    def __init__(self, kind: str, what: str, where: str, fix: str = "") -> None:
        super().__init__(what)
        self.kind, self.what, self.where, self.fix = kind, what, where, fix

    def as_json(self) -> dict[str, str]:
        """The `error` object of an answer."""
        return {"kind": self.kind, "what": self.what, "where": self.where, "fix": self.fix}
