"""A lab from request to removal."""
