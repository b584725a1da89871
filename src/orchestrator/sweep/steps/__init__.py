"""The order of the steps: these files own the clock, the waiting and the outside world."""
