#!/bin/bash
# A product on this machine, without a scheduler.
#
#   jobs/local.sh A.npy B.npy C.npy [RANKS]     (CODEDLA_ENV: virtual environment to use)
#
# RANKS counts the master; by default there is a worker for every core, but at least two.
set -euo pipefail
a=${1:?first argument: left matrix} b=${2:?second: right matrix} c=${3:?third: output, .npy}
cores=$(nproc)
ranks=${4:-$((cores < 2 ? 3 : cores + 1))}
export PATH="${CODEDLA_ENV:+$CODEDLA_ENV/bin:}$PATH"
# One BLAS thread per rank, because every core has a rank; more only if the caller says so.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export OPENBLAS_NUM_THREADS=$OMP_NUM_THREADS MKL_NUM_THREADS=$OMP_NUM_THREADS

codedla doctor
exec codedla matmul "$a" "$b" -o "$c" --report "$c.json" --ranks "$ranks" \
  --threads "$OMP_NUM_THREADS"
