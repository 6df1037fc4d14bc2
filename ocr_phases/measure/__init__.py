"""A page to a record: the request, its runs, and what is measured after them."""
