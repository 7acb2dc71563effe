"""The panel at the left: everything about the engine and its workload that can change while it runs."""
