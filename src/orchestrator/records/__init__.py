"""What the controller keeps of each run: folders, history."""
