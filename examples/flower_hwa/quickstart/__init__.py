"""A PyTorch app for Flower."""
