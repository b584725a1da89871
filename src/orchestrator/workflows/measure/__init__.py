"""A serving gang measured: is the text right, is the speed normal."""
