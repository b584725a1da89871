"""What one scrape saw, as metrics."""

from __future__ import annotations

from orchestrator.monitoring import catalogue as names
from orchestrator.monitoring.family import Families, Family
from orchestrator.monitoring.gangs import gang_figures
from orchestrator.monitoring.hardware import hardware_figures
from orchestrator.monitoring.measured import measured_figures
from orchestrator.monitoring.scene import Scene


def metrics(scene: Scene) -> tuple[Family, ...]:
    """Every family that has a sample or could have one. A node that did not answer has l40s_node_up 0, and no figure
    of its hardware: an old one would pass for a new one."""
    families = Families()
    families.add(names.EXPORTER_INFO, 1, version=scene.version)
    families.add(names.SCRAPE_SECONDS, scene.seconds)
    gang_figures(families, scene)
    hardware_figures(families, scene)
    measured_figures(families, scene)
    return families.done()
