"""The engine: plan a coded operation, collect replies, decode while waiting. It does no I/O."""
