"""What crosses a network: the wire format."""
