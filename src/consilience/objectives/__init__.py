"""How a client trains: one idea a file."""
