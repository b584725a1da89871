"""What one section of a pasted text tells, in the form in which the probe writes it, and its lines."""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.model.topology import Area

MOST_LINES = 100_000
LONGEST = 2_000
"""Characters of a line; the longest row that nvidia-smi prints has some 300."""
_ESCAPES = re.compile(
    r"(?:\x1b|\u241b|\^\[)(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][0-9A-B])"
    r"|</?(?:pre|code|br|table|thead|tbody|tr|td|th) ?/?>"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,3}){0,4}m"  # what is left of a colour where the escape itself was dropped
)
_CELLS = re.compile(r"</t[dh]>\s{0,16}<t[dh](?: [^<>]{0,64})?>")
"""Between two cells of a page's table."""
_QUOTED = re.compile(r"\s{0,8}(?:>\s?){1,8}")
_SPACES = str.maketrans({"\xa0": " ", "\u3000": " ", "\ufeff": "", "\u200b": "", "\uff5c": "|"})
PROMPT = re.compile(
    r"(?:\([\w.-]{1,32}\) )?\[?[A-Za-z_][\w.-]{0,31}@(?P<host>[A-Za-z0-9][\w.-]{0,63})"
    r"(?:[: ][^$#%]{0,128})?[$#%](?:\s|$)"
)
_SSH = re.compile(r"\s{0,4}ssh (?:-\w+(?: \S{1,64})? ){0,4}(?:[\w-]{1,32}@)?(?P<host>[A-Za-z][\w.-]{0,63}) \S")
_HEADING = re.compile(
    r"[#*=_\s-]{0,12}(?P<host>(?:node|host|server|machine)[ _#-]{0,2}(?:\w{0,16}\d[\w.-]{0,32}|[A-Za-z]))"
    r"(?: \([^)]{0,64}\)| [\w -]{0,32}(?:topo|output|smi)[\w -]{0,32})?[\s:*=_#-]{0,12}",
    re.IGNORECASE,
)
_ANSIBLE = re.compile(
    r"(?:(?:ok|changed): \[)?(?P<host>[A-Za-z0-9][\w.-]{0,63})(?: \| [A-Z]{4,16} \| rc=\d{1,3} >>|\] => \{)"
)
_TITLE = re.compile(r"[#=*-]{2,32} {0,4}(?P<host>(?=\S{0,63}\d)[A-Za-z0-9][\w.-]{0,63}) {0,4}[#=*-]{2,32}")
_PREFIXED = re.compile(r"(?!kernel:)(?P<host>[A-Za-z0-9][\w.-]{0,63}):(?: |(?=\t)|$)")
_NUMBERED = re.compile(
    r"(?P<host>(?P<log>[\w./-]{1,128}\.(?:log|txt|out|err))|(?=[\w.-]{0,63}\d)[A-Za-z0-9][\w.-]{0,63}):"
    r"(?(log)(?:\d{1,9}:)?|(?: |(?=\t)|$))"
)
"""A log's name as grep puts it before lines; a node's, which usually has a number, unlike an exception's or a driver's
(NVRM)."""
_PREFIXED_PART = 0.9
_ESCAPE_MARKS = ("\x1b", "\u241b", "^[[")
_NARROWEST, _WIDEST = 60, 400
_FEWEST_WRAPPED, _WRAPPED_PART = 3, 6
"""Lines that are as long as a terminal is wide: so many different ones at least, and one of so many."""
_OF_TABLES = ("|", "+", " |", "*", "=", "-")
_COLOUR_ENDS = "[0m"
"""Where a page dropped the escapes themselves, a colour's end is left of them."""
_REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\].{0,300}")
"""What Ray puts behind a line that other workers wrote too."""
_LINKED = re.compile(r"\[([^\]\s]{1,128})\]\(https?://[^)\s]{1,256}\)")
"""Names and addresses that a page made links of."""
_ENTITIES = ("&lt;", "&gt;", "&quot;", "&#39;", "&#x27;")
_LOOKED_AT = 512
"""Lines of a log, evenly, that tell whether each of them has a name before it."""
_PREFIX = re.compile(
    r"(?:\x1b\[[\d;]{0,16}m|<\d{1,3}>(?:1 )?"  # a colour; syslog's priority
    r"|\[pod/(?P<pod>[\w.-]{1,128})/[\w.-]{1,64}\] "  # kubectl logs --prefix
    r"|>{1,4} |(?P<service>[\w.@-]{1,64})(?:\x1b\[0?m)? {1,16}\|(?:\x1b\[0?m)? "  # quoting; docker compose, service
    r"|\[?\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,32}\]? (?:std(?:out|err) [FP] )?"  # docker, kubectl, CRI: timestamps
    r"(?:(?P<unit_of>[\w.-]{1,64}) [\w@./-]{1,64}(?:\[\d{1,9}\]: | \d{1,9} - - ))?"  # journalctl -o short-iso
    r"|[A-Z][a-z]{2} {1,2}(?:\d{1,2}|\d{4}-\d\d-\d\d) [\d:.]{8,15} (?:[A-Z]{3,4} )?"
    r"(?P<host>[\w.-]{1,128}) [\w@./-]{1,128}(?:\[\d{1,9}\])?: "  # journalctl
    r"|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?\[\d{1,4}(?:,\d{1,6})?\]<std(?:out|err)>: ?"  # mpirun
    r"|\[(?:rank|default)\d{1,6}\]: ?"  # torch, torchrun
    r"| {0,6}\d{1,5}: "  # srun --label
    r"|\([\w .=,-]{1,64}\bpid=\d{1,9}(?:, ip=(?P<ip>[\w.:]{1,64}))?\)(?:\x1b\[[\d;]{0,8}m)? "  # vLLM, ray
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]{8,15} \[?[\w/.:]{1,64}\] "  # vLLM's logger
    r"|\d{4}-\d\d-\d\d [\d:.,]{8,15} \| [A-Z]{4,8} {1,4}\| [\w.:/-]{1,64} \|(?: |$)"  # FastChat
    r"|\d{4}-\d\d-\d\d [\d:.,]{8,15}(?:\t| (?:(?:\||- [\w.]{1,64} - [A-Z]{4,8} -) )?)"  # Loki; Docker Desktop; others
    r"|\[\d{4}-\d\d-\d\d [\d:.,]{8,15}\] \[[A-Z]{4,8}\] "  # a parent's logging
    r"|[A-Z]{4,8} \d{4}-\d\d-\d\dT[\d:.]{8,20}Z \[resource\.[^\]]{1,128}\] "  # Google's
    r")"
)
_MOST_PREFIXES = 8
_JSON_TEXT = re.compile(r'\s{0,64}("(?:[^"\\]|\\.){0,2000}"),?')
"""An entry of ansible's stdout_lines."""
_SHORTEST_BLOCK = 3


@dataclass(eq=False)
class PastedFacts:
    """One section.

    form:  what it is, as it is called: nvidia-smi topo -m
    line:  where it begins; node: whose it is, '' where it does not say
    files, links, host: as in a Snapshot; gpus: as NVML's devices; driver: its version
    also: of what topology.stated reads; areas: what it tells all of
    """

    form: str
    line: int
    node: str = ""
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)
    driver: str = ""
    areas: set[Area] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Line:
    """text: without colours and quoting, tabs as they are; node: whose prompt, heading or prefix it follows"""

    number: int
    text: str
    node: str


def lines_of(text: str) -> list[Line]:
    """The lines of a text as a terminal had shown them, without what forums, shells and colours put around them."""
    whose = _without_a_log_s(textwrap.dedent("\n".join(_shown(text))).split("\n"))
    prefixed = _is_prefixed([line for _, line in whose])
    lines: list[Line] = []
    node = heading = ""
    called: dict[str, str] = {}
    for number, (who, line) in enumerate(whose):
        if match := _naming_a_node(line):
            name = re.sub(r"[^\w.-]", "-", _named(line, match))
            if match.re is PROMPT and heading and name not in called.values():
                called[heading] = name  # the machine of the heading, by its own name
            node, heading = name, name if match.re is _HEADING else ""
        named, words = _without_prefix(line, node) if prefixed else (node, line)
        lines.append(Line(number, words, who or named))
    return [replace(line, node=called.get(line.node, line.node)) for line in lines] if called else lines


def _named(line: str, match: re.Match[str]) -> str:
    """The node of a heading or prompt, or on which a prompt's command runs by ssh."""
    asked = _SSH.match(line.lstrip()[match.end() :]) if match.re is PROMPT else None
    return asked["host"] if asked else match["host"].strip()


def _naming_a_node(line: str) -> re.Match[str] | None:
    """A prompt, or a heading of one of the kinds: what follows is of the node that it names."""
    return PROMPT.match(line.lstrip()) or first_match((_HEADING, _ANSIBLE, _TITLE), line.strip())


def _without_prefix(line: str, node: str) -> tuple[str, str]:
    """The node in front of a line and its words; `node` where none stands there."""
    prefix = _PREFIXED.match(line)
    return (prefix["host"], line[prefix.end() :]) if prefix else (node, line)


def _shown(text: str) -> list[str]:
    text = _unpacked(text) if text.lstrip()[:1] in ("{", "[") and "\\n" in text else text
    text = _CELLS.sub("\t", text).replace("</tr>", "\n") if "</td>" in text else text
    plain = [_plain(raw) for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:MOST_LINES]]
    if all(line.startswith("|") for line in plain if line.strip()):  # a table, or quoting
        return [line[1:] for line in plain]
    return _without_numbers(plain)


def _unpacked(text: str) -> str:
    """The texts of several lines that a record in JSON holds; the text itself where it is none, or holds none."""
    held, texts = [_json(text)], list[str]()
    while held:
        entry = held.pop()
        if isinstance(entry, str) and "\n" in entry.strip():
            texts.append(entry)
        elif isinstance(entry, (dict, list)):
            held += [*(entry.values() if isinstance(entry, dict) else entry)][::-1]
    return "\n".join(texts) or text


_NUMBER = re.compile(r"\s{0,8}(?P<number>\d{1,5})(?:[:|.)]?[ \t]{1,2}|$)")
_FEWEST_NUMBERS = 4


def _without_numbers(lines: Sequence[str]) -> list[str]:
    """Without what `cat -n` and pages put before lines: one number more each."""
    matches = [_NUMBER.match(line) for line in lines if line.strip()]
    numbers = [int(match["number"]) for match in matches if match]
    if len(numbers) < max(_FEWEST_NUMBERS, len(matches)) or numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
        return [*lines]
    return [line[match.end() :] if (match := _NUMBER.match(line)) else line for line in lines]


def _without_a_log_s(lines: Sequence[str]) -> list[tuple[str, str]]:
    """(whose it is, '' where nothing says so; the line) without what a log puts before lines, where several in a row
    have it: it may be no prefix where each begins otherwise. Where a forum wrapped some of them, all stay as they are:
    those between would be taken for parts of what is above."""
    unprefixed: list[tuple[str, str]] = []
    logs, others = set[str](), set[str]()
    parsed = [(line, *_unprefixed(line)) for line in lines]
    for _, block in itertools.groupby(parsed, key=lambda row: row[0] == row[2] != ""):
        rows = list(block)
        names = [who for old, who, new in rows if old != new]
        fits = len(names) >= _SHORTEST_BLOCK * len(set(names))
        (logs if fits else others).update(names)
        if fits:
            unprefixed += [("" if who.isdecimal() else who, new) for _, who, new in rows]
        else:
            unprefixed += [("", old) for old, _, _ in rows]
    return [("", line) for line in lines] if logs & others else unprefixed


def _unprefixed(line: str) -> tuple[str, str]:
    """(whom a prefix names, or the number of a task that srun put there; the line without what is before it)."""
    if (match := _JSON_TEXT.fullmatch(line)) and (held := _json(match[1])) is not None:
        return "", str(held).rstrip()
    who, words = without_prefixes(f"{line} ")
    words = words.rstrip()
    label = line.removesuffix(words).strip(" :")
    return who or (label if label.isdecimal() else ""), words


def without_prefixes(line: str) -> tuple[str, str]:
    """(what a prefix calls the origin, '' for none; the line as the engine wrote it)."""
    who, words = _of_record(line) if line.startswith('{"') else ("", line.rstrip("\r\n"))
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(words)
        if match is None or not match.end():
            break
        who = who or next(filter(None, match.groups()), "")
        words = words[match.end() :]
    return who, words


def _of_record(line: str) -> tuple[str, str]:
    """(host, text) of a line of JSON: docker's json-file driver, journalctl -o json, collectors."""
    held = _json(line)
    record = held if isinstance(held, dict) else {}
    text = next((record[key] for key in ("log", "MESSAGE", "message", "msg") if isinstance(record.get(key), str)), line)
    return str(record.get("_HOSTNAME") or ""), text.rstrip("\r\n")


def _json(text: str) -> Any:
    """What it holds; None for what is no JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def first_match(patterns: Sequence[re.Pattern[str]], text: str) -> re.Match[str] | None:
    """By the first of the patterns that fits all of the text."""
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)


def _plain(raw: str) -> str:
    line = _ESCAPES.sub("", raw[:LONGEST]).translate(_SPACES).rstrip()
    line = line.removeprefix("`") if not line.startswith("``") else line
    return line[quoted.end() :] if (quoted := _QUOTED.match(line)) else line


def name_before(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What finds the node's name (`host`) that pdsh, grep or the like put before every line of a log; None where it did
    not."""
    some = lines[:: len(lines) // _LOOKED_AT + 1]
    return _NUMBERED if _is_prefixed(some, _NUMBERED) else None


def unwrapped(lines: list[str]) -> list[str]:
    """A log whose lines a terminal broke at its width: several different ones end exactly there, and none after."""
    width = max(map(len, lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return lines
    full = [line for line in lines if len(line) == width and not line.startswith(_OF_TABLES)]
    if len({re.sub(r"\d+", "0", line) for line in full}) < max(_FEWEST_WRAPPED, len(lines) // _WRAPPED_PART):
        return lines
    joined, open_ended = list[str](), False
    for line in lines:
        if open_ended:
            joined[-1] += line
        else:
            joined.append(line)
        open_ended = len(line) == width and not line.startswith(_OF_TABLES)
    return joined


def undressed(text: str) -> str:
    """A log without colours and Ray's count of a line, a page's entities (&lt;) as the characters that they are."""
    for mark in _ESCAPE_MARKS:
        if mark in text:
            text = "\n".join(_ESCAPES.sub("", line) if mark in line else line for line in text.split("\n"))
    if _COLOUR_ENDS in text:
        text = "\n".join(_ESCAPES.sub("", line) if "m" in line else line for line in text.split("\n"))
    if "](http" in text:
        text = _LINKED.sub(r"\1", text)
    if "x across cluster]" in text:
        text = _REPEATED.sub("", text)
    return html.unescape(text) if any(entity in text for entity in _ENTITIES) else text


def _is_prefixed(lines: Sequence[str], name: re.Pattern[str] = _PREFIXED) -> bool:
    """Whether pdsh, ansible or the like put the node's name before every line."""
    texts = [line for line in lines if line.strip()]
    names = [match["host"] for line in texts if (match := name.match(line))]
    return len(names) > 2 and len(names) >= _PREFIXED_PART * len(texts) and 3 * len(set(names)) <= len(names)
