#!/bin/bash
# A product on this machine, without a scheduler.
#
#   jobs/local.sh A.npy B.npy C.npy [RANKS [OPTIONS]]     (CODEDLA_ENV: virtual environment to use)
#
# RANKS counts the master; by default there is a worker for every core, but at least two. With one
# or two workers nobody may be late: ask for more ranks than cores to see coding at work.
# OPTIONS go to codedla, for instance --force or --tolerate 1.
set -euo pipefail
if [ $# -lt 3 ]; then
  echo "usage: $0 A.npy B.npy C.npy [RANKS [OPTIONS]]" >&2
  exit 2
fi
a=$1 b=$2 c=$3
cores=$(nproc)
ranks=${4:-$((cores < 2 ? 3 : cores + 1))}
export PATH="${CODEDLA_ENV:+$CODEDLA_ENV/bin:}$PATH"
# One BLAS thread per rank, because every core has a rank; more only if the caller says so.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export OPENBLAS_NUM_THREADS=$OMP_NUM_THREADS MKL_NUM_THREADS=$OMP_NUM_THREADS

codedla doctor
exec codedla matmul "$a" "$b" -o "$c" --report "$c.json" --ranks "$ranks" \
  --threads "$OMP_NUM_THREADS" "${@:5}"
