"""The variables that `prepare` passes to its playbook for each node, and what it refuses before it changes any node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.wheels import small_stack, wheel

from orchestrator.engines.router import VERSION
from orchestrator.hosts.steps.bundle import bare, write_bundle
from orchestrator.hosts.steps.prepare import ON_REQUEST, TAGS, PrepareRequest, play_variables, prepare, sorted_bundles
from orchestrator.hosts.steps.stack import ROUTER_STACK, router_lock
from orchestrator.loading.profiles import load_stack, stack_file
from orchestrator.loading.resources import data_dir
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import InputError

CPU = "sglang-0.5.23-cpu"


def node(**given: Any) -> NodeSpec:
    return NodeSpec(**{"name": "a", "gang": "g", "node_rank": 0, "reach": Reach(host="a"), "stack": CPU, **given})


def become(user: str) -> Reach:
    return Reach(host="a", become=True, become_user=user)


def variables(spec: NodeSpec, folder: Path, **asked: Any) -> dict[str, Any]:
    return play_variables([spec], PrepareRequest(**asked), folder)


@pytest.mark.parametrize(
    ("spec", "engine_user", "up_becomes"),
    [
        (node(), "l40s", ""),
        (node(engine_user="sgl"), "sgl", ""),
        (node(reach=become("root")), "l40s", "root"),
        (node(reach=become("serving")), "serving", "serving"),
        (node(reach=become("serving"), engine_user="sgl"), "sgl", "serving"),
    ],
    ids=["nobody named", "named", "through root", "through another", "through another, and named"],
)
def test_who_runs_it_and_whom_up_becomes(spec: NodeSpec, engine_user: str, up_becomes: str, tmp_path: Path) -> None:
    host = variables(spec, tmp_path)["prepare_hosts"]["a"]
    assert (host["engine_user"], host["up_becomes"]) == (engine_user, up_becomes)


def test_prepare_is_root_whomever_up_becomes(tmp_path: Path) -> None:
    assert variables(node(reach=become("l40s")), tmp_path)["ansible_become_user"] == "root"
    assert "ansible_become" not in variables(node(), tmp_path), "the inventory decides"
    assert variables(node(), tmp_path, become=True)["ansible_become"] is True
    assert "geheim" not in str(variables(node(), tmp_path, become_password="geheim"))


def test_the_stack_is_installed_where_up_looks_for_it(tmp_path: Path) -> None:
    host = variables(node(), tmp_path)["prepare_hosts"]["a"]
    assert host["packages"] == list(load_stack(CPU).system_packages)
    assert (host["venv"], host["python"], host["bundle"]) == (f"/opt/l40s/venvs/{CPU}", "3.11", "")
    assert "torch==" in Path(host["lock"]).read_text()
    assert variables(node(venv="/srv/v"), tmp_path)["prepare_hosts"]["a"]["venv"] == "/srv/v"


def test_a_bundle_brings_its_own_lock_with_digests_and_its_python(tmp_path: Path) -> None:
    stack, bundle = a_bundle(tmp_path)
    host = variables(node(stack=None), tmp_path, bundle=bundle, stack=str(stack))["prepare_hosts"]["a"]
    assert (host["stack"], host["python"], host["bundle"]) == ("small", "3.12", str(bundle))
    assert "--hash=sha256:" in Path(host["lock"]).read_text()


def test_the_routers_host_gets_the_routers_packages_and_no_stack(tmp_path: Path) -> None:
    router = RouterSpec(node=NodeSpec(name="head", gang="router", node_rank=0, reach=Reach(host="head")), venv="/r")
    told = play_variables([node()], PrepareRequest(find_links="/wheels"), tmp_path, router=router)
    assert told["prepare_router"] == {"venv": "/r", "find_links": "/wheels"}
    assert list(told["prepare_hosts"]) == ["a"]
    assert "prepare_router" not in variables(node(), tmp_path)
    _, bundle = a_bundle(tmp_path)
    without = play_variables([], PrepareRequest(bundle=bundle), tmp_path, router=router)
    assert "prepare_router" not in without, "a bundle holds one stack only"
    its_own = router_bundle(tmp_path)
    told = play_variables([], PrepareRequest(bundle=bundle, router_bundle=its_own), tmp_path, router=router)
    given = told["prepare_router"]
    assert (given["bundle"], given["python"], given["venv"]) == (str(its_own), "3.12", "/r")
    assert "--hash=sha256:" in Path(given["lock"]).read_text()


def router_bundle(folder: Path) -> Path:
    wheels = folder / "router-wheels"
    wheels.mkdir()
    wheel(wheels, "smg", VERSION)
    return write_bundle(
        folder / "router.bundle",
        ROUTER_STACK,
        python="3.12",
        lock=f"smg=={VERSION}\n",
        folders={"wheels": wheels},
    ).path


def test_the_routers_host_gets_its_viewers_unless_a_gangs_node_is_the_same_machine(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"viewers": ("ann",), "state_dir": "/var/lib/l40s-deploy"}
    head = NodeSpec(name="head", gang="router", node_rank=0, reach=Reach(host="head", become=True), **settings)
    router = RouterSpec(node=head, venv="/r")
    told = play_variables([node()], PrepareRequest(), tmp_path, router=router)["prepare_router_viewers"]
    assert told == {
        "up_becomes": "root",
        "state_dir": "/var/lib/l40s-deploy",
        "viewers": ["ann"],
        "viewers_logs": False,
    }
    beside = replace(router, node=replace(head, reach=Reach(host="a")))
    assert "prepare_router_viewers" not in play_variables([node()], PrepareRequest(), tmp_path, router=beside)


def test_bundles_are_told_apart_by_what_they_name(tmp_path: Path) -> None:
    _, bundle = a_bundle(tmp_path)
    its_own = router_bundle(tmp_path)
    assert sorted_bundles([its_own, bundle]) == (bundle, its_own)
    assert sorted_bundles([its_own]) == (None, its_own)
    assert sorted_bundles([]) == (None, None)
    with pytest.raises(InputError, match="is the router's packages"):
        sorted_bundles([its_own, its_own])
    with pytest.raises(InputError, match="is not a complete bundle"):
        sorted_bundles([Path(__file__)])


def test_the_lock_is_of_the_release_that_we_speak_to() -> None:
    assert f"smg=={VERSION}" in bare(router_lock().read_text()).splitlines()
    assert RouterSpec.__dataclass_fields__["venv"].default == f"/opt/l40s/venvs/smg-{VERSION}"


def test_a_bundle_of_another_stack_or_kind_is_refused(tmp_path: Path) -> None:
    stack, bundle = a_bundle(tmp_path)
    with pytest.raises(InputError, match=f"contains the stack small, but a needs {CPU}"):
        variables(node(), tmp_path, bundle=bundle)
    contained = tmp_path / "small.yml"
    contained.write_text(f"{stack.read_text()}install: docker\nimage: sha256:{'8' * 64}\n")
    with pytest.raises(InputError, match="contains packages, but the file of the stack small has `install: docker`"):
        variables(node(), tmp_path, bundle=bundle, stack=str(contained))
    (tmp_path / "image").mkdir()
    (tmp_path / "image/image.tar").write_bytes(b"layers")
    write_bundle(
        tmp_path / "i", load_stack(str(contained)), python="3.11", lock="", folders={"image": tmp_path / "image"}
    )
    with pytest.raises(
        InputError, match="contains a container image, but the file of the stack small has `install: venv`"
    ):
        variables(node(), tmp_path, bundle=tmp_path / "i", stack=str(stack))


def test_a_stack_without_a_lock_is_refused_with_the_way_out(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    mine.write_bytes(stack_file("sglang-0.5.23").read_bytes())
    with pytest.raises(InputError, match="no lock file") as caught:
        variables(node(), tmp_path, stack=str(mine))
    assert "l40s_venv" in caught.value.fix


def test_a_stack_that_an_index_lacks_a_package_of_wants_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is on no package index") as caught:
        variables(node(stack="sglang-0.4.4-l40s"), tmp_path)
    assert "prepare --bundle" in caught.value.fix


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (PrepareRequest(nodes=("b",)), "--node"),
        (PrepareRequest(tags=("limit",)), "--tags"),
        (PrepareRequest(tags=("limits",), remove=True), "--tags"),
        (PrepareRequest(), "a"),
    ],
    ids=["a node", "a tag", "tags of a removal", "no stack"],
)
def test_input_is_refused_before_any_node_is_touched(request_: PrepareRequest, where: str) -> None:
    inventory = Inventory(path="/nonexistent", gangs=(GangSpec(name="g", nodes=(replace(node(), stack=None),)),))
    with pytest.raises(InputError) as caught:
        prepare(inventory, request_)
    assert caught.value.where == where


@pytest.mark.parametrize(("asked", "names"), [((), ("a", "b")), (("b",), ("b",))], ids=["all", "the spare alone"])
def test_a_spare_is_prepared(asked: tuple[str, ...], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def played(playbook: str, *, variables: dict[str, Any], only: tuple[str, ...], **_: Any) -> PerNode[Any]:
        given.update(playbook=playbook, hosts=variables["prepare_hosts"], only=only)
        return PerNode(values={}, failures={})

    monkeypatch.setattr("orchestrator.hosts.steps.prepare.run_playbook", played)
    spare = node(name="b", node_rank=1, spare=True, reach=Reach(host="b"))
    inventory = Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=(node(),), spares=(spare,)),))
    assert prepare(inventory, PrepareRequest(nodes=asked)).nodes == names
    assert (given["playbook"], given["only"], tuple(given["hosts"])) == ("prepare.yml", names, names)
    assert given["hosts"]["b"]["venv"] == f"/opt/l40s/venvs/{CPU}", "up looks for the stack there"


def test_every_tag_is_a_role_of_the_play() -> None:
    play = (data_dir("playbooks") / "prepare.yml").read_text()
    assert all(f"tags: [{tag}]" in play or f"tags: {tag}" in play for tag in TAGS)
    assert all((data_dir("playbooks") / "roles" / tag).is_dir() for tag in (*TAGS, *ON_REQUEST))
    assert all(f"tags: [never, {tag}]" in play for tag in ON_REQUEST)


def a_bundle(folder: Path) -> tuple[Path, Path]:
    stack = small_stack(folder / "stack", "3.11")
    lock, wheels = stack.with_suffix(".lock").read_text(), stack.parent / "wheels"
    write_bundle(folder / "b", load_stack(str(stack)), python="3.12", lock=lock, folders={"wheels": wheels})
    return stack, folder / "b"


def test_a_contained_stack_wants_its_image_and_no_packages(tmp_path: Path) -> None:
    file = tmp_path / "contained.yml"
    image = f"sha256:{'8' * 64}"
    file.write_text(
        f"name: contained\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\ninstall: docker\nimage: {image}\n"
    )
    host = variables(node(), tmp_path, stack=str(file))["prepare_hosts"]["a"]
    assert (host["install"], host["image"], host["gpus"]) == ("docker", image, True)
    assert (host["lock"], host["bundle"], host["image_archive"]) == ("", "", "")
    assert host["install_containers"] is False
    assert variables(node(), tmp_path)["prepare_hosts"]["a"]["install"] == "venv"
