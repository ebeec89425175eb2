"""``codedla train``: a classifier from labelled data in files, by coded gradient descent."""

from __future__ import annotations

import argparse

from codedla.cli.matmul import FAULTS
from codedla.cli.options import (
    add_checkpoint_options,
    add_job_options,
    add_json,
    count,
    fraction,
    positive_number,
    whole_number,
)

NAME = "train"
HELP = "train a classifier on labelled data, on MPI ranks that may be slow or lost"
EPILOG = f"""\
DATA: IDX images (and LABELS, a file of its own), .npz with X and y, or .csv; IDX and CSV also .gz

Every worker keeps s + 1 of n parts of the data, parameters and gradients travel, and a round is
over when the replies of all but s workers are there. Bytes are scaled to 0 ... 1, other features
to mean 0 and deviation 1; the last --validation of the shuffled rows are kept back.

The model is an .npz file with sizes, theta, shift, scale and classes:
  from codedla.iterative.mlp import MLP
  m = numpy.load("model.npz")
  classes = m["classes"][MLP(m["sizes"]).predict(m["theta"], (X - m["shift"]) / m["scale"])]

examples:
  codedla train train-images.gz train-labels.gz -o model.npz --ranks 7 --stragglers 2
  codedla train data.csv --label species --model mlp --hidden 20 -o model.npz --ranks 5
  mpirun -n 7 codedla train data.npz --hidden 200,100 --epochs 20 -o model.npz --scheme fractional
  codedla train data.npz -o m.npz --ranks 7 --epochs 50 --checkpoint m.ckpt --resume

{FAULTS}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("data", metavar="DATA", help="file with the data")
    parser.add_argument("labels", metavar="LABELS", nargs="?", help="file with IDX labels")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where the model goes: .npz"
    )
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model",
        choices=("logistic", "mlp"),
        help="logistic regression, or a perceptron with hidden layers (default: as --hidden says)",
    )
    group.add_argument(
        "--hidden",
        type=_sizes,
        metavar="N,N",
        help="hidden units, layer by layer, of --model mlp (default 100)",
    )
    group.add_argument(
        "--label",
        metavar="COLUMN",
        help="CSV column with the labels, name or number (default: 'label', else the last)",
    )
    group.add_argument(
        "--validation",
        type=fraction,
        default=0.1,
        metavar="P",
        help="fraction of the rows kept back to measure the accuracy (default 0.1)",
    )
    group = parser.add_argument_group("the descent")
    group.add_argument(
        "--epochs", type=count, metavar="N", help="rounds through all data (default 10)"
    )
    group.add_argument("--iterations", type=count, metavar="N", help="rounds, instead of --epochs")
    group.add_argument(
        "--batch",
        type=count,
        metavar="ROWS",
        help="rows in a round, about (default 500; as many as there are: all)",
    )
    group.add_argument(
        "--learning-rate", type=positive_number, default=0.05, metavar="R", help="(default 0.05)"
    )
    add_checkpoint_options(group, "the state", "the model is written", "from the beginning")
    group = parser.add_argument_group("the code")
    group.add_argument(
        "--scheme",
        default="cyclic",
        metavar="NAME",
        help="exact: cyclic (default), fractional, heterogeneous, uncoded; approximate: expander, "
        "stochastic, bibd, ignore",
    )
    group.add_argument(
        "--stragglers",
        type=whole_number,
        metavar="S",
        help="workers that no round waits for (default 1 where the scheme has any)",
    )
    group.add_argument(
        "--robust",
        metavar="NAME",
        help="go on in spite of wrong workers: majority (with fractional), locate (with cyclic), "
        "krum, geometric-median or trimmed-mean (with uncoded or ignore)",
    )
    group.add_argument(
        "--errors", type=count, metavar="A", help="how many may be wrong (default 1 with --robust)"
    )
    add_job_options(parser, encode=False)
    add_json(parser, "the report")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(count(word) for word in text.split(","))


# argparse puts this name into its own messages.
_sizes.__name__ = "list of whole numbers"


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master or outside MPI."""
    from codedla.cli.training import train

    return train(args)


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank."""
    from codedla.cli import jobs
    from codedla.cli.messages import overflow_is_said

    overflow_is_said()  # the master looks at the loss
    return jobs.serve(args)
