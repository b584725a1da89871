"""view(reports, now) and next_step(goal, view): the state of a gang, and what to do next. Pure."""
