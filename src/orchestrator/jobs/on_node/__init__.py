"""Programs of the controller on a node, in place of its engine or beside it; stopped when their reader is gone."""
