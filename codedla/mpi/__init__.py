"""The MPI transport: the only place that imports mpi4py."""
