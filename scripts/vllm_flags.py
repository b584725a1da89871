"""The flags of `vllm serve` of one version, out of its wheel's own sources, in the form of sglang_flags.py.

scripts/engine_facts.py writes them. The sources are read as syntax trees and never imported. A flag is an explicit
`add_argument`, whose rest is mostly `**kwargs["field"]` of a config class, or a field of FrontendArgs; how a field's
type becomes a flag is the rule of vllm/engine/arg_utils.py (`_compute_kwargs`), repeated here.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_flags import Flag

_ARGS = "vllm/engine/arg_utils.py"
_NUMBERS_IN_WORDS = {"max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_queued_tokens", "max_model_len",
                     "kv_cache_memory_bytes", "safetensors_prefetch_block_size"}  # fmt: skip
"""Fields whose flag takes `8k` too."""
_ONE_VALUE = {"allowed_origins", "allowed_methods", "allowed_headers", "middleware", "disable_access_log_for_endpoints"}
"""FrontendArgs._customize_cli_kwargs takes their nargs away."""


def flags_of(archive: zipfile.ZipFile) -> dict[str, Flag]:
    """Every flag by its first spelling."""
    names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
    frontend = next(
        name for name in names if name.endswith("/cli_args.py") and b"class FrontendArgs" in archive.read(name)
    )
    configs = [name for name in names if name.startswith("vllm/config/")]
    trees = {name: ast.parse(archive.read(name), name) for name in (*configs, frontend, _ARGS)}
    known = _Types([node for tree in trees.values() for node in tree.body])
    flags: dict[str, Flag] = {}
    for klass in ("BaseFrontendArgs", "FrontendArgs"):
        for field, kind in known.fields.get(klass, {}).items():
            flag = known.flag(kind, field)
            flags["--" + field.replace("_", "-")] = {**flag, "takes": "one"} if field in _ONE_VALUE else flag
    for name in (frontend, _ARGS):
        for function in ast.walk(trees[name]):
            if isinstance(function, ast.FunctionDef) and function.name in ("add_cli_args", "make_arg_parser"):
                flags.update(_of_function(function, known))
    return flags


def _of_function(function: ast.FunctionDef, known: _Types) -> Iterator[tuple[str, Flag]]:
    bound = {node.targets[0].id: node.value for node in ast.walk(function)
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            spellings = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
            if names := [name for name in spellings if name.startswith("--")]:
                yield names[0], _of_call(call, [name for name in spellings if name != names[0]], bound, known)


def _of_call(call: ast.Call, aliases: list[str], bound: Mapping[str, ast.expr], known: _Types) -> Flag:
    words = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    flag: Flag = {"takes": "one", "type": "text"}
    for keyword in call.keywords:
        if keyword.arg is None and (found := _field(keyword.value, bound)):
            flag = known.flag(known.fields.get(found[0], {}).get(found[1]), found[1])
    action = ast.unparse(words["action"]) if "action" in words else ""
    if "store_true" in action or "BooleanOptionalAction" in action:
        flag = {"takes": "none", "type": "bool", **({"negatable": True} if "Boolean" in action else {})}
    if "type" in words and (kind := ast.unparse(words["type"])) in ("int", "float"):
        flag["type"] = kind
    if "choices" in words and (values := _constants(words["choices"])):
        flag["choices"] = values
    if "Deprecated" in action or "DEPRECATION" in ast.unparse(call):
        flag["deprecated"] = "deprecated in this version"
    if aliases := [name for name in aliases if name.startswith("--")]:
        flag["aliases"] = aliases
    return flag


def _field(node: ast.expr, bound: Mapping[str, ast.expr]) -> tuple[str, str] | None:
    """(config class, field) of `kwargs["field"]`, of a name for that, and of {**that, ...}."""
    if isinstance(node, ast.Dict):
        return next(
            (_field(value, bound) for key, value in zip(node.keys, node.values, strict=True) if key is None), None
        )
    if isinstance(node, ast.Name) and node.id in bound:
        return _field(bound[node.id], bound)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return None
    source = bound.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
    if isinstance(source, ast.Call) and getattr(source.func, "id", "") == "get_kwargs":
        return ast.unparse(source.args[0]), str(node.slice.value)
    return None


class _Types:
    """Fields of the config classes, and what the names in their types stand for."""

    def __init__(self, nodes: list[ast.stmt]) -> None:
        self.aliases: dict[str, ast.expr] = {}
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name) and node.value:
                self.aliases[target.id] = node.value
        self.fields = {
            name: {
                node.target.id: node.annotation
                for node in klass.body
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            }
            for name, klass in self.classes.items()
        }

    def flag(self, annotation: ast.expr | None, field: str) -> Flag:
        """The flag for a field of this type."""
        kinds = list(self._union(annotation)) if annotation is not None else []
        names = [_last(kind) for kind in kinds]
        if set(names) == {"bool", "str", "None"}:
            return {"takes": "optional", "type": "text"}
        if "bool" in names:
            return {"takes": "none", "type": "bool", "negatable": True}
        if literals := [value for kind in kinds if _last(kind) == "Literal" for value in _constants(kind)]:
            kind = "int" if all(isinstance(value, int) for value in literals) else "text"
            listed = {} if "str" in names else {"choices": sorted(literals)}
            return {"takes": "one", "type": kind, **listed}
        for kind in kinds:
            if _last(kind) in ("tuple", "list", "set") and isinstance(kind, ast.Subscript):
                element = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
                return {"takes": "many", "type": _last(element) if _last(element) in ("int", "float") else "text"}
        number = (
            None if field in _NUMBERS_IN_WORDS else next((name for name in ("int", "float") if name in names), None)
        )
        return {"takes": "one", "type": number or "text"}

    def _union(self, kind: ast.expr) -> Iterator[ast.expr]:
        """Its members: of X | Y, Optional, Annotated, and of a name for one of them."""
        if isinstance(kind, ast.BinOp):
            yield from self._union(kind.left)
            yield from self._union(kind.right)
        elif isinstance(kind, ast.Subscript) and _last(kind) in ("Annotated", "Optional", "SkipValidation", "Union"):
            members = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
            for member in members[:1] if _last(kind) == "Annotated" else members:
                yield from self._union(member)
            if _last(kind) == "Optional":
                yield ast.Constant(None)
        elif isinstance(kind, ast.Name) and isinstance(self.aliases.get(kind.id), (ast.Subscript, ast.BinOp, ast.Name)):
            yield from self._union(self.aliases[kind.id])
        elif isinstance(kind, ast.Constant) and isinstance(kind.value, str):
            yield from self._union(ast.parse(kind.value, mode="eval").body)
        else:
            yield kind


def _last(kind: ast.expr) -> str:
    if isinstance(kind, ast.Subscript):
        return _last(kind.value)
    if isinstance(kind, ast.Constant):
        return str(kind.value)
    return kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")


def _constants(node: ast.expr) -> list[Any]:
    inner = node.slice if isinstance(node, ast.Subscript) else node
    elements = inner.elts if isinstance(inner, (ast.Tuple, ast.List)) else [inner]
    return [one.value for one in elements if isinstance(one, ast.Constant) and one.value is not None]
