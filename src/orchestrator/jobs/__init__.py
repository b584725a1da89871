"""Work that runs in an engine's place: staged, watched and collected as the engine itself is."""
