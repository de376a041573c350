"""A federation, live, on one page: what its files say, what other monitors say, and a small server."""
