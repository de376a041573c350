"""How a hub weighs what it hears: one idea a file."""
