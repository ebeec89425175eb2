"""Pools one after the other, closed ones, BLAS threads, and messages of the caller's own."""

from __future__ import annotations

import numpy as np
from common import note_shared_memory, write
from mpi4py import MPI
from threadpoolctl import threadpool_info

import codedla
from codedla.engine import work

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
A = np.arange(600.0).reshape(30, 20)
B = np.arange(500.0).reshape(20, 25)


def threads():
    return sorted({entry["num_threads"] for entry in threadpool_info()})


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


A @ B
before, inside = threads(), []
original = work.multiply


def watched(*arguments):
    inside.append(threads())
    return original(*arguments)


work.multiply = watched
# A receive that would match anything on the caller's communicator, and messages on their way.
mine = np.zeros(4)
if rank == 0:
    standing = world.Irecv(mine, MPI.ANY_SOURCE, MPI.ANY_TAG)
elif rank == 2:
    early = world.Isend(np.full(3, 5.0), 1, 1)

result = {}
with codedla.MPIPool(world) as pool:
    if pool is not None:
        note_shared_memory()
        result["right"] = bool(np.allclose(codedla.matmul(A, B, pool=pool), A @ B))
        result["nested"] = error_of(codedla.MPIPool(world).__enter__)
        stored = codedla.store(A, pool=pool)
        stored @ B[:, 0]
if rank == 0:
    result["untouched"] = not standing.Test()
    pool.close()
    pool.close()
    result["clean"] = pool.clean
    result["closed"] = error_of(lambda: codedla.matmul(A, B, pool=pool))
    result["closed store"] = error_of(lambda: stored @ B[:, 0])
    stored.close()
with codedla.MPIPool(world) as second:
    if second is not None:
        result["second"] = bool(np.allclose(codedla.matmul(A, B, pool=second), A @ B))
part = world.Split(rank < 3, rank)
if rank < 3:
    with codedla.MPIPool(part) as third:
        if third is not None:
            result["part"] = bool(np.allclose(codedla.matmul(A, B, pool=third), A @ B))
            result["part workers"] = third.n_workers
part.Free()
alone = world.Split(rank, rank)
result["alone"] = error_of(lambda: codedla.MPIPool(alone))
alone.Free()
result["comm None"] = error_of(lambda: codedla.MPIPool(None))
result["comm 3"] = error_of(lambda: codedla.MPIPool(3))
result["comm null"] = error_of(lambda: codedla.MPIPool(MPI.COMM_NULL))
halves = world.Split(rank < 2, rank)
bridge = world.Dup()  # messages on the world would be caught by the standing receive
between = halves.Create_intercomm(0, bridge, 2 if rank < 2 else 0)
result["comm between"] = error_of(lambda: codedla.MPIPool(between))
for comm in (between, bridge, halves):
    comm.Free()
if rank == 1:
    theirs = np.zeros(3)
    world.Recv(theirs, 2, 1)
    world.Send(np.full(4, 7.0), 0, 99)
    write("theirs", theirs.tolist())
elif rank == 0:
    standing.Wait()
    result["mine"] = mine.tolist()
    result["outside"] = error_of(codedla.MPIPool(world).new_key)
    result["no such rank"] = error_of(
        lambda: codedla.MPIPool(world, faults=[codedla.engine.stragglers.parse_fault("kill:9:1")])
    )
    result["threads"] = error_of(lambda: codedla.MPIPool(world, threads=0))
    write("result", result)
elif rank == 2:
    early.Wait()
# The last pool is never closed: the end of the script sends its workers home.
forgotten = codedla.MPIPool(world).__enter__()
if forgotten is not None:
    write("forgotten", bool(np.allclose(codedla.matmul(A, B, pool=forgotten), A @ B)))
write(f"threads{rank}", {"before": before, "inside": inside, "after": threads()})
