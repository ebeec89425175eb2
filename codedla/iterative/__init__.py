"""Coded iterative computation: the data stay on the workers, and only vectors move."""
