"""The program ``codedla``: one module per command, gathered in :mod:`codedla.cli.main`."""
