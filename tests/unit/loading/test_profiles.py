"""Model profiles: the shipped ones load, wrong ones are refused with file, path inside, found and wanted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from l40s_lab.engine import model as engine_model
from orchestrator.engines.registry import dialects, engine_of
from orchestrator.loading.profiles import load_profile, load_stack, profile_names, stack_names
from orchestrator.model.profile import CudaGraphs
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.protocol.errors import InputError

OF_THE_LAB = (engine_model.TINY.name, engine_model.WIDE.name, engine_model.QWEN.name)
GOOD = {
    "name": "m",
    "source": "here",
    "directory": "m",
    "architecture": "DeepseekV3ForCausalLM",
    "quantisation": "fp8-block",
    "block": [64, 64],
    "dimensions": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    },
    "flags": {"all": {"--quantization": "fp8"}, "0.5": {"--enable-metrics": None}},
    "canary": {"prompt": "hello"},
}


def write(folder: Path, content: object) -> str:
    file = folder / "m.yml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), "utf-8")
    return str(file)


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_under_its_own_name(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == profile.directory == name
    assert profile.canary.prompt
    if profile.quantisation == "fp8-block":
        assert profile.block == ((64, 64) if name.endswith("Block64x64") else (128, 128))


def test_the_models_that_the_product_promises_are_there() -> None:
    families = ("DeepSeek-V3-0324", "DeepSeek-R1", "DeepSeek-R1-0528", "DeepSeek-V3.1")
    wanted = {*families, *(f"{family}-Block64x64" for family in families)}
    later = {
        "MiniMax-M2", "MiniMax-M2.5", "MiniMax-M2.7", "Qwen3-235B-A22B-Instruct-2507-FP8",
        "Qwen3-235B-A22B-Thinking-2507-FP8", "GLM-4.6-FP8", "GLM-4.7-FP8", "Kimi-K2-Instruct-0905", "Kimi-K2.5",
        "Kimi-K2.6", "gpt-oss-120b", "DeepSeek-V3.1-Terminus",
    }  # fmt: skip
    refused = {"DeepSeek-V3.2", "DeepSeek-V4-Flash", "GLM-5-FP8"}
    assert wanted | later | refused | {"DeepSeek-R1-Channel-INT8", *OF_THE_LAB} == set(profile_names())
    assert all(load_profile(name).refused for name in refused)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("MiniMax-M2", 230), ("Qwen3-235B-A22B-Instruct-2507-FP8", 236), ("Kimi-K2-Instruct-0905", 1029),
        ("Kimi-K2.5", 595), ("gpt-oss-120b", 65), ("GLM-4.6-FP8", 362),
    ],
)  # fmt: skip
def test_sizes_counted_from_dimensions_fit_the_published_parameter_counts(name: str, gigabytes: int) -> None:
    """The published numbers of parameters, by the bytes that each takes in storage."""
    assert checkpoint_bytes(load_profile(name)) / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_parts_that_are_stored_in_another_way(tmp_path: Path) -> None:
    content = {**GOOD, "parts": {"attention": "none"}, "env": {"0.5": {"NAME": 1}}}
    profile = load_profile(write(tmp_path, content))
    assert (profile.stored("attention"), profile.stored("experts")) == ("none", "fp8-block")
    assert profile.env == (("0.5", "NAME", "1"),)


@pytest.mark.parametrize(
    ("graphs", "of_all", "version", "found"),
    [
        ({}, 32, "0.4.4.post1", CudaGraphs(max_bs=32, torch_compile_max_bs=32)),
        ({}, 32, "0.5.23", CudaGraphs(max_bs=32)),
        ({"all": {"sizes": [1, 8]}}, None, "0.5.23", CudaGraphs(sizes=(1, 8))),
        ({"0.5": {"sizes": [1, 8]}}, 32, "0.5.23", CudaGraphs(sizes=(1, 8))),
        ({"0.5": {"sizes": [1, 8]}}, 32, "0.4.4.post1", CudaGraphs(max_bs=32, torch_compile_max_bs=32)),
        ({"0.5.23": {"torch_compile_max_bs": 8}, "0.5": {"max_bs": 16}}, 32, "0.5.23",
         CudaGraphs(max_bs=16, torch_compile_max_bs=8)),
        ({"0.4.4": {"torch_compile_max_bs": 0, "max_bs": 160}}, 32, "0.4.4.post1",
         CudaGraphs(max_bs=160, torch_compile_max_bs=0)),
        ({"0.5": {"sizes": [1, 8]}, "0.5.23": {"max_bs": 4}}, None, "0.5.23", CudaGraphs(max_bs=4)),
    ],
)  # fmt: skip
def test_what_is_captured_and_compiled_is_said_by_engine_version(
    tmp_path: Path, graphs: dict[str, object], of_all: int | None, version: str, found: CudaGraphs
) -> None:
    """The longest prefix wins; torch.compile for all models becomes none for 0.5, whose manual advises against it."""
    both = {} if of_all is None else {"cuda_graph_max_bs": of_all, "torch_compile_max_bs": of_all}
    profile = load_profile(write(tmp_path, {**GOOD, "graphs": graphs, **both}))
    (engine,) = [one.engine(version) for one in dialects().values() if version in one.versions]
    assert engine.graphs(profile) == found


@pytest.mark.parametrize("sizes", [engine_model.TINY, engine_model.WIDE, engine_model.QWEN])
def test_the_tiny_ones_are_the_models_that_the_lab_makes(sizes: engine_model.Sizes) -> None:
    profile, made = load_profile(sizes.name), engine_model.config(sizes)
    dimensions = asdict(profile.dimensions)
    assert dimensions == {**dimensions, **{name: made[name] for name in dimensions if name in made}}
    assert profile.canary.prompt == engine_model.CANARY_PROMPT
    assert profile.canary.expect_any == (engine_model.CANARY_TEXT,)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, GOOD))
    assert profile.block == (64, 64)
    assert set(profile.flags) == {("", "--quantization", "fp8"), ("0.5", "--enable-metrics", "")}
    assert profile.tensor_parallel is None


def test_a_profile_beside_the_operator_goes_before_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inventory/models").mkdir(parents=True)
    write(tmp_path / "inventory/models", GOOD)
    monkeypatch.chdir(tmp_path)
    assert load_profile("m").source == "here"
    assert "m" in profile_names() and "DeepSeek-R1" in profile_names()


@pytest.mark.parametrize("name", ["deepseek-v3-0324", "DeepSeek-V3-0324-Block64", "DeepSeek-V30324"])
def test_an_unknown_model_brings_the_nearest_names(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(name)
    assert "DeepSeek-V3-0324" in caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", "../secrets", "a/b", "x\n"])
def test_a_name_is_never_a_path_to_elsewhere(name: str) -> None:
    with pytest.raises(InputError, match="no model is called"):
        load_profile(name)


@pytest.mark.parametrize(
    ("changes", "inside", "says"),
    [
        ({"quantisation": "int4"}, "quantisation", "wanted one of none, fp8-block, fp8-channel, int8-channel"),
        ({"block": [64]}, "block", "wanted a list of 2 positive integers"),
        ({"block": [0, 64]}, "block", "wanted a list of 2 positive integers"),
        ({"quantisation": "none"}, "block", "wanted none"),
        ({"bytes": -1}, "bytes", "wanted an integer, 0 or more"),
        ({"bytes": True}, "bytes", "found True"),
        ({"tensor_parallel": 0}, "tensor_parallel", "1 or more"),
        ({"trust_remote_code": "yes"}, "trust_remote_code", "wanted true or false"),
        ({"directory": "/etc"}, "directory", "below the nodes' model root"),
        ({"directory": "a/../../b"}, "directory", "below the nodes' model root"),
        ({"name": None}, "name", "found nothing, wanted a value"),
        ({"dimensions": {"hidden_size": 1}}, "dimensions.intermediate_size", "found nothing, wanted a value"),
        ({"dimensions": [1]}, "dimensions", "wanted a mapping"),
        ({"canary": {"prompt": "x", "expect_any": "Paris"}}, "canary.expect_any", "wanted a list of strings"),
        ({"flags": {"all": {"--x": [1]}}}, "flags.all.--x", "wanted text or a number"),
        ({"dimensions": {**GOOD["dimensions"], "hiden_size": 1}}, "dimensions.hiden_size", "unknown key"),  # type: ignore[dict-item]
        ({"quantisation": "int4-group", "block": None}, "group", ""),
        ({"group": 32}, "group", ""),
        ({"parts": {"attention": "int3"}}, "parts.attention", ""),
        ({"parts": {"vision": "none"}}, "parts.vision", ""),
        ({"attention": "sparse"}, "attention", ""),
        ({"refused": {"all": {"reason": "why"}}}, "refused.all.source", ""),
        ({"layouts": {"a": {"tensor_parallel": 0}}}, "layouts.a.tensor_parallel", ""),
        ({"layouts": {"a": {"tensor_parallel": 8, "speed": 9}}}, "layouts.a.speed", ""),
        ({"vision": {"layers": 1, "hidden_size": 2}}, "vision.bytes", ""),
        ({"micro_batch": 0}, "micro_batch", ""),
        ({"graphs": {"new": {"max_bs": 8}}}, "graphs.new", ""),
        ({"flags": {">=0.5": {"--a": "b"}}}, "flags.>=0.5", ""),
        ({"refused": {"0.5,0.6": {"reason": "r", "source": "s"}}}, "refused.0.5,0.6", ""),
        ({"layouts": {"wide": {"tensor_parallel": 2, "versions": "new"}}}, "layouts.wide.versions", ""),
        ({"graphs": {"all": {"max": 8}}}, "graphs.all.max", ""),
        ({"graphs": {"0.4.4": {"max_bs": 0}}}, "graphs.0.4.4.max_bs", ""),
        ({"graphs": {"all": {"sizes": []}}}, "graphs.all.sizes", ""),
        ({"graphs": {"all": {"sizes": [1, 4, 2]}}}, "graphs.all.sizes", ""),
        ({"graphs": {"all": {"sizes": [1, "2"]}}}, "graphs.all.sizes", ""),
        ({"graphs": {"all": {"sizes": [1, 2], "max_bs": 2}}}, "graphs.all.max_bs", ""),
        ({"graphs": {"0.5": {"torch_compile_max_bs": -1}}}, "graphs.0.5.torch_compile_max_bs", ""),
        ({"graphs": {"all": {"max_bs": 2}}, "cuda_graph_max_bs": 4}, "cuda_graph_max_bs", ""),
        ({"graphs": {"all": {"torch_compile_max_bs": 2}}, "torch_compile_max_bs": 4}, "torch_compile_max_bs", ""),
    ],
)
def test_a_wrong_value_is_told_with_its_place(
    tmp_path: Path, changes: dict[str, object], inside: str, says: str
) -> None:
    file = write(tmp_path, {key: value for key, value in {**GOOD, **changes}.items() if value is not None})
    with pytest.raises(InputError) as caught:
        load_profile(file)
    assert caught.value.where == f"{file}: {inside}"
    assert says in caught.value.what


def test_a_misspelt_key_brings_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(write(tmp_path, {**GOOD, "quantization": "fp8"}))
    assert caught.value.fix == "did you mean quantisation?"


@pytest.mark.parametrize("content", ["", "- a\n", "a: [1\n", "a: !!python/object/apply:os.system [x]\n", "\tx: 1"])
def test_a_file_that_is_no_yaml_mapping_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(write(tmp_path, content))
    assert caught.value.where.startswith(str(tmp_path))


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.yml").mkdir()
    for name in ("missing.yml", "d.yml"):
        with pytest.raises(InputError, match="cannot be read"):
            load_profile(str(tmp_path / name))
    (tmp_path / "m.yml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_profile(str(tmp_path / "m.yml"))


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=9),
))  # fmt: skip
def test_any_yaml_is_a_profile_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    with pytest.raises(InputError):
        load_profile(write(tmp_path_factory.mktemp("fuzz"), content))


STACK = "name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\n"


@pytest.mark.parametrize("name", stack_names())
def test_every_shipped_stack_loads_and_its_flags_are_known_to_its_version(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.tested
    words = [word for pair in stack.flags for word in pair if word]
    engine_of(stack).flags().given(words, where=name)


def test_the_five_stacks_are_there() -> None:
    on_cpu = {"sglang-0.5.23-cpu", "vllm-0.32.0-cpu"}
    assert set(stack_names()) == {"sglang-0.4.4-l40s", "sglang-0.5.23", "vllm-0.33.0", *on_cpu}
    assert {name for name in stack_names() if load_stack(name).device == "cpu"} == on_cpu


@pytest.mark.parametrize("name", stack_names())
def test_each_advisory_is_dated_sourced_and_of_a_version_that_the_stack_has(name: str) -> None:
    stack = load_stack(name)
    assert stack.looked_up and stack.advisories
    versions = {engine_of(stack).package: stack.engine_version, "torch": stack.torch_version}
    for one in stack.advisories:
        package, _, version = one.package.partition(" ")
        assert versions[package] == version, f"{one.id}: look it up again for the new version"
        assert "2020" < one.published <= stack.looked_up
        assert one.source.startswith("https://") and one.what and one.when


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("environment: {}\n", "environment"),
        ("looked_up: yesterday\n", "looked_up"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, published: soon}}\n", "advisories.X.published"),
        ("advisories: {X: {package: a, what: b, when: c}}\n", "advisories.X.source"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, cvss: e}}\n", "advisories.X.cvss"),
        ("advisories: [X]\n", "advisories"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(tmp_path: Path, more: str, where: str) -> None:
    file = tmp_path / "s.yml"
    file.write_text(STACK + more)
    with pytest.raises(InputError) as refused:
        load_stack(str(file))
    assert refused.value.where == f"{file}: {where}"


def test_a_version_that_yaml_takes_for_a_number_is_told(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    file.write_text(STACK.replace("0.5.23", "0.5"))
    with pytest.raises(InputError, match=r"found 0\.5, wanted text"):
        load_stack(str(file))
