"""``codedla pagerank``: the ranks of a graph's nodes, from a file to a file."""

from __future__ import annotations

import argparse

from codedla.cli.matmul import FAULTS
from codedla.cli.options import (
    add_checkpoint_options,
    add_code_options,
    add_job_options,
    add_json,
    count,
    fraction,
    positive_number,
)

NAME = "pagerank"
HELP = "PageRank of a graph, from a file to a file, on MPI ranks that may be slow or lost"
EPILOG = f"""\
GRAPH: an edge list, plain or .gz, .bz2, .xz (two integer ids a line, the link from the first to
the second; # comments; further columns are not read; links given twice count once), .npy (E, 2);
or weights of links, .npz (SciPy sparse, ids from 0), .mtx, .mtx.gz (ids from 1)

The transition matrix stays on the workers, only vectors travel. With --decode substitute no round
waits for a decodable set of replies: what is not seen is taken from the round before. If the ranks
do not settle in --rounds rounds, they are written all the same and the exit code is 1.

examples:
  codedla pagerank wiki-Vote.txt.gz -o ranks.csv --ranks 9
  mpirun -n 9 codedla pagerank web.mtx.gz -o ranks.npy --tolerate 2
  codedla pagerank edges.txt -o near.csv --ranks 5 --personalize 30,1412 --top 100
  codedla pagerank edges.txt -o r.csv --ranks 9 --decode substitute --erasures 0.3
  codedla pagerank edges.txt -o r.csv --ranks 9 --checkpoint r.ckpt --resume

{FAULTS}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("graph", metavar="GRAPH", help="file with the links")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="where the ranks go, highest first: .csv with a header, or .npy with fields id, rank",
    )
    group = parser.add_argument_group("the ranks")
    group.add_argument(
        "--damping",
        type=fraction,
        default=0.85,
        metavar="D",
        help="probability of following a link (default 0.85)",
    )
    group.add_argument(
        "--personalize",
        metavar="IDS",
        help="nodes to go on from otherwise, for instance 30,1412 (default: all alike)",
    )
    group.add_argument(
        "--tol",
        type=positive_number,
        default=1e-9,
        metavar="E",
        help="end when the ranks change by less in a round, in all (default 1e-9)",
    )
    group.add_argument(
        "--rounds",
        type=count,
        default=1000,
        metavar="N",
        help="rounds, at most, with those of an earlier run (default 1000)",
    )
    group.add_argument("--top", type=count, metavar="N", help="write the N highest ranks only")
    group = parser.add_argument_group("the decoding")
    group.add_argument(
        "--decode",
        choices=("exact", "substitute", "stale", "least-squares"),
        default="exact",
        help="exact (default); substitute: sparse mixtures, what is unseen from the round before; "
        "stale: copies, what is missing stays; least-squares: to compare with",
    )
    group.add_argument(
        "--weight",
        type=count,
        metavar="W",
        help="blocks mixed in each share, with --decode substitute or least-squares (default 3, or "
        "all blocks if there are fewer)",
    )
    group.add_argument(
        "--round-deadline",
        type=positive_number,
        metavar="SECONDS",
        help="end a round with what has come by then, other than with exact decoding",
    )
    group.add_argument(
        "--erasures",
        type=fraction,
        metavar="P",
        help="a drill: drop this fraction of the replies, other than with exact decoding",
    )
    group = parser.add_argument_group("going on")
    add_checkpoint_options(group, "the iterate", "the ranks have settled", "from the beginning")
    add_code_options(parser)
    add_job_options(parser, encode=False)
    add_json(parser, "the report")


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master or outside MPI."""
    from codedla.cli.ranking import rank_nodes

    return rank_nodes(args)


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank."""
    from codedla.cli import jobs

    return jobs.serve(args)
