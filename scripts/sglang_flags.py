#!/usr/bin/env python3
"""Write the list of command line flags that one SGLang version knows, out of its wheel's own sources.

    pip download --no-deps sglang==0.5.23
    scripts/sglang_flags.py sglang-0.5.23-*.whl > src/orchestrator/engines/flags/sglang-0.5.23.json

scripts/engine_facts.py does the same for every version that a dialect lists.

The sources are read as syntax trees and never imported, so neither CUDA nor torch is needed. Two shapes exist:
explicit `parser.add_argument(...)` calls (all of 0.4.4 and 0.5.10, a few since), and fields `name: A[type, Arg(...)]`
of ServerArgs (0.5.17) or of the classes in srt/arg_groups/fields/ (0.5.23), for which the rules of
srt/arg_groups/arg_utils.py (`add_cli_args_from_dataclass`) are repeated here.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

Flag = dict[str, Any]
"""aliases: other full spellings; takes: none | one | optional | many; type: int | float | bool | text;
choices: allowed values, or null; deprecated: what to use instead, or null."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", help="an sglang wheel file")
    wheel = parser.parse_args().wheel
    with zipfile.ZipFile(wheel) as archive:
        version = wheel.rsplit("/", 1)[-1].split("-")[1]
        flags = flags_of(Sources(archive))
    json.dump({"engine": "sglang", "version": version, "flags": dict(sorted(flags.items()))}, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


_SERVER_ARGS = "sglang/srt/server_args.py"


class Sources:
    """Python files of a wheel as syntax trees, with the plain constants that they define at module level."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = archive.namelist()

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self._archive.read(name), name)

    def constants(self, tree: ast.Module) -> Mapping[str, ast.expr]:
        """Name -> expression: this module's own and those it imports from sglang (one step)."""
        found: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
                file = (node.module or "").replace(".", "/") + ".py"
                if file in self.names:
                    theirs = dict(_assignments(self.tree(file)))
                    found.update({a.asname or a.name: theirs[a.name] for a in node.names if a.name in theirs})
        found.update(_assignments(tree))
        return found


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def flags_of(sources: Sources) -> dict[str, Flag]:
    """Every flag by its first spelling, from both shapes."""
    flags: dict[str, Flag] = {}
    server_args = sources.tree(_SERVER_ARGS)
    constants = sources.constants(server_args)
    for call in ast.walk(server_args):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            flags.update(_from_add_argument(call, constants))
    for name in sources.names:
        fields = name.startswith("sglang/srt/arg_groups/fields/") and name.endswith(".py")
        if fields or name == _SERVER_ARGS:
            tree = sources.tree(name)
            known = sources.constants(tree)
            for klass in (node for node in tree.body if isinstance(node, ast.ClassDef)):
                for field in (node for node in klass.body if isinstance(node, ast.AnnAssign)):
                    flags.update(_from_field(field, known))
    return flags


def _from_add_argument(call: ast.Call, constants: Mapping[str, ast.expr]) -> dict[str, Flag]:
    names = [text for arg in call.args if (text := _text(arg)) is not None and text.startswith("--")]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if not names:
        return {}
    return {names[0]: _flag(names[1:], keywords, "type" in keywords, _type(keywords.get("type")), constants)}


def _from_field(field: ast.AnnAssign, constants: Mapping[str, ast.expr]) -> dict[str, Flag]:
    annotation = field.annotation
    if not (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id in ("A", "Annotated")
        and isinstance(annotation.slice, ast.Tuple)
        and isinstance(field.target, ast.Name)
    ):
        return {}
    kind, meta = _not_optional(annotation.slice.elts[0]), annotation.slice.elts[1]
    keywords: dict[str, ast.expr] = {}
    if isinstance(meta, ast.Call) and getattr(meta.func, "id", "") == "Arg":
        keywords = {keyword.arg: keyword.value for keyword in meta.keywords if keyword.arg}
    elif _text(meta) is None:
        return {}  # Derived(...): computed, never on the command line
    if _true(keywords.get("no_cli")):
        return {}
    name = _text(keywords.get("cli_name")) or "--" + field.target.id.replace("_", "-")
    aliases = [text for alias in _elements(keywords.get("aliases"), constants) if (text := _text(alias))]
    if not name.startswith("--"):
        raise SystemExit(f"{name}: a positional argument; this script needs a rule for it")
    words = dict(keywords)
    type_name = _type(kind)
    if _subscript(kind) == "Literal" and isinstance(kind, ast.Subscript) and "choices" not in words:
        values = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        words["choices"] = ast.Tuple(values, ast.Load())
        type_name = "int" if isinstance(_literal(values[0]), int) else "text"
    if _subscript(kind) in ("List", "list") and "type_parser" not in words:
        words.setdefault("nargs", ast.Constant("+"))
        type_name = _type(kind.slice) if isinstance(kind, ast.Subscript) else "text"
    if "type_parser" in words:
        type_name = _type(words["type_parser"])
    if type_name == "bool" and "action" not in words:
        words["action"] = ast.Constant("store_true")
    extra = words.pop("action_kwargs", None)
    if isinstance(extra, ast.Dict):
        words.update({text: value for key, value in zip(extra.keys, extra.values, strict=True) if (text := _text(key))})
    return {name: _flag(aliases, words, True, type_name, constants)}


def _flag(
    aliases: list[str],
    keywords: Mapping[str, ast.expr],
    typed: bool,
    type_name: str,
    constants: Mapping[str, ast.expr],
) -> Flag:
    """One flag as argparse would take it; a custom action decides by its name (argparse_actions.py)."""
    action = _text(keywords.get("action")) or _last_name(keywords.get("action"))
    nargs = _literal(keywords.get("nargs"))
    takes = "one"
    alone = {"store_true", "store_false", "BooleanOptionalAction", "DeprecatedStoreTrueAction"}
    if "nargs" not in keywords:
        alone |= {"DeprecatedAction", "DeprecatedStoreConstAction"}
    if action in alone:
        takes, type_name = "none", "bool"
    elif nargs == "?":
        takes = "optional"
    elif nargs in ("+", "*"):
        takes = "many"
    elif isinstance(nargs, int):
        takes = "many" if nargs else "none"
    elif action == "LoRAPathAction":
        takes = "many"
    choices = None
    if "choices" in keywords:
        values = [_literal(element) for element in _elements(keywords["choices"], constants)]
        choices = values if values and None not in values else None
    deprecated = None
    help_text = _text(keywords.get("help")) or ""
    if action.startswith("Deprecated") or help_text.lower().startswith(("deprecated", "(deprecated")):
        deprecated = _text(keywords.get("new_flag")) or help_text or "deprecated"
    spelled = [*aliases, "--no-" + aliases[0][2:]] if action == "BooleanOptionalAction" and aliases else aliases
    flag: Flag = {"takes": takes, "type": type_name if typed or takes == "none" else "text"}
    if spelled:
        flag["aliases"] = spelled
    if action == "BooleanOptionalAction":
        flag["negatable"] = True
    if choices is not None:
        flag["choices"] = choices
    if deprecated is not None:
        flag["deprecated"] = deprecated
    return flag


def _not_optional(kind: ast.expr) -> ast.expr:
    """Optional[X] and X | None are X."""
    if _subscript(kind) == "Optional" and isinstance(kind, ast.Subscript):
        return kind.slice
    if isinstance(kind, ast.BinOp) and isinstance(kind.right, ast.Constant) and kind.right.value is None:
        return kind.left
    return kind


def _subscript(kind: ast.expr) -> str:
    return _last_name(kind.value) if isinstance(kind, ast.Subscript) else ""


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _type(node: ast.expr | None) -> str:
    return {"int": "int", "float": "float", "bool": "bool"}.get(_last_name(node), "text")


def _literal(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _text(node: ast.expr | None) -> str | None:
    """A string constant, also one joined from constants."""
    value = _literal(node)
    if isinstance(value, str):
        return value
    if isinstance(node, ast.BinOp):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "..." for part in node.values)
    return None


def _true(node: ast.expr | None) -> bool:
    return _literal(node) is True


def _elements(node: ast.expr | None, constants: Mapping[str, ast.expr]) -> list[ast.expr]:
    """The elements of a list, also of a named one; an expression we cannot follow has one unknown element."""
    if node is None:
        return []
    if isinstance(node, ast.Name) and node.id in constants:
        return _elements(constants[node.id], constants)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [
            element
            for item in node.elts
            for element in (_elements(item.value, constants) if isinstance(item, ast.Starred) else [item])
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _elements(node.left, constants) + _elements(node.right, constants)
    return [ast.Name("unknown", ast.Load())]


if __name__ == "__main__":
    sys.exit(main())
