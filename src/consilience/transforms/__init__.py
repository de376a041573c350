"""What can be done to the messages of any method: one idea a file."""
