"""Federated learning that weighs each client's parameters by evidence."""
