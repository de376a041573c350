"""One exchange of messages, in a simulation or over a network."""
