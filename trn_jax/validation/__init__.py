"""Published measurements against the model: read a table, build each row's workload, time it, compare.

measurement -> workloads (or counters, kernels) -> predict -> compare -> text, JSON, docs/accuracy.md
"""
