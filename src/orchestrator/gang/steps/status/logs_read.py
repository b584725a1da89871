"""What engines' logs that a user names say without a node to ask: the one cause over all of them, by the agents' rules.

Each log is read as lines, and bounded, whatever is in the file.
"""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.engines import nccl_log
from orchestrator.engines.engine import Engine
from orchestrator.engines.host_causes import HOST, HOST_GENERAL, TOLD_ALONE
from orchestrator.engines.literals import may_match, required, shapes_of, telling, words_in
from orchestrator.engines.registry import dialects, newest
from orchestrator.loading.given_files import lines_of_file, named_file
from orchestrator.model.finding import Finding
from orchestrator.node.agent import causes
from orchestrator.node.agent.causes import WeighedCause, Weight
from orchestrator.node.engine.watch import ASSERTS, EXCEPTION, MOST_WORDS, UNRAISED, LogWatch, Suspicion, with_code
from orchestrator.protocol.advice import exact
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.report import Cause
from orchestrator.protocol.staging import CausePattern, Watch
from orchestrator.topology.pasted.facts import name_before, undressed, unwrapped, without_prefixes

_NCCL_HOST = re.compile(r"(?:^|[\s\"]|\[0?m)(?P<host>[A-Za-z0-9][\w.-]{0,127}):\d{1,10}:\d{1,10} \[-?\d{1,4}\] ")
_VLLM = re.compile(
    r"vLLM API server version v?(\S{1,32})|Initializing a V\d LLM engine \(v([^\s)]{1,32})\)|\bvllm/"
    r"|\bEngineCore_|multiproc_executor|\((?:EngineCore|APIServer|Worker)\w{0,48} pid=\d"
)
_SGLANG = re.compile(r"\bsglang[=\s-]{1,3}v?(\d[\w.+]{1,32})|\bsglang\b|ServerArgs\(|Scheduler hit an exception")
_NCCL = re.compile(r"\bNCCL version (\d[\d.]{2,12})|\bnccl==(\d[\d.]{2,12})")
_OF_NCCL = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|VERSION)\b")
_OF_AN_ENGINE = re.compile(
    r"\[[^\]]{0,64}\bTP\d{1,6}\]|\((?:APIServer|EngineCore|Worker|VllmWorker)[\w =]{0,64} pid=\d"
    r"|\b(?:INFO|WARNING|ERROR|CRITICAL) [\d-]{5,10} [\d:.]{5,16} \[?\w{1,64}\.py:\d"
    r"|(?:checkpoint|loading) shards: |fired up and ready to roll|\b(?:Prefill|Decode) batch[.,]|Uvicorn running on"
    r"|\[c10d\]|\bProcessGroup(?:NCCL|Gloo)\b|\"(?:GET|POST) /\S{0,256} HTTP/\d"
    r"|\b(?:SGLANG|VLLM)_[A-Z]|\b(?:MoE|FP8) (?:kernel )?config\b|\bFlashInfer\b|\bPCIe-IPC all-reduce\b"
)
"""Lines of SGLang, vLLM, torch's part of them and their web servers, in the forms of their loggers."""
_NCCL_WARNING = re.compile(r"\bNCCL WARN (?P<words>\S.{0,400})")
_NCCL_FAILED = re.compile(
    r"\bncclSystemError\b|\bncclInternalError\b|\bncclUnhandledCudaError\b|NCCL [Ee]rror"
    r"|unhandled (?:system|cuda) error|run with NCCL_DEBUG="
)
_ASK_FOR = (
    "no line tells of a failure: if it ended, ask for its last lines, its exit status and `dmesg -T` of that node; if"
    " it stands still, for NCCL_DEBUG=INFO from its start and `py-spy dump --pid PID` of each rank"
)
_POINTED = (
    "that exception only tells that another process ended: ask for that one's own log (what stands above it; of Ray"
    " /tmp/ray/session_latest/logs on its node, of torchrun each rank's), and `dmesg -T` there"
)
_FOLLOWED = (
    "those lines only tell what follows from another failure: ask for the log of the process, node or instance that"
    " ended first, and `dmesg -T` there"
)
_SUBSYSTEMS = (
    ("bootstrap", "INIT,BOOTSTRAP,NET"),
    ("socket", "INIT,BOOTSTRAP,NET"),
    ("net_ib", "INIT,NET"),
    ("ibv", "INIT,NET"),
    ("graph/", "INIT,GRAPH,ENV"),
    ("p2p", "INIT,P2P,ENV"),
    ("shm", "INIT,SHM,ENV"),
)
"""Of NCCL_DEBUG_SUBSYS, by a part of the file that warned (NCCL's debug.h)."""
_BARE_EXCEPTION = re.compile(
    r"(?:^|[\s\])|])(?P<words>(?:[A-Za-z_]\w{0,63}\.){0,8}(?:(?:[A-Z]|nixl)\w{0,63}(?:Error|Exception)(?:: \S.{0,400}"
    r"|$)"
    r"|Exception: \S.{0,400})"
    r"|(?:INTERNAL|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|UNAVAILABLE|DEADLINE_EXCEEDED): \S.{0,400}"
    r"|Failed: Cuda error .{0,400})"
)
"""An exception's own line, where its traceback was left out; XLA's; a CUDA check's that ends its process."""
_FRAME = re.compile(r'(?:^|\s)File "([^"]{1,512})", line (\d{1,7}), in \S')
_OF_EXCEPTIONS = required(_BARE_EXCEPTION.pattern)
_NO_EXCEPTION = re.compile(r"\bWARN|Warning\b|\bignored\b|\bINFO\b|\bDEBUG\b")
"""Before an exception's words: the line only tells of one."""
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b|\berror: |\bFatal\b|\b[Ff]ailed (?:to|with)\b|\bpanicked at"
    r"|\bis dead because\b"
)
_ERROR_OF_GLOG = re.compile(r"[EF]\d{4} \d\d:\d\d:")
_NO_ERROR = re.compile(r"\b(?:INFO|DEBUG|WARN(?:ING)?)\b|\bwarn\(")
"""A logger calls the line less than an error, or it is the source of a warning."""
_OF_VERSIONS = tuple(word for pattern in (_VLLM, _SGLANG, _NCCL) for word in required(pattern.pattern))
_RANK_S_RECORD = re.compile(
    r"\(Worker\w{0,48}_TP\d{1,6}\w{0,48} pid=\d{1,9}\) ERROR [\d: -]{1,32} \[[\w.]{1,64}:\d{1,6}\] ?"
)
"""Of vLLM, before every line of what a rank logs: it tells whose failure it is."""
_NCCL_WARN = "NCCL WARN "
_LAST_ERROR = "Last error:"
"""The line before NCCL's own words in an exception of torch (ProcessGroupNCCL.cpp)."""
_NO_WORDS = ("Exception raised from", "frame #", "Traceback", _LAST_ERROR)
"""Begin what follows where NCCL told none."""
_BEGIN = "Traceback (most recent call last)"
_HOST = re.compile(
    r"\W{0,8}(?P<host>(?!(?:rank|default|worker|local)\W?\d|[EIWF]\d{4}\b)[A-Za-z](?=[\w.-]{0,63}\d)[\w.-]{1,63}"
    r"|\d{1,3}(?:\.\d{1,3}){3})(?:\W{1,4}[a-z][\w-]{0,62})?\W{1,4}"  # pdsh: a node; stern: a pod and its container
)
_AT_WORK = re.compile(
    r"\b(?:Prefill|Decode) batch\b|Avg generation throughput: (?!0\.0 )\d|\"POST /\S{1,64} HTTP/\d(?:\.\d)?\" 200\b"
)
"""An engine that computes: where its log ends so, nothing that stands above has ended it."""
_OF_WORK = required(_AT_WORK.pattern)
_OF_KERNEL = re.compile(
    r"\bNVRM: |\boom[-_]kill|\b[Oo]ut of memory: Kill|^\[ {0,8}\d{1,9}\.\d{1,6}\]|\bkernel: |\[Hardware Error\]"
)
"""The kernel's lines: people paste them above the log of an engine that was killed while it computed."""
_NO_LOG = r"^(?:I|I'm|I've|My|Our|Hi|Hello|We(?! couldn't))\b[ ,]|^\s{0,32}(?:except|elif|if)\b[^{]{0,200}:$"
"""Of lines: what somebody wrote of a failure, or source code, though it has a failure's words."""
_WEB_SERVER_UP = "Application startup complete"
"""Of uvicorn, once an engine has loaded: what it told before did not end it, whichever engine it is."""
_LONGEST = 16 * 1024
"""Of a line; what follows is not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsSummary:
    """What the logs tell.

    cause:     None where no known cause is primary
    secondary: what else was recognised, in the order of the files
    exception: the engine's own last one, with or without its traceback, '' where it logged none
    nccl_warning: NCCL's first, or its last error as torch passes it on; '' where it gave none
    error:     where there is none of these, the first line that tells of an error, '' where none does
    next_log:  what to ask for next where no cause is known, '' where nothing would tell more
    engine, version: sglang or vllm, and its version; nccl: NCCL's. '' where no line says it
    lines_of:  where no line says any of these, whose lines there are all the same: 'NCCL', 'an engine' or ''
    transport: in words, '' where no line says it; findings: what is wrong with it in any case
    """

    cause: Cause | None = None
    secondary: tuple[Cause, ...] = ()
    exception: str = ""
    nccl_warning: str = ""
    error: str = ""
    next_log: str = ""
    engine: str = ""
    version: str = ""
    nccl: str = ""
    lines_of: str = ""
    transport: str = ""
    findings: tuple[Finding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document of `why --log --json`."""
        return {
            "cause": _cause_json(self.cause) if self.cause else None,
            "secondary": [_cause_json(cause) for cause in self.secondary],
            **{name: getattr(self, name) or None for name in _TEXTS},
            "findings": [{"id": finding.id, "node": finding.node, "title": finding.title} for finding in self.findings],
        }


_TRIED_AGAIN = re.compile(
    r"\[W\S{0,32} .{0,64}?socket\.cpp(?!.{0,16}\[c10d\] waitForInput)"
    r"|^\[c10d\] The client socket has failed to connect"
)
_GENERAL = ("CONTAINER-START", "CUDA-CALL-FAILED")
"""Causes that only say what failed: a line that says why is told in their place, wherever it stands."""
_WAITED_TO_LOAD = "could finish the model loading"
"""Of a line: for what a rank waited, which the barrier's own words above it do not tell."""
_TEXTS = ("exception", "nccl_warning", "error", "next_log", "engine", "version", "nccl", "transport")


@dataclass(frozen=True, slots=True)
class _Text:
    """A log. shapes: of its lines, in their order"""

    lines: list[str]
    shapes: list[str]

    @classmethod
    def of(cls, lines: Iterable[str]) -> _Text:
        whole = textwrap.dedent(undressed("\n".join(line[:_LONGEST] for line in lines)))
        even = unwrapped(whole.split("\n"))
        if _LAST_ERROR in whole:
            passed_on = _passed_on_by_torch(even, shapes_of(even))
            even = [passed_on.get(place, line) for place, line in enumerate(even)]
        return cls(even, shapes_of(even))

    def with_any(self, words: Iterable[str]) -> Iterator[str]:
        """Those lines that may have one of the words."""
        kinds = telling(words, dict.fromkeys(self.shapes))
        return (line for line, shape in zip(self.lines, self.shapes, strict=True) if shape in kinds)


def _passed_on_by_torch(lines: Sequence[str], shapes: Sequence[str]) -> dict[int, str]:
    """By their place: NCCL's words, which stand below `Last error:` in an exception of torch, as NCCL writes them."""
    made = dict[int, str]()
    for place, line in enumerate(lines[:-1]):
        if _LAST_ERROR not in line or not line.rstrip().endswith(_LAST_ERROR):
            continue
        at, below = line.index(_LAST_ERROR), lines[place + 1]
        words = below[at:]
        same = shapes[place + 1][:at] == shapes[place][:at]
        if same and words.strip() and "NCCL WARN" not in below and not words.startswith(_NO_WORDS):
            made[place + 1] = f"{below[:at]}{_NCCL_WARN}{words}"
    return made


@dataclass
class _Stream:
    """The lines of one node, or what counts as one: a pod, a service of compose, a file."""

    name: str
    watch: LogWatch
    nccl: list[str] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    hosts: dict[str, None] = field(default_factory=dict)
    warning: str = ""
    """NCCL's first, or its last error as torch passes it on."""
    bare: str = ""
    """The last exception's line, whether or not a traceback led to it."""
    file: str = ""
    """`path:line` of the frame above that line, '' where there is none."""
    survived: str = ""
    """The newest exception before the engine entered another phase of its start: it went on."""
    _frame: str = ""
    _code: str = ""
    """What the frame above asserts."""
    _at_work: tuple[object, ...] = ()
    """What had failed when the engine last showed that it computes."""
    _begin: str = ""
    """Of the last line of NCCL: its host, which needs no search in the next."""
    _unraised: bool = False
    """The next exception is one that Python passed over."""

    @property
    def node(self) -> str:
        return next(iter(self.hosts)) if len(self.hosts) == 1 else self.name

    @property
    def transport(self) -> str:
        seen = nccl_log.read(self.nccl)
        return seen.words if seen.networks or seen.devices else ""

    def feed(self, line: str, *, plain: bool, quiet: bool) -> None:
        """plain: the line has no word of any pattern; quiet: of a cause's or a note's."""
        if (failed := self._failed()) != self._at_work and may_match(_OF_WORK, line) and _AT_WORK.search(line):
            self._at_work = failed
        self._feed_of_frames(line)
        self._unraised = self._unraised or UNRAISED in line
        if _WEB_SERVER_UP in line:
            self.watch.finish(float("inf"), _OF_KERNEL)
        if plain:
            self.watch.feed(line, 0.0, plain=True)
            return
        if "NCCL " in line:
            self._feed_of_nccl(line)
        if may_match(_OF_EXCEPTIONS, line):
            self._feed_of_exceptions(line)
        if self.watch.own is not None and (match := self.watch.own.search(line)):
            self.addresses.add(match["address"])
        self._feed_of_phases(line, quiet)

    def _failed(self) -> tuple[object, ...]:
        """What tells of a failure so far; () for nothing."""
        raised, seen = self.watch.tracebacks.raised, self.watch.seen
        return (seen, raised, self.bare) if seen or raised is not None or self.bare else ()

    def end(self) -> None:
        """After its last line: an engine that went on to compute was not ended by what it had told before."""
        if self._at_work and self._at_work == self._failed():
            self.watch.finish(float("inf"), _OF_KERNEL)
            self.watch.tracebacks.raised, self.bare = None, ""

    def suspect(self) -> Suspicion | None:
        """What ended it; an exception that it survived did not."""
        seen = self.watch.suspect(0.0)
        if seen is None or (seen.raised and self.has_survived(seen.text)):
            return None
        return self._says_more(seen)

    def _says_more(self, seen: Suspicion) -> Suspicion:
        """Another line that tells why, where this one only tells what."""
        others = [other for other in self.watch.suspicions(0.0) if not other.raised]
        if seen.secondary:
            return next((other for other in others if _WAITED_TO_LOAD in "".join(other.lines[-1:])), seen)
        if seen.id in _GENERAL and seen.weak:
            return next((other for other in others if not other.secondary and other.id not in _GENERAL), seen)
        return seen

    def has_survived(self, words: str) -> bool:
        """words: they hold an exception's"""
        return self.survived != "" and self.survived[:MOST_WORDS] in words

    def _is_root_above(self, words: str) -> bool:
        return self.bare != "" and self.watch.pointers.search(words) is not None

    def _feed_of_frames(self, line: str) -> None:
        if 'File "' in line and (frame := _FRAME.search(line)):
            self._frame, self._code = f"{frame[1]}:{frame[2]}", ""
        elif "assert " in line and (code := ASSERTS.match(line)):
            self._code = code[1]

    def _feed_of_exceptions(self, line: str) -> None:
        match = _BARE_EXCEPTION.search(line)
        if match and self._unraised:
            self._unraised = False
        elif match and not _NO_EXCEPTION.search(line[: match.start()]) and not self._is_root_above(match["words"]):
            self.bare, self.file = with_code(match["words"].strip(), self._code), self._frame
            self._frame = self._code = ""

    def _feed_of_phases(self, line: str, quiet: bool) -> None:
        """An exception before a next phase did not end it."""
        phase = self.watch.phase.name
        if self.watch.feed(line, 0.0, quiet=quiet) and self.watch.phase.name == "ready":
            self.watch.finish(float("inf"), _OF_KERNEL)
        elif self.watch.phase.name != phase:
            raised = self.watch.tracebacks.raised
            self.survived = raised.text if raised is not None else self.bare

    def _feed_of_nccl(self, line: str) -> None:
        known = self._begin != "" and line.startswith(self._begin) and line[len(self._begin) :][:1].isdecimal()
        if not known and (match := _NCCL_HOST.search(line)):
            self.hosts.setdefault(match["host"])
            self._begin = f"{match['host']}:"
        if not self.warning and "NCCL WARN " in line and (match := _NCCL_WARNING.search(line)):
            self.warning = match["words"].strip()
        if "NCCL INFO " in line:
            self.nccl.append(line.partition("NCCL INFO ")[2])


def read_logs(files: Mapping[str, Iterable[str]]) -> LogsSummary:
    """Lines by the file's name, which is the node's where the lines don't tell it. Any text is read; never raises."""
    texts = {name: _Text.of(lines) for name, lines in files.items()}
    engine, version, nccl = _written_by(texts)
    streams = list(_streams(texts, _dialects_engine(engine, version)))
    cause, exception = _first(_weighed_causes(streams), streams)
    warning = next((stream.warning for stream in streams if stream.warning), "")
    summary = LogsSummary(
        cause=_exact(cause) if cause is not None else None,
        secondary=tuple(map(_exact, _others(streams, cause))),
        exception=exception,
        nccl_warning=warning,
        engine=engine,
        version=version,
        nccl=nccl,
        lines_of=_lines_of(texts, (engine, nccl)),
        transport="; ".join(filter(None, dict.fromkeys(stream.transport for stream in streams))),
        findings=tuple(finding for stream in streams for finding in _sure_findings(stream)),
    )
    return summary if cause is not None else _without_cause(summary, streams, texts)


def _without_cause(summary: LogsSummary, streams: Sequence[_Stream], texts: Mapping[str, _Text]) -> LogsSummary:
    """With the first line that tells of an error, where nothing says more, and what to ask for next."""
    if not (summary.exception or summary.nccl_warning):
        summary = replace(summary, error=next(_errors(texts), ""))
    return replace(summary, next_log=_next_log(summary, streams, texts))


def _exact(cause: Cause) -> Cause:
    """Without what only a gang's own report can name: a log tells neither its gang nor its model."""
    return replace(cause, fix=exact(cause.fix))


def _errors(texts: Mapping[str, _Text]) -> Iterator[str]:
    """Lines that tell of an error, whoever wrote them."""
    for text in texts.values():
        kinds = telling(required(_ERROR.pattern), dict.fromkeys(text.shapes))
        for line, shape in zip(text.lines, text.shapes, strict=True):
            tells = shape in kinds and _ERROR.search(line) and not _NO_ERROR.search(line)
            if tells or _ERROR_OF_GLOG.match(line):
                yield line.strip()[:MOST_WORDS]


def _weighed_causes(streams: Sequence[_Stream]) -> list[WeighedCause]:
    nodes = {address: stream.node for stream in streams for address in stream.addresses}
    suspects = [(stream, seen) for stream in streams if (seen := stream.suspect())]
    # whichever log comes first: a weak cause may follow from a sure one
    if any(_is_sure(seen) for _, seen in suspects):
        suspects = [(stream, seen) for stream, seen in suspects if not seen.weak or seen.secondary]
    return [_weighed_cause(stream, seen, nodes) for stream, seen in suspects]


def _is_sure(seen: Suspicion) -> bool:
    return not (seen.weak or seen.secondary or seen.raised)


def _sure_findings(stream: _Stream) -> Iterator[Finding]:
    """What is wrong in any case; what else would be wrong depends on the plan."""
    findings = nccl_log.findings(stream.node, NodeNetwork(transport=Transport.RDMA), stream.nccl)
    return (finding for finding in findings if finding.id == "TRANSPORT-NO-GDR")


def _next_log(summary: LogsSummary, streams: Sequence[_Stream], texts: Mapping[str, _Text]) -> str:
    """Which variable has NCCL tell more, or whose words an exception points at; '' where nothing would."""
    if summary.nccl_warning:
        return _more_of_nccl(summary.nccl_warning, texts)
    if _NCCL_FAILED.search(summary.exception):
        return "NCCL says why with NCCL_DEBUG=WARN in l40s_env: start it again so, and read the logs of all nodes"
    if any(stream.watch.pointers.search(summary.exception) for stream in streams):
        return _POINTED
    if summary.secondary and not summary.exception:
        return _FOLLOWED
    speaks = summary.exception or summary.error
    known = summary.engine or summary.nccl or summary.lines_of
    return _ASK_FOR if known and not speaks else ""


def _more_of_nccl(warning: str, texts: Mapping[str, _Text]) -> str:
    """warning: NCCL's first; its file says which subsystem knows more."""
    place = next((line for text in texts.values() for line in text.lines if warning[:80] in line), "")
    before = place.partition("NCCL WARN")[0]
    subsystems = next((names for part, names in _SUBSYSTEMS if part in before or part in warning.lower()), "INIT,NET")
    return f"NCCL says more with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS={subsystems} in l40s_env, on all nodes"


def _written_by(texts: Mapping[str, _Text]) -> tuple[str, str, str]:
    """(engine, its version, NCCL's). SGLang has parts of vLLM in its tracebacks: who tells its version is believed."""
    nccl, versions = "", dict[str, str]()
    for line in itertools.chain.from_iterable(text.with_any(_OF_VERSIONS) for text in texts.values()):
        for name, pattern in (("vllm", _VLLM), ("sglang", _SGLANG)):
            if not versions.get(name) and (matches := [*pattern.finditer(line)]):
                versions[name] = next((told for match in matches for told in match.groups() if told), "")
        if not nccl and (match := _NCCL.search(line)):
            nccl = (match[1] or match[2]).rstrip(".")
    engine = max(versions, key=lambda name: (versions[name] != "", name == "sglang"), default="")
    return engine, versions.get(engine, ""), nccl


def _lines_of(texts: Mapping[str, _Text], named: Sequence[str]) -> str:
    """By the forms of their lines, where nobody tells its name. named: who does, '' for nobody"""
    if any(named):
        return ""
    for name, pattern in (("NCCL", _OF_NCCL), ("an engine", _OF_AN_ENGINE)):
        if any(pattern.search(line) for text in texts.values() for line in text.lines):
            return name
    return ""


def _dialects_engine(product: str, version: str) -> Engine:
    """Of the newest where none is told."""
    family = [dialect for dialect in dialects().values() if dialect.product.lower() == product] or [newest()]
    dialect = next((candidate for candidate in family if version and candidate.lists(version)), family[-1])
    return dialect.engine(version or dialect.versions[-1])


def _streams(texts: Mapping[str, _Text], engine: Engine) -> Iterator[_Stream]:
    """A file's lines by whoever a prefix names."""
    of_engine = engine.watch()
    harmless = "|".join(filter(None, (of_engine.harmless, _NO_LOG)))
    known = replace(of_engine, causes=HOST + of_engine.causes + HOST_GENERAL, harmless=harmless)
    for name, text in texts.items():
        kinds = dict.fromkeys(text.shapes)
        there = words_in(words_of(known), kinds)
        watch = replace(known, causes=_possible(known.causes, there))
        kinds_that_tell = telling(there, kinds)
        kinds_of_causes = telling(there.intersection(words_of_causes(known)), kinds)
        streams: dict[str, _Stream] = {}
        around, named = _around(text.lines), name_before(text.lines)
        for line, shape in zip(text.lines, text.shapes, strict=True):
            who, words = _whose(line, named, around)
            if known.record and "_TP" in line:
                words = _with_rank(line, words)
            if who not in streams:
                streams[who] = _Stream(who or name, LogWatch.of(watch))
            whole = line.startswith('{"')  # a record: its words stand in it otherwise
            plain, quiet = shape not in kinds_that_tell, shape not in kinds_of_causes
            streams[who].feed(words, plain=plain and not whole, quiet=quiet and not whole)
        for stream in streams.values():
            stream.end()
            yield stream


def _whose(line: str, named: re.Pattern[str] | None, around: re.Pattern[str] | None) -> tuple[str, str]:
    """Whom the prefixes of a line name, '' for nobody, and what stands behind them.

    named: a node before the engine's own prefix; around: what somebody put before a traceback's lines
    """
    node = named.match(line) if named is not None else None
    who, words = without_prefixes(line[node.end() :] if node else line)
    if not who and node:
        who = node["host"]
    if around is None or not (match := around.match(words)):
        return who, words
    host = _HOST.fullmatch(match[0])
    if not who and host:
        who = host["host"]
    return who, words[match.end() :]


def _with_rank(line: str, words: str) -> str:
    """What stands behind a line's prefixes, and the one that names a rank, which is the engine's own."""
    record = _RANK_S_RECORD.search(line)
    return record[0] + words if record and line[record.end() :] == words else words


def words_of(watch: Watch) -> Iterator[str]:
    """Of which each line has one that matches a pattern of the watch, or that tells of NCCL or an exception."""
    patterns = [phase.pattern for phase in watch.phases]
    for pattern in filter(None, (*patterns, watch.own, watch.requests, watch.record)):
        yield from required(pattern) or ("",)
    yield from words_of_causes(watch)
    yield from ("NCCL ", _BEGIN, *_OF_EXCEPTIONS)


def words_of_causes(watch: Watch) -> Iterator[str]:
    """Of which each line has one that matches a cause, a remark or a proof."""
    for entry in (*watch.causes, *watch.remarks, *watch.proofs):
        yield from required(entry.pattern) or ("",)


def _possible(causes: Iterable[CausePattern], there: Collection[str]) -> tuple[CausePattern, ...]:
    """Those that some line may show: what none can show costs nothing in each of them. there: words of the text"""
    return tuple(
        cause for cause in causes if not (words := required(cause.pattern)) or any(word in there for word in words)
    )


def _around(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What somebody put before every line of a traceback, with any numbers in it; it hides which exception ended it."""
    shapes = dict[str, bool]()
    for line, below in itertools.pairwise(lines):
        before, begins, _ = without_prefixes(line)[1].partition(_BEGIN) if _BEGIN in line else ("", "", "")
        if (
            begins and before.strip() and len(before) <= 128 and " TP" not in before
        ):  # a rank's own prefix tells whose it is
            shape = re.sub(r"(?:\\ )+(?=\d)", " +", re.sub(r"^(?:\\ )+(?=\d)", " *", re.escape(before)))
            shape = re.sub(r"\d+", r"\\d+", shape)
            if len(shapes) < 128 and not shapes.get(shape):
                shapes[shape] = re.match(rf'{shape}(?:  File "|{_BEGIN[:9]})', without_prefixes(below)[1]) is not None
    fitting = [shape for shape, fits in shapes.items() if fits]
    return re.compile("|".join(fitting)) if fitting else None


def _weighed_cause(stream: _Stream, seen: Suspicion, nodes: Mapping[str, str]) -> WeighedCause:
    known = Weight.FOLLOWED if seen.secondary else Weight.SEEN
    weight = Weight.UNSURE if seen.raised else known
    blames = causes.blames(stream.watch, 0.0, nodes) if seen.secondary or seen.weak else ()
    return WeighedCause(_cause(stream, seen), weight, tuple(name for name in blames if name != stream.node))


def _cause(stream: _Stream, seen: Suspicion) -> Cause:
    host = _NCCL_HOST.search(seen.lines[-1]) if seen.lines else None
    return causes.told_by(host["host"] if host else stream.node, seen)


def _first(weighed_causes: list[WeighedCause], streams: list[_Stream]) -> tuple[Cause | None, str]:
    """The one cause, and the engine's last exception where that is all there is."""
    exception, teller = _last_exception(streams)
    chosen = None
    if weighed_causes:
        chosen = causes.choose({f"{place}": weighed for place, weighed in enumerate(weighed_causes)})
    if chosen is not None and chosen.signature == EXCEPTION:
        words = chosen.text.removeprefix("engine process exited: ")
        if not any(stream.watch.pointers.search(words) for stream in streams):
            return None, words
        chosen = None
    if chosen is None or chosen.secondary:
        if teller is not None and (known := _of_kind(exception, teller)):
            return known, exception
        return next(filter(_tells, (*filter(None, (chosen,)), *_recognised(streams))), None), exception
    return chosen, exception


def _last_exception(streams: Sequence[_Stream]) -> tuple[str, _Stream | None]:
    """Of the logs, one that is no pointer at another where there is one, and whose it is."""
    raised = [(stream.watch.tracebacks.raised, stream) for stream in reversed(streams)]
    exceptions = [(exception.words, stream) for exception, stream in raised if exception is not None]
    exceptions += [(stream.bare, stream) for stream in reversed(streams) if stream.bare]
    roots = ((words, stream) for words, stream in exceptions if not stream.watch.pointers.search(words))
    return next(roots, exceptions[0] if exceptions else ("", None))


def _of_kind(exception: str, stream: _Stream) -> Cause | None:
    """The cause that an exception without a traceback's header is by its kind."""
    kind, meaning = stream.watch.kind_of(exception, stream.file if exception == stream.bare else "")
    if kind is None or stream.has_survived(exception):
        return None
    return Cause(node=stream.node, signature=kind.id, text=meaning, fix=kind.fix, lines=(exception,))


def _tells(cause: Cause) -> bool:
    """A warning of a connection that is tried again tells nothing: the other end may have come later."""
    return cause.signature in TOLD_ALONE and not any(map(_TRIED_AGAIN.search, cause.lines[-1:]))


def _recognised(streams: list[_Stream]) -> list[Cause]:
    """Of every line that shows a known cause."""
    return [
        replace(_cause(stream, suspicion), tp_rank=None)
        for stream in streams
        for suspicion in stream.watch.suspicions(0.0)
        if not suspicion.raised
    ]


def _others(streams: list[_Stream], cause: Cause | None) -> tuple[Cause, ...]:
    """What else was recognised: once a cause and node, with the first lines that show it."""
    others: dict[tuple[str, str], Cause] = {}
    for other in _recognised(streams):
        others.setdefault((other.signature, other.node), other)
    if cause is not None:
        others.pop((cause.signature, cause.node), None)
    return tuple(others.values())


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.signature,
        **{name: getattr(cause, name) for name in ("node", "tp_rank", "text", "fix", "lines")},
    }


FORMS = "a log as text or gzip, a folder of one log a node, - for standard input, NODE=FILE to name its node"
MOST_FILES = 256
"""Of a folder."""


def log_files(names: Sequence[str]) -> dict[str, list[str]]:
    """Lines by node: NODE of NODE=FILE, else the file's name. Raises InputError for what is no log."""
    by_cause: dict[str, list[str]] = {}
    for own, file in (each for name in names for each in _files_of(name)):
        node = own
        while node in by_cause:
            node += "'"
        by_cause[node] = lines_of_file(file, f"name {FORMS}")
    return by_cause


def _files_of(name: str) -> list[tuple[str, str]]:
    """(node, file) of what a user names; of a folder its files, as kubectl and pdsh leave them."""
    if not os.path.isdir(name):  # noqa: PTH112 - False for a pasted line, which is too long for a name
        return [named_file(name)]
    files = sorted(path for path in Path(name).iterdir() if path.is_file() and not path.name.startswith("."))
    if not files or len(files) > MOST_FILES:
        what = f"is a folder of {len(files)} files, wanted 1 to {MOST_FILES}: one log a node"
        raise InputError(what, where=name, fix=f"name {FORMS}")
    return [named_file(str(path)) for path in files]
