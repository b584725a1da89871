"""Layouts: divisibility, by the arithmetic that SGLang's own checks use; names; models that a stack can't serve."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of

from orchestrator.engines.cuts import kept_whole
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.model.chosen import part
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import Dimensions, ModelProfile, ModelRefusal, NamedLayout
from orchestrator.model.topology import Gpu
from orchestrator.planning.dimensions import dimensions
from orchestrator.planning.layout import (
    ABILITIES,
    degrees,
    finer_block,
    laid_out,
    obstacles,
    refusal,
    refuse,
    tensor_ranks,
    usual,
    working,
)
from orchestrator.planning.offers import offer
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

STOCK = load_profile("DeepSeek-V3-0324")
FINE = load_profile("DeepSeek-V3-0324-Block64x64")
INT8 = load_profile("DeepSeek-R1-Channel-INT8")
TINY = load_profile("tiny-deepseek-v3")
WIDE = load_profile("tiny-deepseek-v3-tp32")
NEW, OLD = ABILITIES, frozenset(("attention",))


def choose(
    profile: ModelProfile, *, nodes: int = 4, gpus: int = 8, able: frozenset[str] = NEW, where: str = "", **pinned: int
) -> Layout:
    asked: dict[str, Any] = {f"{name}_parallel": degree for name, degree in pinned.items()}
    layout = usual(replace(profile, **asked), nodes, gpus)
    refuse(profile, layout, able, where=where)
    return layout


def on(tensor: int, pipeline: int = 1, expert: int = 1, *, nodes: int = 4, gpus: int = 8) -> Layout:
    return Layout(
        tensor_parallel=tensor, pipeline_parallel=pipeline, expert_parallel=expert, nnodes=nodes, gpus_per_node=gpus
    )


def test_why_tp32_is_out_for_128_blocks_and_what_works_instead() -> None:
    with pytest.raises(InputError) as caught:
        choose(STOCK, where="gang gang0")
    assert "18432/32 = 576 is not a multiple of the quantisation block 128" in caught.value.what
    assert "2048/32 = 64 is not a multiple of the quantisation block 128" in caught.value.what
    assert "re-block to 64x64 for TP32 (`checkpoint reblock --block 64`" in caught.value.fix
    assert "PP4 x TP8 (--layout pp4,tp8)" in caught.value.fix
    assert "(not measured" in caught.value.fix
    assert caught.value.where == "gang gang0"


def test_all_gpus_form_one_group_unless_somebody_pins() -> None:
    assert choose(FINE) == on(32)
    assert choose(TINY, nodes=2, gpus=1) == on(2, nodes=2, gpus=1)
    assert choose(STOCK, pipeline=4) == on(8, 4)
    assert choose(replace(STOCK, tensor_parallel=16, pipeline_parallel=2)) == on(16, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor": 16}, "needs 16 GPUs, but the gang has 4 nodes x 8 = 32"),
        ({"tensor": 16, "nodes": 1}, "but the gang has 1 node x 8 = 8"),
        ({"tensor": 12}, "128 attention heads are not divisible by 12"),
        ({"pipeline": 4, "able": OLD}, "no pipeline parallelism"),
        ({"tensor": 1, "pipeline": 32, "profile": TINY}, "can't be split into 32"),
        ({"nodes": 4, "gpus": 6, "pipeline": 6}, "end in the middle of a node"),
    ],
)
def test_a_layout_that_can_not_be_is_refused_with_its_arithmetic(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        choose(**{"profile": FINE, **changes})
    assert says in caught.value.what
    assert caught.value.fix


def test_a_gang_that_nothing_fits_says_so() -> None:
    with pytest.raises(InputError) as caught:
        choose(FINE, nodes=1, gpus=7, able=OLD)
    assert "no layout works on this gang's GPUs" in caught.value.fix or "layout that works" in caught.value.fix


def test_what_works_on_the_reference_cluster() -> None:
    piped = tuple(on(32 // stages, stages) for stages in (2, 4, 8, 16, 32))
    assert working(STOCK, nodes=4, gpus_per_node=8, able=ABILITIES - {"experts"}) == piped
    assert working(STOCK, nodes=4, gpus_per_node=8, able=NEW) == (on(32, expert=2), *piped)
    assert working(FINE, nodes=4, gpus_per_node=8, able=OLD) == (on(32),)


def test_expert_parallelism_lifts_the_limit_of_128_blocks_and_keeps_whole_what_can_not_be_cut() -> None:
    """sglang 0.5.23: 2048 / (32 / 2) = 128; 18432/32 and the shared expert's 2048/32 are no multiples of 128."""
    assert choose(STOCK, expert=2) == on(32, expert=2)
    assert kept_whole(STOCK, 32) == (True, True)
    assert kept_whole(FINE, 32) == (False, False)


@pytest.mark.parametrize(
    ("profile", "expert", "says"),
    [(STOCK, 3, "TP32 is not divisible by EP3"), (TINY, 16, "8 experts are not divisible by 16")],
)
def test_experts_that_can_not_be_spread(profile: ModelProfile, expert: int, says: str) -> None:
    assert says in " ".join(obstacles(profile, 32, expert))


def test_a_model_without_mla_is_cut_between_its_heads() -> None:
    """Qwen3-235B: 1536 / 8 = 192 is no multiple of 128, and 192 = 3 x 64; its heads have 128 and not 4096 / 64."""
    dims = Dimensions(
        hidden_size=4096, intermediate_size=12288, moe_intermediate_size=1536, num_hidden_layers=94,
        num_attention_heads=64, num_key_value_heads=4, vocab_size=151936, n_routed_experts=128, head_dim=128,
    )  # fmt: skip
    qwen = replace(STOCK, name="Qwen3-235B", dimensions=dims)
    assert [tensor for tensor in (1, 2, 4, 8, 16) if not obstacles(qwen, tensor)] == [1, 2, 4]
    found = [str(layout) for layout in working(qwen, nodes=1, gpus_per_node=8, able=NEW)]
    assert found == ["TP8 with EP2", "PP2 x TP4", "PP4 x TP2", "PP8 x TP1"]
    with pytest.raises(InputError) as caught:
        choose(qwen, nodes=1)
    assert "re-block to 64" in caught.value.fix


@pytest.mark.parametrize(
    ("model", "tensor", "block"),
    [
        ("MiniMax-M2", 8, 64),  # 1536 / 8 = 192
        ("MiniMax-M2", 16, 32),  # 1536 / 16 = 96
        ("MiniMax-M2", 4, 0),  # none is needed
        ("Qwen3-235B-A22B-Instruct-2507-FP8", 8, 64),
        ("DeepSeek-V3-0324", 32, 64),
        ("DeepSeek-V3-0324", 64, 32),
        ("DeepSeek-V3-0324", 7, 0),  # no block helps
        ("DeepSeek-R1-Channel-INT8", 64, 0),
    ],
)
def test_the_block_that_lets_a_degree_be_is_named(model: str, tensor: int, block: int) -> None:
    profile = load_profile(model)
    assert finer_block(profile, tensor) == block
    if block:
        assert obstacles(profile, tensor) and not obstacles(replace(profile, block=(block, block)), tensor)


def test_the_degree_that_was_asked_for_is_the_one_that_is_re_blocked_for() -> None:
    minimax = load_profile("MiniMax-M2")
    asked = Layout(tensor_parallel=8, pipeline_parallel=2, nnodes=2, gpus_per_node=8)
    with pytest.raises(InputError, match="1536/8 = 192") as caught:
        refuse(minimax, asked, NEW, where="gang gang0")
    assert (
        "re-block to 64x64 for PP2 x TP8 (" in caught.value.fix and "re-block to 32x32 for TP16 (" in caught.value.fix
    )


@given(nodes=st.sampled_from([1, 2, 3, 4, 8]), gpus=st.integers(1, 9), pipelines=st.booleans())
def test_whatever_is_listed_as_working_is_taken(nodes: int, gpus: int, pipelines: bool) -> None:
    able = NEW if pipelines else OLD
    for layout in working(FINE, nodes=nodes, gpus_per_node=gpus, able=able):
        refuse(FINE, layout, able, where="")
        ranks = [rank for node in range(nodes) for rank in tensor_ranks(layout, node)]
        assert ranks == list(range(layout.tensor_parallel)) * layout.pipeline_parallel


@pytest.mark.parametrize(
    ("tensor", "pipeline", "node", "ranks"),
    [
        (32, 1, 0, tuple(range(8))),
        (32, 1, 3, tuple(range(24, 32))),
        (8, 4, 2, tuple(range(8))),
        (16, 2, 3, tuple(range(8, 16))),
        (4, 8, 1, (0, 1, 2, 3, 0, 1, 2, 3)),
    ],
)
def test_ranks_of_a_nodes_gpus(tensor: int, pipeline: int, node: int, ranks: tuple[int, ...]) -> None:
    assert tensor_ranks(on(tensor, pipeline), node) == ranks


DEEPSEEK: dict[str, Any] = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
KIMI = {**DEEPSEEK, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384}
QWEN = {
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "num_experts": 128, "head_dim": 128,
}  # fmt: skip
MINIMAX = {
    "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "num_local_experts": 256, "head_dim": 128,
}  # fmt: skip
LLAMA = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "block", "allowed"),
    [
        (DEEPSEEK, (128, 128), [1, 2, 4, 8, 16]),
        (DEEPSEEK, (64, 64), [1, 2, 4, 8, 16, 32]),
        (DEEPSEEK, None, [1, 2, 4, 8, 16, 32, 64, 128]),
        (KIMI, (64, 64), [1, 2, 4, 8, 16, 32]),
        (QWEN, (128, 128), [1, 2, 4]),
        (MINIMAX, (128, 128), [1, 2, 4]),
        (LLAMA, (128, 128), [1, 2, 4, 8, 16, 32]),
        ({"text_config": DEEPSEEK}, (128, 128), [1, 2, 4, 8, 16]),
        (asdict(WIDE.dimensions), (64, 64), [1, 2, 4, 8, 16, 32]),
        (asdict(WIDE.dimensions), (128, 128), [1, 2, 4, 8, 16]),
    ],
)
def test_degrees(config: dict[str, Any], block: tuple[int, int] | None, allowed: list[int]) -> None:
    assert [degree for degree, refusal in degrees(dimensions(config), block).items() if not refusal] == allowed


def test_a_config_that_says_nothing() -> None:
    assert dimensions({"hidden_size": "large", "num_experts": None}).hidden_size == 0


NEW_STACK, OLD_STACK, CPU = (load_stack(name) for name in ("sglang-0.5.23", "sglang-0.4.4-l40s", "sglang-0.5.23-cpu"))
SPARSE = load_profile("DeepSeek-V3.2")


def gpu(name: str = "NVIDIA L40S", sm: int = 0) -> Gpu:
    found = next(iter(next(iter(topologies(gang()).values())).gpus))
    return replace(found, name=name, sm=sm)


def test_a_layout_brings_its_degrees_flags_and_environment() -> None:
    plan = plan_of(model=STOCK, layout="node-stages-pcie-ipc").gangs[0]
    assert (plan.layout.tensor_parallel, plan.layout.pipeline_parallel) == (8, 4)
    assert dict(plan.nodes[0].env)["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "1"
    assert dict(plan.nodes[0].sources)["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "profile DeepSeek-V3-0324"
    assert plan.nodes[0].argv[plan.nodes[0].argv.index("--pp-max-micro-batch-size") + 1] == "32"


@pytest.mark.parametrize(
    ("cut", "hidden", "tuned"),
    [((8, 4), 7168, True), ((8, 4), 3072, False), ((4, 8), 7168, False), ((4, 8), 4096, True)],
)
def test_a_plan_says_where_the_all_reduce_over_pcie_is_not_tuned(
    cut: tuple[int, int], hidden: int, tuned: bool
) -> None:
    env = (("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1"),)
    mine = NamedLayout(name="mine", tensor_parallel=cut[0], pipeline_parallel=cut[1], env=env)
    profile = replace(STOCK, layouts=(mine,), dimensions=replace(STOCK.dimensions, hidden_size=hidden))
    for layouts, wanted in (((mine,), not tuned), ((replace(mine, env=()),), False)):
        made = plan_of(model=replace(profile, layouts=layouts), layout="mine")
        assert ("PCIE-IPC-UNTUNED" in {one.id for one in made.findings}) is wanted


@pytest.mark.parametrize(
    ("name", "stack", "words"),
    [("nope", NEW_STACK, "no layout 'nope'"), ("node-stages", OLD_STACK, "needs SGLang 0.5")],
)
def test_a_layout_that_can_not_be_is_refused(name: str, stack: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        laid_out(STOCK, name, stack)  # type: ignore[arg-type]
    assert words in caught.value.what
    assert "--layout" in caught.value.where


@pytest.mark.parametrize(
    ("gpus", "refused"),
    [
        ((), True),
        ((gpu(),), True),
        ((gpu("NVIDIA H200", 90),), False),
        ((gpu("NVIDIA H100 80GB HBM3"),), False),
        ((gpu("NVIDIA H200", 90), gpu()), True),
        ((gpu("Somebody's GPU"),), True),
    ],
)
def test_the_weakest_gpu_decides(gpus: tuple[Gpu, ...], refused: bool) -> None:
    assert (refusal(SPARSE, NEW_STACK, gpus) is not None) is refused


def test_kernels_of_gpus_are_no_matter_on_a_cpu() -> None:
    assert refusal(SPARSE, CPU) is None


def test_a_version_that_lacks_the_model_is_refused_on_every_gpu() -> None:
    profile = replace(STOCK, refused=(ModelRefusal(versions="0.4", below=0, reason="why", source="where"),))
    assert refusal(profile, OLD_STACK, [gpu("NVIDIA H200", 90)]) is not None
    assert refusal(profile, NEW_STACK) is None


def test_a_plan_of_a_refused_model_names_the_reason_and_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        plan_of(model=SPARSE)
    assert "sparse attention" in caught.value.what
    assert "compute capability 9 or newer" in caught.value.fix


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_model_is_offered_on_the_reference_cluster_or_refused_with_a_reason(name: str) -> None:
    made = offer(load_profile(name), NEW_STACK if not name.startswith("tiny") else CPU, gang())
    assert made.fits or made.refusal
    assert not (made.fits and "kernels" in made.refusal)


@pytest.mark.parametrize("name", profile_names())
def test_named_layouts_of_shipped_models_work(name: str) -> None:
    profile = load_profile(name)
    for each in profile.layouts:
        spec = gang(each.tensor_parallel * each.pipeline_parallel // 8)
        plan = plan_of(spec, profile, layout=each.name)
        assert plan.gangs[0].memory.kv_tokens
        assert each.note


def test_multi_token_prediction_is_offered_by_name_with_its_budget() -> None:
    profile, spec = load_profile("DeepSeek-V3-0324-Block64x64"), gang()
    drafted, plain = (plan_of(spec, profile, layout=name).gangs[0] for name in ("mtp", ""))
    argv = drafted.nodes[0].argv
    assert argv[argv.index("--speculative-algorithm") + 1] == "EAGLE"
    assert drafted.memory.kv_tokens and plain.memory.kv_tokens and drafted.memory.kv_tokens < plain.memory.kv_tokens
    assert "--speculative-algorithm" not in plain.nodes[0].argv
    assert [fit.name for fit in offer(profile, NEW_STACK, spec).fits if str(fit.layout) == "TP32"] == [""]


def planned(
    profile: ModelProfile, left: tuple[str, ...], *, stack: str = "sglang-0.5.23", gpus: int = 8, **options: Any
) -> GangPlan:
    spec = part(gang(4, gpus=gpus), left)
    return plan_of(replace(spec, short=True), profile, stack, **options).gangs[0]


def degrees_of(plan: GangPlan) -> tuple[int, int]:
    return plan.layout.pipeline_parallel, plan.layout.tensor_parallel


@pytest.mark.parametrize("profile", [FINE, INT8], ids=["64x64", "int8"])
@pytest.mark.parametrize("lost", range(4))
def test_three_nodes_serve_as_stages_whoever_is_lost(profile: ModelProfile, lost: int) -> None:
    left = tuple(f"node{rank}" for rank in range(4) if rank != lost)
    plan = planned(profile, left)
    assert degrees_of(plan) == (3, 8)
    assert [node.name for node in plan.nodes] == list(left)
    assert [node.node_rank for node in plan.nodes] == [0, 1, 2]
    assert plan.service_url.startswith(f"http://{plan.nodes[0].network.address}:")
    assert plan.memory.kv_tokens and plan.memory.kv_tokens > 200_000


def test_the_usual_layout_stays_where_it_works() -> None:
    assert degrees_of(planned(FINE, ("node0", "node1", "node2", "node3"))) == (1, 32)
    assert degrees_of(planned(TINY, ("node0", "node1"), gpus=4)) == (1, 8)


def test_a_layout_of_the_profiles_list_comes_before_what_arithmetic_finds() -> None:
    named = NamedLayout(
        name="three", tensor_parallel=4, pipeline_parallel=6, versions="0.5", flags=(("--chunked-prefill-size", "64"),)
    )
    other = replace(named, name="of another version", tensor_parallel=2, pipeline_parallel=12, versions="0.4")
    plan = planned(replace(FINE, layouts=(other, named)), ("node0", "node1", "node3"))
    assert degrees_of(plan) == (6, 4)
    assert "--chunked-prefill-size" in plan.nodes[0].argv


def test_what_is_pinned_is_not_changed() -> None:
    assert degrees_of(planned(FINE, ("node0", "node1", "node2"), pp=6, tp=4)) == (6, 4)
    with pytest.raises(InputError, match="it needs 32 GPUs"):
        planned(FINE, ("node0", "node1", "node2"), tp=32)


def test_the_old_stack_has_no_pipelines_and_says_what_would_work() -> None:
    with pytest.raises(InputError) as caught:
        planned(FINE, ("node0", "node1", "node2"), stack="sglang-0.4.4-l40s")
    assert "TP24 does not work" in caught.value.what
    assert "PP3 x TP8 (--layout pp3,tp8)" in caught.value.fix
    assert "needs a stack with SGLang 0.5" in caught.value.fix


def test_weights_that_do_not_fit_two_nodes_are_refused() -> None:
    with pytest.raises(InputError):
        planned(FINE, ("node0", "node1"))
