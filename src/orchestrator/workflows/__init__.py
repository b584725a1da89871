"""The order of the steps of each verb. Workflows own the clock and the waiting; they print nothing."""
