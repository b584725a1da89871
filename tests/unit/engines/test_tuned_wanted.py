"""The files that both engine versions look for, name by name as their sources build them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.engines.registry import dialect, engine_of
from orchestrator.engines.tuned_wanted import (
    Experts,
    Wanted,
    device_name,
    experts,
    file_name,
    linears,
    resolve,
    triton_version,
    wanted_files,
)
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.protocol.planned import Layout

L40S = "NVIDIA L40S"
OLD = dialect("sglang-0.4.4").engine("0.4.4.post1").tuned
NEW = dialect("sglang-0.5").engine("0.5.23").tuned
MOE_OLD = "sglang/srt/layers/moe/fused_moe_triton/configs"
MOE_NEW = "sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_8_0"
LINEAR_OLD = "sglang/srt/layers/quantization/configs"
LINEAR_NEW = "sglang/kernels/ops/gemm/configs"


def layout(tensor: int, pipeline: int = 1, expert: int = 1) -> Layout:
    return Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, expert_parallel=expert, nnodes=4, gpus_per_node=8)


def fp8(rows: int, columns: int, block: int = 64) -> str:
    return f"N={rows},K={columns},device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[{block}, {block}].json"


def places(model: str, family: str, of: Layout, *, gpu: str = L40S, moe_directory: str = "") -> list[tuple[str, str]]:
    stack = load_stack(dialect(family).stack)
    rules, triton = engine_of(stack).tuned, stack.triton_version
    found = wanted_files(load_profile(model), of, rules, gpu=gpu, triton=triton, moe_directory=moe_directory)
    return [(one.folder, one.name) for one in found]


def test_the_articles_model_on_the_articles_stack() -> None:
    """Every name is one of the branch l40s-dsfp8's own files (commit 03d34078)."""
    assert places("DeepSeek-V3-0324-Block64x64", "sglang-0.4.4", layout(32)) == [
        (MOE_OLD, "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"),
        (LINEAR_OLD, fp8(1536, 7168)),
        (LINEAR_OLD, fp8(576, 7168)),
        (LINEAR_OLD, fp8(768, 1536)),
        (LINEAR_OLD, fp8(1024, 512)),
        (LINEAR_OLD, fp8(7168, 512)),
        (LINEAR_OLD, fp8(1152, 7168)),
        (LINEAR_OLD, fp8(7168, 576)),
        (LINEAR_OLD, fp8(128, 7168)),
        (LINEAR_OLD, fp8(7168, 64)),
    ]


def test_the_same_model_on_todays_stack_has_one_expert_more_and_one_matrix_for_q_a_and_kv_a() -> None:
    assert places("DeepSeek-V3-0324-Block64x64", "sglang-0.5", layout(32)) == [
        (MOE_NEW, "E=257,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"),
        (MOE_NEW, "E=257,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64]_down.json"),
        (LINEAR_NEW, fp8(2112, 7168)),
        (LINEAR_NEW, fp8(768, 1536)),
        (LINEAR_NEW, fp8(1024, 512)),
        (LINEAR_NEW, fp8(7168, 512)),
        (LINEAR_NEW, fp8(1152, 7168)),
        (LINEAR_NEW, fp8(7168, 576)),
    ]


def test_int8_has_no_tuned_linear_files_and_its_name_says_per_channel_today() -> None:
    """So today's stack matches neither E nor the name of the file that upstream has for L40S (E=256,N=64, int8)."""
    assert places("DeepSeek-R1-Channel-INT8", "sglang-0.4.4", layout(32)) == [
        (MOE_OLD, "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json")
    ]
    assert places("DeepSeek-R1-Channel-INT8", "sglang-0.5", layout(32)) == [
        (MOE_NEW, "E=257,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json"),
        (MOE_NEW, "E=257,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down.json"),
    ]


def test_pipeline_stages_change_no_shape() -> None:
    stock = "DeepSeek-V3-0324"
    assert places(stock, "sglang-0.5", layout(8, pipeline=4)) == places(stock, "sglang-0.5", layout(8))
    assert (LINEAR_NEW, fp8(2 * 18432 // 8, 7168, 128)) in places(stock, "sglang-0.5", layout(8, pipeline=4))


def test_expert_parallelism_divides_e_keeps_n_and_ends_the_fusion() -> None:
    """128x128 blocks at TP32 with EP2: an expert is split 16 ways, dense layers and shared experts are not split."""
    found = places("DeepSeek-V3-0324", "sglang-0.5", layout(32, expert=2))
    assert found[0] == (MOE_NEW, "E=128,N=128,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json")
    linear = [name for folder, name in found if folder == LINEAR_NEW]
    assert fp8(2 * 18432, 7168, 128) in linear
    assert fp8(7168, 18432, 128) in linear
    assert fp8(2 * 2048, 7168, 128) in linear
    assert fp8(7168, 2048, 128) in linear


def test_expert_parallelism_where_the_cut_fits_keeps_dense_and_shared_layers_cut() -> None:
    linear = [name for _, name in places("DeepSeek-V3-0324-Block64x64", "sglang-0.5", layout(32, expert=2))]
    assert fp8(1152, 7168) in linear
    assert fp8(128, 7168) in linear


def test_another_gpu_is_in_the_name_with_underscores() -> None:
    assert device_name("NVIDIA H100 80GB HBM3") == "NVIDIA_H100_80GB_HBM3"
    assert all("NVIDIA_L20," in name for _, name in
               places("DeepSeek-V3-0324-Block64x64", "sglang-0.5", layout(32), gpu="NVIDIA L20"))  # fmt: skip


def test_the_variable_replaces_the_directory_of_moe_configs_only_and_only_today() -> None:
    new = places("DeepSeek-V3-0324-Block64x64", "sglang-0.5", layout(32), moe_directory="/opt/tuned/")
    assert new[0][0] == "/opt/tuned/configs/triton_3_8_0"
    assert new[2][0] == LINEAR_NEW
    old = places("DeepSeek-V3-0324-Block64x64", "sglang-0.4.4", layout(32), moe_directory="/opt/tuned/")
    assert old[0][0] == MOE_OLD


def test_bf16_names_neither_type_nor_block() -> None:
    plain = file_name(NEW, (("E", 8), ("N", 3584)), "NVIDIA_L40S", "", (0, 0))
    assert plain == "E=8,N=3584,device_name=NVIDIA_L40S.json"
    tiny = load_profile("tiny-deepseek-v3")
    assert [gemm.part for gemm in linears(tiny, layout(1), NEW)]
    assert all(one.kernel == "moe" for one in wanted_files(tiny, layout(1), NEW, gpu=L40S, triton="3.8.0"))


@pytest.mark.parametrize(
    ("architecture", "routed", "shared", "expert", "fused"),
    [
        ("DeepseekV3ForCausalLM", 256, 1, 1, True),
        ("DeepseekV3ForCausalLM", 256, 1, 2, False),
        ("DeepseekV3ForCausalLM", 160, 1, 1, False),
        ("DeepseekV3ForCausalLM", 384, 1, 1, False),
        ("DeepseekV3ForCausalLM", 256, 2, 1, False),
        ("DeepseekV2ForCausalLM", 256, 1, 1, False),
        ("Qwen3MoeForCausalLM", 128, 0, 1, False),
    ],
)
def test_when_the_shared_expert_is_fused(architecture: str, routed: int, shared: int, expert: int, fused: bool) -> None:
    fine = load_profile("DeepSeek-V3-0324-Block64x64")
    dims = replace(fine.dimensions, n_routed_experts=routed, n_shared_experts=shared)
    profile = replace(fine, architecture=architecture, dimensions=dims)
    for lookup, wanted in ((NEW, fused), (OLD, False)):
        moe = experts(profile, layout(32, expert=expert), lookup)
        assert moe == Experts(routed // expert + wanted, 64 * expert, wanted, 8 + wanted)


@pytest.mark.parametrize(
    ("folder", "version"),
    [("triton_3_8_0", (3, 8, 0)), ("triton_3_10_1", (3, 10, 1)), ("triton_", None), ("triton_3_1rc1", None),
     ("configs", None)],
)  # fmt: skip
def test_triton_folders(folder: str, version: tuple[int, ...] | None) -> None:
    assert triton_version(folder) == version


MOE_ROOT = MOE_NEW.rpartition("/")[0]


def up_and_down() -> tuple[Wanted, Wanted]:
    profile = load_profile("DeepSeek-V3-0324-Block64x64")
    up, down, *_ = wanted_files(profile, layout(32), NEW, gpu=L40S, triton="3.8.0")
    return up, down


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (("3_8_0", "3_1_0"), "3_8_0"),
        (("3_1_0", "3_5_1", "3_4_0"), "3_5_1"),
        (("3_9_0", "3_10_0", "3_1_0"), "3_10_0"),
        ((), ""),
    ],
)
def test_the_search_takes_its_own_triton_then_the_newest(there: tuple[str, ...], taken: str) -> None:
    up, _ = up_and_down()
    found = resolve(up, NEW, {f"{MOE_ROOT}/triton_{version}": {up.name} for version in there} | {LINEAR_NEW: set()})
    assert found == ((f"{MOE_ROOT}/triton_{taken}", up.name) if taken else ("", ""))


def test_the_down_projection_takes_its_own_file_from_any_triton_before_the_up_projections() -> None:
    up, down = up_and_down()
    both = {f"{MOE_ROOT}/triton_3_8_0": {up.name}, f"{MOE_ROOT}/triton_3_1_0": {down.name}}
    assert resolve(down, NEW, both)[1] == down.name
    del both[f"{MOE_ROOT}/triton_3_1_0"]
    assert resolve(down, NEW, both)[1] == up.name
    assert resolve(down, NEW, {}) == ("", "")


def test_the_old_version_and_linear_files_have_one_place_only() -> None:
    profile = load_profile("DeepSeek-V3-0324-Block64x64")
    moe, first, *_ = wanted_files(profile, layout(32), OLD, gpu=L40S, triton="3.1.0")
    elsewhere = {f"{MOE_OLD}/triton_3_1_0": {moe.name}, f"{LINEAR_OLD}/old": {first.name}}
    assert resolve(moe, OLD, elsewhere) == ("", "")
    assert resolve(first, OLD, elsewhere) == ("", "")
    assert resolve(first, OLD, {LINEAR_OLD: {first.name}}) == (LINEAR_OLD, first.name)
