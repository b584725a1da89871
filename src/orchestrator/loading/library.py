"""The model profiles and stacks that a name may mean: who plans, checks and starts needs not know how they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # most verbs name no model
    from orchestrator.model.profile import ModelProfile, Stack


class Library:
    """Set where a process starts (`profiles`, `stacks`).

    profile: of this name, or in this .yml file; raises InputError with the nearest names
    models:  every model that there is a profile for, sorted
    stack:   as `profile`
    """

    profile: ClassVar[Callable[[str], ModelProfile]]
    models: ClassVar[Callable[[], tuple[str, ...]]]
    stack: ClassVar[Callable[[str], Stack]]
