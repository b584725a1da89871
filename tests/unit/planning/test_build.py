"""The complete plan: what the articles launched by hand, and what is refused before anything starts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import reference_plan
from tests.support.reference_cluster import gang, gpu, topologies

from orchestrator.engines.registry import dialect, engine_of
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.loading.resources import data_dir
from orchestrator.model.inventory import GangSpec, Overrides, Reach
from orchestrator.model.plan import Plan
from orchestrator.model.topology import Topology
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.host import HostFacts
from orchestrator.planning.plan_file import facts_digest, plan_json
from orchestrator.protocol.errors import FindingsError, InputError
from orchestrator.protocol.staging import Asked, NodePlan

HOSTS = {f"node{number}": HostFacts(user="root", home="/root", cpu_count=64) for number in range(8)}
INT8 = "DeepSeek-R1-Channel-INT8"
GIB = 1 << 30


def plan_of(spec: GangSpec, facts: dict[str, Topology] | None = None, **options: Any) -> Plan:
    return reference_plan.plan_of(spec, facts=facts, **{"stack": "sglang-0.4.4-l40s", "hosts": HOSTS, **options})


def nodes(plan: Plan) -> tuple[NodePlan, ...]:
    return plan.gangs[0].nodes


@pytest.mark.parametrize("name", ["sglang-0.4.4-l40s", "sglang-0.5.23"])
def test_a_stack_copied_under_another_name_plans_the_same(name: str, tmp_path: Path) -> None:
    """No decision depends on a stack's name."""
    text = (data_dir("inventory") / "stacks" / f"{name}.yml").read_text("utf-8")
    (tmp_path / "mine.yml").write_text(text.replace(f"name: {name}\n", "name: mine\n"))
    spec = gang(venv="/opt/engine")
    mine, ours = plan_of(spec, stack=str(tmp_path / "mine.yml")), plan_of(spec, stack=name)
    assert [node.argv for node in nodes(mine)] == [node.argv for node in nodes(ours)]
    assert mine.gangs[0].memory == ours.gangs[0].memory
    copied = load_stack(str(tmp_path / "mine.yml"))
    assert (copied.name, engine_of(copied)) == ("mine", engine_of(load_stack(name)))


def test_an_engine_version_that_no_dialect_lists_is_said_in_the_plan(tmp_path: Path) -> None:
    text = (data_dir("inventory") / "stacks" / "sglang-0.5.23.yml").read_text("utf-8")
    (tmp_path / "mine.yml").write_text(text.replace("engine_version: 0.5.23", "engine_version: 0.5.18"))
    (found,) = (
        one for one in plan_of(gang(), stack=str(tmp_path / "mine.yml")).findings if one.id == "ENGINE-UNLISTED"
    )
    assert "0.5.18" in found.title and "0.5.17" in found.title


@pytest.mark.parametrize("asked_by", ["after --", "l40s_args", "profile", "stack"])
def test_memory_is_computed_from_whoever_asked_for_a_flag(asked_by: str) -> None:
    words = ("--mem-fraction-static", "0.8")
    spec = gang(overrides=Overrides(args=words if asked_by == "l40s_args" else ()))
    profile, stack = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
    if asked_by == "profile":
        profile = replace(profile, flags=(("", *words),))
    if asked_by == "stack":
        stack = replace(stack, flags=(words,))
    extra = words if asked_by == "after --" else ()
    plan = plan_of(spec, model=profile, stack=stack, extra_args=extra)
    assert plan_json(plan)["gangs"][0]["memory"]["static_fraction"] == 0.8
    assert plan.gangs[0].memory.kv_tokens != plan_of(gang(), stack="sglang-0.5.23").gangs[0].memory.kv_tokens


def test_every_value_has_a_source() -> None:
    for stack in ("sglang-0.4.4-l40s", "sglang-0.5.23", "sglang-0.5.23-cpu"):
        spec = gang(gpus=1) if stack.endswith("cpu") else gang()
        model = "tiny-deepseek-v3" if stack.endswith("cpu") else "DeepSeek-R1-Channel-INT8"
        for node in nodes(plan_of(spec, stack=stack, model=model)):
            flags = [word for word in node.argv if word.startswith("--")]
            assert {name for name, source in node.sources.items() if source} == {*dict(node.env), *flags}


@pytest.mark.parametrize("stack", ["sglang-0.4.4-l40s", "sglang-0.5.23"])
@pytest.mark.parametrize("model", [name for name in profile_names() if "64x64" in name or "INT8" in name])
def test_the_command_of_every_model_that_fits_is_one_that_the_version_takes(model: str, stack: str) -> None:
    flags = engine_of(load_stack(stack)).flags()
    for node in nodes(plan_of(gang(), model=model, stack=stack)):
        assert flags.given(node.argv[3:], where="argv")


@pytest.mark.parametrize(
    ("extra", "sizes", "graph_mib"),
    [
        ((), ["1", "2", "48"], 96),
        (("--cuda-graph-max-bs-decode", "8"), None, 16),
        (("--cuda-graph-bs-decode", "1", "4"), ["1", "4"], 8),
    ],
)
def test_memory_follows_the_sizes_of_the_profile_and_an_operators_own(
    extra: tuple[str, ...], sizes: list[str] | None, graph_mib: int, tmp_path: Path
) -> None:
    name = "DeepSeek-R1-Channel-INT8"
    file = tmp_path / f"{name}.yml"
    text = (data_dir("inventory") / "models" / file.name).read_text("utf-8")
    file.write_text(f"{text}\ngraphs: {{'0.5': {{sizes: [1, 2, 48]}}, '0.4.4': {{max_bs: 96}}}}\n")
    plan = plan_of(gang(), model=str(file), stack="sglang-0.5.23", extra_args=extra)
    argv = list(nodes(plan)[0].argv)
    at = argv.index("--cuda-graph-bs-decode") if "--cuda-graph-bs-decode" in argv else None
    assert (at is None) == (sizes is None)
    assert at is None or argv[at + 1 : at + 1 + len(sizes or ())] == sizes
    assert f" 2 x {graph_mib // 2} (decode graphs)" in " ".join(plan.gangs[0].memory.explanation)
    old = nodes(plan_of(gang(), model=str(file)))[0].argv
    assert old[old.index("--cuda-graph-max-bs") + 1] == "96" and "--cuda-graph-bs" not in old


def test_the_class_of_a_lossless_fabric_is_the_inventorys() -> None:
    env = dict(nodes(plan_of(gang(overrides=Overrides(ib_tc=106, ib_sl=3))))[0].env)
    assert (env["NCCL_IB_TC"], env["NCCL_IB_SL"]) == ("106", "3")
    assert not {"NCCL_IB_TC", "NCCL_IB_SL"} & set(dict(nodes(plan_of(gang()))[0].env))


def test_vocabularies_that_lie_there_are_told_to_the_engine() -> None:
    hosts = {"node0": HostFacts(vocabularies=True), "node1": HostFacts(vocabularies=False)}
    first, second = nodes(plan_of(gang(2, gpus=1), model="tiny-deepseek-v3", stack="sglang-0.5.23-cpu", hosts=hosts))
    assert dict(first.env)["TIKTOKEN_ENCODINGS_BASE"] == "/opt/l40s/venvs/sglang-0.5.23-cpu/vocabularies"
    assert "TIKTOKEN_ENCODINGS_BASE" not in dict(second.env)


def test_an_engine_on_cpu_binds_each_rank() -> None:
    hosts = {"node0": HostFacts(home="/root", user="root", cpu_count=2), "node1": HostFacts(cpu_count=1)}
    several = nodes(plan_of(gang(2, gpus=4), model="tiny-deepseek-v3", stack="sglang-0.5.23-cpu", hosts=hosts))
    bound = [dict(node.env)["SGLANG_CPU_OMP_THREADS_BIND"] for node in several]
    assert bound == ["0-1|0-1|0-1|0-1", "0|0|0|0"], "the engine refuses fewer entries than ranks"


def test_one_node_gets_neither_rendezvous_nor_transport() -> None:
    (node,) = nodes(plan_of(gang(1), model="tiny-deepseek-v3", stack="sglang-0.5.23"))
    assert "--dist-init-addr" not in node.argv
    assert not {"NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"} & set(dict(node.env))


def test_without_facts_it_plans_tcp_and_says_what_was_not_read() -> None:
    plan = plan_of(gang(), {})
    env = dict(nodes(plan)[0].env)
    assert env["NCCL_NET"] == "Socket"
    assert "GLOO_SOCKET_IFNAME" not in env
    assert nodes(plan)[0].gpus == tuple(range(8))
    assert [finding.id for finding in plan.findings].count("FACTS-UNREAD") == 4


def test_facts_of_one_node_missing_is_not_taken_for_rdma() -> None:
    facts = topologies(gang())
    del facts["node3"]
    assert dict(nodes(plan_of(gang(), facts))[0].env)["NCCL_NET"] == "Socket"


def test_a_lost_gpu_stops_with_its_reason() -> None:
    facts = topologies(gang())
    broken = (*facts["node1"].gpus[:7], gpu(7, lost="GPU is lost"))
    facts["node1"] = replace(facts["node1"], gpus=broken)
    with pytest.raises(FindingsError) as caught:
        plan_of(gang(), facts)
    assert caught.value.where == "node node1"
    assert "7 GPUs respond, but l40s_gpus is 8" in caught.value.what
    assert "GPU is lost" in caught.value.what


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("4", "1"), (4, 1)),
        (("GPU-5", "0000:00:03.0"), (5, 3)),
        (("02:00.0", "2"), None),
        (("7", "9"), None),
        (("6", "1"), None),
    ],
)
def test_ranks_get_the_gpus_that_are_named_and_no_others(
    names: tuple[str, ...], wanted: tuple[int, ...] | None
) -> None:
    spec = gang(16, gpus=2, gpu_names=names)
    every = [gpu(n, uuid=f"GPU-{n}", address=f"0000:00:0{n}.0", lost="GPU is lost" * (n == 6)) for n in range(8)]
    facts = {name: replace(seen, gpus=tuple(every)) for name, seen in topologies(spec).items()}
    if wanted is None:
        with pytest.raises(FindingsError, match="1 GPUs respond, but l40s_gpus is "):
            plan_of(spec, facts)
        return
    node = nodes(plan_of(spec, facts))[0]
    assert (node.gpus, dict(node.env)["CUDA_VISIBLE_DEVICES"]) == (wanted, ",".join(map(str, wanted)))


def test_a_lost_gpu_among_those_that_a_count_means_moves_no_rank() -> None:
    spec = gang(8, gpus=4)

    def without(lost: int) -> Plan:
        every = tuple(gpu(n, lost="GPU is lost" * (n == lost)) for n in range(8))
        return plan_of(spec, {name: replace(seen, gpus=every) for name, seen in topologies(spec).items()})

    with pytest.raises(FindingsError, match="3 GPUs respond, but l40s_gpus is 4"):
        without(2)
    plan = without(6)
    node = nodes(plan)[0]
    assert (node.gpus, dict(node.env)["CUDA_VISIBLE_DEVICES"]) == ((0, 1, 2, 3), "0,1,2,3")
    assert any("0 at 0000:16:00.0: NVIDIA L40S" in value for _, name, value in plan.facts if name == "gpus")


def test_flags_from_the_command_line_replace_ours_and_say_so() -> None:
    node = nodes(plan_of(gang(), extra_args=("--cuda-graph-max-bs", "64", "--enable-metrics")))[0]
    assert node.argv.count("--cuda-graph-max-bs") == 1
    assert node.argv[node.argv.index("--cuda-graph-max-bs") + 1] == "64"
    assert dict(node.sources)["--cuda-graph-max-bs"] == (
        "override: the command line, instead of --cuda-graph-max-bs 32"
    )
    assert "--enable-metrics" in node.argv
    assert (node.graph_batch, nodes(plan_of(gang()))[0].graph_batch) == (64, 32)


def test_overrides_of_the_inventory_are_shown_as_such() -> None:
    spec = gang(overrides=Overrides(env=(("NCCL_DEBUG", "WARN"), ("MINE", "a b")), args=("--show-time-cost",)))
    node = nodes(plan_of(spec))[0]
    assert dict(node.env)["NCCL_DEBUG"] == "WARN"
    assert dict(node.sources)["NCCL_DEBUG"] == "override: l40s_env in the inventory, instead of INFO"
    assert dict(node.sources)["--show-time-cost"] == "override: l40s_args in the inventory"
    assert dict(node.env)["MINE"] == "a b"


@pytest.mark.parametrize(
    ("changes", "options", "where", "says"),
    [
        ({}, {"extra_args": ("--cuda-graph-max-bs-decode", "32")}, "command line: after --", "no flag"),
        ({}, {"extra_args": ("--tp-size", "8")}, "command line: after --", "set by the plan"),
        ({}, {"extra_args": ("--tensor-parallel-size", "8")}, "command line: after --", "set by the plan"),
        ({}, {"extra_args": ("--ep-size", "8")}, "command line: after --", "set by the plan"),
        ({}, {"extra_args": ("--dp-size", "4")}, "command line: after --", "set by the plan"),
        ({"gpus": 7}, {"extra_args": ("--tpp", "1")}, "command line: after --", "no flag --tpp"),
        ({}, {"extra_args": ("--device", "cpu")}, "command line: after --", "stack sglang-0.4.4-l40s is for cuda"),
        ({}, {"extra_args": ("--nccl-port", "5"), "stack": "sglang-0.5.23"}, "command line: after --", "by the plan"),
        ({}, {"extra_args": ("--api-key", "x")}, "command line: after --", "set by the plan"),
        ({}, {"extra_args": ("--config", "x"), "stack": "sglang-0.5.23"}, "command line: after --", "set by the plan"),
        ({"overrides": Overrides(args=("--nope",))}, {}, "inventory: node0: l40s_args", "no flag --nope"),
        ({"overrides": Overrides(env=(("A B", "1"),))}, {}, "inventory: node0: l40s_env", "environment variable"),
        ({}, {"tp": 16}, "gang gang0", "needs 16 GPUs"),
        ({}, {"pp": 4}, "gang gang0", "no pipeline parallelism"),
    ],
)
def test_what_is_refused_before_anything_starts(
    changes: dict[str, Any], options: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(gang(**changes), **options)
    assert caught.value.where == where
    assert says in caught.value.what
    assert caught.value.fix


def test_another_key_is_another_plan() -> None:
    """Whom it reaches, and how: tests/golden/plan/an-api-key and in-docker."""
    keys: tuple[dict[str, str], ...] = ({}, {"gang0": "3fa9"}, {"gang0": "3fb0"})
    assert len({plan_of(gang(), api_keys=one).plan_id for one in keys}) == len(keys)
    newer = nodes(plan_of(gang(), stack="sglang-0.5.23", api_keys=keys[1]))
    config = "--config /var/lib/l40s-deploy/gangs/gang0/engine-secrets.yml"
    assert [config in " ".join(node.argv) for node in newer] == [True, False, False, False]


def test_a_stack_that_is_launched_otherwise_has_no_place_for_a_key() -> None:
    spec = gang()
    stack = replace(load_stack("sglang-0.4.4-l40s"), launch=("sglang", "serve"))
    with pytest.raises(InputError, match="python3 -m MODULE"):
        plan_of(spec, stack=stack, api_keys={"gang0": "3fa9"})


def test_every_node_of_a_gang_has_as_many_gpus() -> None:
    spec = gang(2)
    with pytest.raises(InputError, match="different numbers of GPUs"):
        plan_of(replace(spec, nodes=(spec.nodes[0], replace(spec.nodes[1], gpus=4))), {})


@pytest.mark.parametrize(
    ("changes", "host", "home", "state"),
    [
        ({}, HostFacts(user="root", home="/root"), "/root", "/var/lib/l40s-deploy"),
        ({}, HostFacts(user="ann", home="/home/ann"), "/home/ann", "/home/ann/.local/state/l40s-deploy"),
        ({"state_dir": "/srv/l40s/"}, HostFacts(user="ann", home="/home/ann"), "/home/ann", "/srv/l40s"),
        ({"engine_user": "l40s"}, HostFacts(user="root", home="/root"),
         "/var/lib/l40s-deploy/cache/sglang-0.4.4-l40s", "/var/lib/l40s-deploy"),
        ({"reach": Reach(host="10.0.0.11", become=True)}, HostFacts(),
         "/var/lib/l40s-deploy/cache/sglang-0.4.4-l40s", "/var/lib/l40s-deploy"),
    ],
)  # fmt: skip
def test_homes_and_caches_are_the_engine_users_own(
    changes: dict[str, Any], host: HostFacts, home: str, state: str
) -> None:
    node = nodes(plan_of(gang(1, **changes), model="tiny-deepseek-v3", hosts={"node0": host}))[0]
    assert dict(node.env)["HOME"] == home
    assert node.working_dir == state
    assert dict(node.env)["TRITON_CACHE_DIR"] == f"{state}/cache/sglang-0.4.4-l40s/triton"


def test_the_service_answers_where_the_operator_asked() -> None:
    assert plan_of(gang()).gangs[0].service_url == "http://10.0.0.11:8000"
    assert plan_of(gang(http_host="10.9.9.9")).gangs[0].service_url == "http://10.9.9.9:8000"


def test_the_same_inputs_give_the_same_plan_and_other_facts_another_digest() -> None:
    first, again = plan_of(gang()), plan_of(gang())
    assert first == again
    facts = topologies(gang())
    facts["node2"] = replace(facts["node2"], rdma=facts["node2"].rdma[:3])
    changed = plan_of(gang(), facts)
    assert changed.facts_digest != first.facts_digest
    assert changed.plan_id != first.plan_id
    different = {fact[:2] for fact in set(first.facts) ^ set(changed.facts)}
    assert different == {("node2", "rdma ports")}


def test_the_digest_of_facts_minds_no_order() -> None:
    facts = [("b", "x", "1"), ("a", "y", "2")]
    assert facts_digest(facts) == facts_digest(reversed(facts)) != facts_digest(facts[:1])


def test_the_time_for_a_plan_grows_with_the_nodes_alone() -> None:
    """Eight times the nodes take about eight times the processor; if each were compared with all others, 64 times.
    Beside much else, caches are cold: one of three pairs is enough."""
    assert any(_seconds_to_plan(256) < 24 * _seconds_to_plan(32) for _ in range(3))


def _seconds_to_plan(nodes: int) -> float:
    gangs = [gang(4, name=f"gang{number}", first=4 * number) for number in range(nodes // 4)]
    facts = {name: topology for spec in gangs for name, topology in topologies(spec).items()}
    profile, stack = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
    begun = time.process_time()
    plan = build_plan(gangs, profile, stack, Asked(model=profile.name), PlanFacts(topologies=facts))
    assert sum(len(planned.nodes) for planned in plan.gangs) == nodes
    return time.process_time() - begun


FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER"


@pytest.mark.parametrize(
    ("asked", "stack", "on", "title"),
    [
        ({}, "sglang-0.5.23", False, ""),
        ({"port_failover": True}, "sglang-0.5.23", True, "NCCL's port failover is on"),
        ({"env": ((FAILOVER, "1"),)}, "sglang-0.5.23", True, "NCCL's port failover is on"),
        ({"port_failover": True}, "sglang-0.4.4-l40s", False, "NCCL can't fail over here"),
        ({"port_failover": True, "ib_hca": "=mlx5_0:1,mlx5_2:1"}, "sglang-0.5.23", False, "NCCL can't fail over here"),
        ({"port_failover": True, "env": ((FAILOVER, "0"),)}, "sglang-0.5.23", False, "NCCL can't fail over here"),
    ],
)
def test_port_failover_is_off_unless_it_is_asked_for_and_what_is_known_is_said(
    asked: dict[str, Any], stack: str, title: str, *, on: bool
) -> None:
    plan = plan_of(gang(overrides=Overrides(**asked)), stack=stack)
    assert {dict(node.env).get(FAILOVER) == "1" for node in nodes(plan)} == {on}
    told = [one for one in plan.findings if one.id == "PORT-FAILOVER"]
    assert [one.title.partition(": ")[2].endswith(title) for one in told] == [True] * bool(title)
    assert not on or "NVIDIA/nccl#2334" in told[0].effect


def test_port_failover_wants_every_node_to_ask_for_it() -> None:
    spec = gang(overrides=Overrides(port_failover=True))
    spec = replace(spec, nodes=(*spec.nodes[:3], replace(spec.nodes[3], overrides=Overrides())))
    assert not any(FAILOVER in dict(node.env) for node in nodes(plan_of(spec)))


@pytest.mark.parametrize(("mbps", "sockets"), [(200_000, True), (100_000, True), (25_000, False), (0, False)])
def test_more_sockets_only_where_nccls_manual_advises_them(mbps: int, *, sockets: bool) -> None:
    spec = gang(transport="tcp")
    facts = {
        name: replace(topology, interfaces=tuple(replace(one, speed_mbps=mbps) for one in topology.interfaces))
        for name, topology in topologies(spec).items()
    }
    for node in nodes(plan_of(spec, facts=facts)):
        assert ("NCCL_NSOCKS_PERTHREAD" in dict(node.env)) == sockets


def test_an_unlisted_version_has_the_flags_and_layouts_of_the_one_that_it_is_treated_as() -> None:
    listed = replace(load_stack("sglang-0.5.23"), engine_version=dialect("sglang-0.5").versions[-1])
    other = replace(listed, engine_version="0.6.0")
    profile = load_profile("DeepSeek-V3-0324-Block64x64")
    asked = replace(
        profile,
        flags=(*profile.flags, ("0.5", "--max-running-requests", "7")),
        env=(*profile.env, ("0.5", "SGLANG_OF_PROFILE", "1")),
    )
    near, far = (reference_plan.plan_of(model=asked, stack=stack).gangs[0].nodes[0] for stack in (listed, other))
    assert ("--max-running-requests", "7") in far.flags
    assert dict(far.env)["SGLANG_OF_PROFILE"] == "1"
    assert (far.flags, far.env) == (near.flags, near.env)


@pytest.mark.parametrize("version", dialect("sglang-0.5").versions)
def test_the_largest_graph_of_the_command_is_the_one_that_memory_is_counted_for(version: str) -> None:
    stack = replace(load_stack("sglang-0.5.23"), engine_version=version)
    gang_plan = reference_plan.plan_of(model=load_profile("DeepSeek-V3-0324-Block64x64"), stack=stack).gangs[0]
    assert (engine_of(stack).names.cuda_graph_max_bs, "32") in gang_plan.nodes[0].flags
    assert gang_plan.memory is not None and " 2 x 32 (decode graphs)" in " ".join(gang_plan.memory.explanation)
