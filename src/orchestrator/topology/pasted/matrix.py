"""`nvidia-smi topo -m`: its rows may be wrapped, cut off, in a Markdown table or amid a log."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.topology.pasted.facts import Line, PastedFacts
from orchestrator.topology.pci import number
from orchestrator.topology.stated import WORD

FORM = "nvidia-smi topo -m"
_COLUMNS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_HEAD = re.compile(r"[A-Za-z][\w.@-]{0,31}")
_GPU = re.compile(r"GPU[0-9]{1,3}")
_CELL = re.compile(r"[0-9][0-9,-]{0,255}|N/A|-")
_LEGEND = re.compile(r"[\s|]{0,16}(NIC[0-9]{1,3})\s{0,8}:\s{1,8}([A-Za-z][\w.@-]{0,63})[\s|]{0,16}")
_WORDS = ("CPU", "NUMA", "Affinity", "GPU", "ID")
_MARKS = str.maketrans("|*`", "   ")
_MOST = 256


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every matrix of one node's lines."""
    tokens = [_tokens(line.text) for line in lines]
    place = 0
    while place < len(lines):
        header = _header(tokens, place)
        text = " ".join(itertools.chain(*header))
        columns, names = _COLUMNS.findall(text), dict.fromkeys(_COLUMNS.sub(" ", text).split())
        heads = [one for one in names if _HEAD.fullmatch(one) and one not in _WORDS][:_MOST]
        rows, end = _rows(tokens, place + len(header), heads)
        wrapped = sum(map(bool, header)) > 1
        if _are_path_types(rows, len(heads)) and not (wrapped and heads != list(rows)):
            yield _facts(lines[place], heads, columns, rows, _legend(lines[end : end + _MOST], heads))
        place = max(end, place + 1)


def _header(tokens: Sequence[list[str]], start: int) -> list[list[str]]:
    """Its lines, [] where none begins here: up to the first row; a terminal may have wrapped it."""
    found: list[list[str]] = []
    if tokens[start] and _GPU.fullmatch(tokens[start][0]):
        for words in tokens[start : start + _MOST]:
            if (found and words[:1] == found[0][:1]) or not all(map(_may_be_a_title, words)):
                break
            found.append(words)
    return found


def _rows(tokens: Sequence[list[str]], start: int, heads: Sequence[str]) -> tuple[dict[str, list[str]], int]:
    """(cells by head, where something else comes); what a terminal wrapped belongs to the row above."""
    rows: dict[str, list[str]] = {}
    row: list[str] = []
    for place in range(start, len(tokens)):
        words = tokens[place]
        if words and words[0] in heads and (len(words) == 1 or WORD.fullmatch(words[1])):
            if words[0] in rows:
                return rows, place
            row = rows[words[0]] = words[1:]
        elif words and not (row and all(WORD.fullmatch(one) or _CELL.fullmatch(one) for one in words)):
            return rows, place
        else:
            row += words
    return rows, len(tokens)


def _are_path_types(rows: Mapping[str, list[str]], width: int) -> bool:
    """Whether rows hold path types, as `topo -p2p`'s do not, and no more of them than the heading names."""
    cells = [cell for row in rows.values() for cell in row[:width]]
    beyond = [cell for row in rows.values() for cell in row[width : width + 1] if cell != "N/A"]
    return bool(cells) and all(map(WORD.fullmatch, cells)) and not any(map(WORD.fullmatch, beyond))


def _facts(
    first: Line, heads: list[str], columns: list[str], rows: Mapping[str, list[str]], names: Mapping[str, str]
) -> PastedFacts:
    width = len(heads)
    cells = [(head, row[:width], row[width:][: len(columns)]) for head, row in rows.items()]
    numa = {head: dict(zip(columns, rest, strict=False)).get("NUMA Affinity", "") for head, _, rest in cells}
    gpus = filter(_GPU.fullmatch, heads)
    return PastedFacts(
        FORM,
        first.number,
        first.node,
        gpus=[{"index": int(gpu[3:]), "numa_node": number(numa.get(gpu, ""), otherwise=-1)} for gpu in gpus],
        also={"stated": {"heads": heads, "names": names, "columns": columns, "rows": cells}},
    )


def _legend(below: Sequence[Line], heads: Sequence[str]) -> dict[str, str]:
    """What it calls NICs, before another matrix begins."""
    names: dict[str, str] = {}
    for line in below:
        if match := _LEGEND.fullmatch(line.text):
            names.setdefault(match[1], match[2])
        elif _GPU.match(line.text.strip(" |\t")):
            break
    return {head: name for head, name in names.items() if head in heads}


def _may_be_a_title(token: str) -> bool:
    return token in _WORDS or bool(_HEAD.fullmatch(token) and not WORD.fullmatch(token))


def _tokens(text: str) -> list[str]:
    """Words without what Markdown puts around them; none of a line that only underlines the one above."""
    return [one for one in text.translate(_MARKS).split() if one.strip("-=:")]
