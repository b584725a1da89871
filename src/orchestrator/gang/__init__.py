"""view(reports, now) and actions(goal, view): the state of a gang, and what to do next. Pure."""
