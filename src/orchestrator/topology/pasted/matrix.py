"""`nvidia-smi topo -m`: its rows may be wrapped, cut off, in a Markdown table or amid a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.topology.pasted.facts import Line, PastedFacts
from orchestrator.topology.stated import WORD

FORM = "nvidia-smi topo -m"
_COLUMNS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_HEAD = re.compile(r"[A-Za-z][\w.@-]{0,31}")
_GPU = re.compile(r"GPU[0-9]{1,3}")
_CELL = re.compile(r"[0-9][0-9,-]{0,255}|N/A|-")
_LEGEND = re.compile(r"[\s|]{0,16}(NIC[0-9]{1,3})\s{0,8}:\s{1,8}([A-Za-z][\w.@-]{0,63})[\s|]{0,16}")
_MOST = 256


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every matrix of one node's lines."""
    place = 0
    while place < len(lines):
        matrix = _Matrix(lines, place)
        if matrix.is_one:
            yield matrix.facts()
        place = max(matrix.end, place + 1)


class _Matrix:
    """The matrix that begins at a line, if one does; rows stay empty otherwise."""

    def __init__(self, lines: Sequence[Line], start: int) -> None:
        self.lines = lines
        self.start = self.end = start
        self.wrapped = False
        self.heads: list[str] = []
        self.columns: list[str] = []
        self.rows: dict[str, list[str]] = {}
        tokens = _tokens(lines[start].text)
        if tokens and _GPU.fullmatch(tokens[0]) and all(map(_may_be_a_title, tokens)):
            self._header()
            self._rows()

    def _header(self) -> None:
        """Up to the first row; a terminal may have wrapped it."""
        found: list[str] = []
        while self.end < len(self.lines) and len(found) < _MOST:
            tokens = _tokens(self.lines[self.end].text)
            if found and (tokens[:1] == found[:1] or not all(map(_may_be_a_title, tokens))):
                break
            self.wrapped |= bool(found and tokens)
            found += tokens
            self.end += 1
        text = " ".join(found)
        self.columns = _COLUMNS.findall(text)
        heads = (one for one in _COLUMNS.sub(" ", text).split() if one not in _WORDS)
        self.heads = [one for one in dict.fromkeys(heads) if _HEAD.fullmatch(one)]

    def _rows(self) -> None:
        """Rows until something else comes; what a terminal wrapped belongs to the row above."""
        row: list[str] = []
        while self.end < len(self.lines):
            tokens = _tokens(self.lines[self.end].text)
            if tokens and tokens[0] in self.heads and (len(tokens) == 1 or WORD.fullmatch(tokens[1])):
                if tokens[0] in self.rows:
                    return
                row = self.rows[tokens[0]] = []
                tokens = tokens[1:]
            elif tokens and not (row and all(WORD.fullmatch(one) or _CELL.fullmatch(one) for one in tokens)):
                return
            row += tokens
            self.end += 1

    @property
    def is_one(self) -> bool:
        """Whether its rows hold path types, as `topo -p2p`'s do not, and no more of them than its heading names."""
        cells = [cell for row in self.rows.values() for cell in row[: len(self.heads)]]
        beyond = [row[len(self.heads)] for row in self.rows.values() if len(row) > len(self.heads)]
        named = not (self.wrapped and self.heads != list(self.rows)) and not any(
            WORD.fullmatch(cell) and cell != "N/A" for cell in beyond
        )
        return bool(cells) and named and all(map(WORD.fullmatch, cells))

    def facts(self) -> PastedFacts:
        rows = []
        for head, cells in self.rows.items():
            words = [one for one in cells[: len(self.heads)] if WORD.fullmatch(one)]
            rest = cells[len(self.heads) :][: len(self.columns)] if len(words) == len(self.heads) else []
            rows.append((head, words, rest))
        numa = {head: dict(zip(self.columns, rest, strict=False)).get("NUMA Affinity", "") for head, _, rest in rows}
        nodes = {head: int(node) for head, node in numa.items() if node.isdecimal()}
        first = self.lines[self.start]
        return PastedFacts(
            FORM,
            first.number,
            first.node,
            gpus=[
                {"index": int(gpu[3:]), "numa_node": nodes.get(gpu, -1)} for gpu in filter(_GPU.fullmatch, self.heads)
            ],
            stated={"heads": self.heads, "names": self._legend(), "columns": self.columns, "rows": rows},
        )

    def _legend(self) -> dict[str, str]:
        """Below the matrix, before another one begins."""
        names: dict[str, str] = {}
        for line in self.lines[self.end : self.end + _MOST]:
            if match := _LEGEND.fullmatch(line.text):
                names.setdefault(match[1], match[2])
            elif _GPU.match(line.text.strip(" |\t")):
                break
        return {head: name for head, name in names.items() if head in self.heads}


def _may_be_a_title(token: str) -> bool:
    return token in _WORDS or bool(_HEAD.fullmatch(token) and not WORD.fullmatch(token))


_WORDS = ("CPU", "NUMA", "Affinity", "GPU", "ID")


def _tokens(text: str) -> list[str]:
    """Words without what Markdown puts around them; none of a line that only underlines the one above."""
    return [one for one in text.translate(_MARKS).split() if one.strip("-=:")]


_MARKS = str.maketrans("|*`", "   ")
