"""What runs on a node in place of its engine: like the engine, and stopped when its reader is gone."""
