"""What runs on a node in its engine's place: as the engine would, and gone when nobody reads any more."""
