"""What one client computes: models as pure functions, batches, solvers, curvature, keyed randomness."""
