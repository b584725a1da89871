"""YAML of shapes that nobody writes: each reader of ours refuses them in its own words, without a defect."""

ODD_YAML = (
    "a: " + "[" * 3000, "{" * 90 + "}" * 90, "a: !!int x", "a: !!bool x", "a: 2001-99-99", "!!timestamp x: 1",
    "? [a]\n: b",
    "a: !vault x", "!!set {a, b}", "&a [*a]", "steps: &a [*a]\nsummary: x",
    "a: !!python/object:os.system x", "a: \x9b",
    "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 12)),
    "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000)),
    "base: &a {b: *a}", "nodes: &a [*a]", "gpus: !!binary x",
)  # fmt: skip
