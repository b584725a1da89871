"""`l40s-deploy man DIR`: manual pages, made from the same parsers as --help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from orchestrator import __version__
from orchestrator.cli.every_parser import every_parser, verbs_of
from orchestrator.cli.options import add_examples
from orchestrator.cli.screen import Screen
from orchestrator.model.errors import InputError
from orchestrator.model.exit_codes import Exit

EXIT_CODES = (
    ("0", "done"),
    ("1", "a defect of l40s-deploy"),
    ("2", "wrong input"),
    ("3", "findings, or a node refused or failed"),
    ("4", "unreachable"),
    ("5", "the gang failed"),
    ("6", "lock held"),
    ("7", "a verification differs"),
    ("130", "interrupted"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy man ~/.local/share/man/man1",
        "man l40s-deploy-status   # afterwards",
    )
    parser.add_argument("folder", metavar="DIR", help="directory for the pages; created if it is missing")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Write one page for the program and one for every verb."""
    folder = Path(args.folder).expanduser()
    pages = dict(all_pages(every_parser()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            draft = folder / f".{name}.new"
            draft.write_text(text, "utf-8")
            draft.replace(folder / name)
    except OSError as failure:
        raise InputError(
            f"can't be written: {failure.strerror}", where=str(failure.filename or folder), fix="name another directory"
        ) from None
    screen.say(f"{len(pages)} pages in {folder}")
    return Exit.DONE


def all_pages(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(file name, text) of every page."""
    verbs = verbs_of(parser)
    yield f"{parser.prog}.1", page(parser, see=[f"{parser.prog}-{name}" for name in verbs])
    for name, one in verbs.items():
        yield f"{parser.prog}-{name}.1", page(one, see=[parser.prog])


def page(parser: argparse.ArgumentParser, see: list[str]) -> str:
    """One page in the man macros (man(7)). see: names of other pages."""
    name = parser.prog.replace(" ", "-")
    summary = (parser.description or "").split("\n", 1)[0]
    lines = [
        f'.TH {name.upper()} 1 "" "l40s-deploy {__version__}" "l40s-deploy"',
        *_section("NAME", f"{_plain(name)} \\- {_plain(summary)}"),
        ".SH SYNOPSIS", *_verbatim(parser.format_usage().removeprefix("usage: ")),
        *_parts(parser, ""),
    ]  # fmt: skip
    if parser.epilog:
        lines += [".SH EXAMPLES AND NOTES", *_verbatim(parser.epilog)]
    lines += [".SH EXIT STATUS"]
    for code, words in EXIT_CODES:
        lines += [".TP", f".B {code}", _plain(words)]
    lines += _section("SEE ALSO", ", ".join(f"\\fB{_plain(other)}\\fR(1)" for other in see))
    return "\n".join(lines) + "\n"


def _parts(parser: argparse.ArgumentParser, title: str) -> Iterator[str]:
    """Its options; those of the parsers below it, each under its name."""
    actions = [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    if actions:
        yield f'.SH "{f"OPTIONS OF {title.upper()}" if title else "OPTIONS"}"'
    formatter = parser._get_formatter()
    for action in actions:
        yield ".TP"
        yield f".B {_plain(formatter._format_action_invocation(action))}"
        yield _plain(formatter._expand_help(action) if action.help else "")
    if title or parser.prog.count(" "):
        for name, one in verbs_of(parser).items():
            yield from _section(f"{title} {name}".strip().upper(), _plain(one.description or f"{parser.prog} {name}"))
            yield from _verbatim(one.format_usage().removeprefix("usage: "))
            yield from _parts(one, f"{title} {name}".strip())
            yield from _verbatim(one.epilog or "")


def _section(title: str, text: str) -> list[str]:
    return [f'.SH "{title}"', text]


def _verbatim(text: str) -> list[str]:
    return [".nf", *(_plain(line) for line in text.rstrip("\n").split("\n")), ".fi"] if text else []


def _plain(text: str) -> str:
    """Text in which roff finds nothing to do (groff_char(7)): no escapes, no request at the beginning of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
