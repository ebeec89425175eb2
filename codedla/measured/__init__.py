"""What files say: speeds that were measured, times that tasks took, memory that is free.

Whoever predicts, draws delays or cuts panels asks here; the engine itself does no I/O.
"""
