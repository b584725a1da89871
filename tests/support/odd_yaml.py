"""YAML of shapes that nobody writes: each reader of ours refuses them in its own words, without a defect."""

ODD_YAML = (
    "a: " + "[" * 3000, "{" * 90 + "}" * 90, "a: !!int x", "a: !!bool x", "a: 2001-99-99", "!!timestamp x: 1",
    "? [a]\n: b",
    "a: !vault x", "!!set {a, b}", "&a [*a]", "steps: &a [*a]\nsummary: x",
    "a: !!python/object:os.system x", "a: \x9b",
    "base: &a {b: *a}", "nodes: &a [*a]", "gpus: !!binary x",
)  # fmt: skip
