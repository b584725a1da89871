"""The configuration of LiteLLM names what this program serves, where its router does."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import yaml
from tests.support.reference_cluster import gang

from orchestrator.loading.profiles import profile_names
from orchestrator.model.inventory import RouterSpec

FILE = Path(__file__).parents[3] / "docs/litellm.yml"


def test_it_asks_the_router_for_models_that_there_are() -> None:
    document = yaml.safe_load(FILE.read_text("utf-8"))
    router = RouterSpec(node=gang().leader)
    for model in document["model_list"]:
        provider, _, name = model["litellm_params"]["model"].partition("/")
        assert provider == "hosted_vllm" and name in profile_names()
        place = urlsplit(model["litellm_params"]["api_base"])
        assert (place.scheme, place.port, place.path) == (router.scheme, router.port, "/v1")
        assert model["litellm_params"]["api_key"].startswith("os.environ/")
    assert document["general_settings"]["master_key"].startswith("os.environ/")
