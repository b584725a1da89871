"""The plan exported for containers that are started by hand."""

from __future__ import annotations

import yaml
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of

from orchestrator.model.inventory import Overrides
from orchestrator.planning.steps.exports import compose_files


def test_a_compose_file_says_what_the_plan_says() -> None:
    evil = Overrides(env=(("NCCL_PRICE", "5$ \n: {"), ("HF_TOKEN", "hf_secret")))
    plan = plan_of(gang(overrides=evil))
    engine = yaml.safe_load(compose_files(plan)["node1"])["services"]["engine"]
    node = plan.gangs[0].nodes[1]
    assert engine["command"] == ["python3", *node.argv[1:]]
    assert engine["environment"]["NCCL_IB_HCA"] == dict(node.env)["NCCL_IB_HCA"]
    assert engine["environment"]["NCCL_PRICE"] == "5$$ \n: {"
    assert engine["environment"]["HF_TOKEN"] == "${HF_TOKEN:?put it into .env}"
    assert (engine["restart"], engine["network_mode"], engine["devices"]) == ("no", "host", ["/dev/infiniband"])
    gpus = engine["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    assert gpus == [str(gpu) for gpu in node.gpus]
