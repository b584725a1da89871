"""Weight files in the page cache: which ones, how many, and the process that reads them."""
