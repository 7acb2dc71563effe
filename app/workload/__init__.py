"""What the built-in workload sends, and when."""
