"""What was measured and lies in files: speeds of a cluster, times that tasks took.

Whoever predicts or draws delays asks here, so that the engine itself reads no files.
"""
