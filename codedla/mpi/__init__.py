"""The MPI transport: the only place that imports mpi4py."""

import os

# Open MPI copies what it cannot hand over in one piece, a column block for instance, in pieces, and
# each waits until both ends look; its own pieces of 32 KiB move 0.9 GB/s between ranks that sleep
# in between, these 5 GB/s. Only read when MPI starts; other MPIs do not know the name.
os.environ.setdefault("OMPI_MCA_btl_sm_max_send_size", str(256 * 1024))
