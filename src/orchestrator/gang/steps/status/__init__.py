"""What runs, what failed, and why."""
