"""view(reports, now) and actions(goal, view): what a gang is and what to do next. Pure."""
