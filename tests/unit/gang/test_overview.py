"""The router of `status --json`: which models it sends requests for, and to which gangs."""

from __future__ import annotations

from orchestrator.engines.serving import ServedModel, Worker
from orchestrator.gang.overview import RouterGlance
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState

GLM, GPT = ServedModel("glm"), ServedModel("gpt-oss", ("default",))


def gang(name: str, model: str) -> GangView:
    return GangView(name=name, state=GangState.READY, model=model, service_url=f"http://{name}:1/")


def worker(name: str, *models: ServedModel) -> Worker:
    return Worker(id=name, url=f"http://{name}:1", healthy=True, load=0, models=models)


def test_models_are_listed_with_the_gangs_that_the_router_has() -> None:
    views = (gang("a", "glm"), gang("b", "gpt-oss"), gang("c", "glm"), gang("d", "glm"))
    workers = (worker("b", GPT), worker("a", GLM), worker("c", GLM))
    told = RouterGlance(url="u", node="head", state=GangState.READY, workers=workers).as_json(views)
    assert told["models"] == [
        {"name": "glm", "aliases": [], "gangs": ["a", "c"]},
        {"name": "gpt-oss", "aliases": ["default"], "gangs": ["b"]},
    ]


def test_of_a_router_that_does_not_look_at_models_they_are_the_gangs_own() -> None:
    told = RouterGlance(url="u", node="head", state=GangState.READY, workers=(worker("a"),)).as_json([gang("a", "glm")])
    assert told["models"] == [{"name": "glm", "aliases": [], "gangs": ["a"]}]


def test_what_was_not_read_is_no_empty_list() -> None:
    assert RouterGlance(url="u", node="head").as_json([gang("a", "glm")])["models"] is None
