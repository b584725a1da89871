"""Every scenario."""

from __future__ import annotations

from tests.contract.scenarios.deaths import DEATHS
from tests.contract.scenarios.gang import GANG
from tests.contract.scenarios.life import LIFE
from tests.contract.scenarios.old import OLD
from tests.contract.scenarios.rolling import ROLLING
from tests.contract.scenarios.starts import STARTS

SCENARIOS = (LIFE, *DEATHS, *STARTS, ROLLING, GANG, *OLD)
