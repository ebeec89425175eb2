"""Entry point: parse, run one command, turn what happens into an exit code and one line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from codedla.cli import (
    bench,
    codes,
    demo,
    doctor,
    matmul,
    matvec,
    pagerank,
    plan,
    simulate,
    solve,
    train,
)
from codedla.cli.messages import fail, warn
from codedla.errors import CodedlaError, CodedlaWarning, UsageError
from codedla.mpi.launch import world_from_env

__all__ = ["build_parser", "main"]

COMMANDS = (matmul, matvec, solve, pagerank, train, codes, plan, simulate, bench, doctor, demo)

DESCRIPTION = """\
Coded linear algebra for MPI: products that neither wait for slow ranks nor die with lost ones."""

EPILOG = """\
examples:
  codedla doctor                                   is this machine ready?
  codedla demo                                     coded against uncoded, with two slow ranks
  codedla matmul A.npy B.npy -o C.npy --ranks 9    starts MPI itself
  mpirun -n 9 codedla matmul A.npy B.npy -o C.npy  the same under your launcher
  codedla bench --ranks 9                          what codes cost and buy on this cluster
  codedla codes                                    which codes there are
  codedla plan A.npy B.npy --ranks 9               what would be done, without MPI

exit codes: 0 done, 1 other failure, 2 bad usage or input, 3 not decodable (too many workers
lost), 4 verification failed, 130 interrupted, 129 or 143 terminated"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line like every other error of the program."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class _Command(_Parser):
    """The parser of one command; it says itself which words it does not know."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            word = next((word for word in unknown if word.startswith("-")), "")
            close = get_close_matches(word.partition("=")[0], known, 1)
            hint = f" (perhaps {close[0]})" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


class _Version(argparse.Action):
    """Print the version; it is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from codedla import __version__

        print(f"codedla {__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole program."""
    parser = _Parser(
        prog="codedla",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _add_verbosity(parser, 0)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Command
    )
    for module in COMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        _add_verbosity(command, argparse.SUPPRESS)
        command.set_defaults(run=module.run)
    return parser


def _add_verbosity(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=default,
        help="say more on stderr (-vv: still more)",
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        default=False if default == 0 else default,
        help="no summary, warnings or progress",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        0 done, 1 other failure, 2 bad usage or input, 3 not decodable, 4 verification failed,
        130 interrupted, 129 or 143 terminated.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        world = world_from_env()
        if world is not None and world[0] > 0:
            return _worker(words)
        args = build_parser().parse_args(words)
        args.argv = words
        _set_up(args)
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has had enough; keep the interpreter from saying so at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except SystemExit as stop:  # --help, --version
        return stop.code if isinstance(stop.code, int) else 0
    except BaseException as error:
        return fail(error)
    return code


def _open_streams() -> None:
    """Open what was closed by ``<&-``, ``>&-`` or ``2>&-``, as the null device.

    Otherwise the next file that is opened would take the number 1, and what is printed, by this
    process or by its job, would end up in it.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        os.set_inheritable(number, True)
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _worker(words: list[str]) -> int:
    """Do as every rank but the first does: say nothing, and compute if there is a product."""
    with open(os.devnull, "w") as nowhere:
        stdout, sys.stdout = sys.stdout, nowhere
        try:
            args = build_parser().parse_args(words)
        except (UsageError, SystemExit):
            # The first rank says what is wrong; a code of this one's could have the launcher end
            # it before.
            return 0
        finally:
            sys.stdout = stdout
    args.argv = words
    _set_up(args)
    serve = {module.NAME: getattr(module, "serve", None) for module in COMMANDS}[args.command]
    try:
        return 0 if serve is None else int(serve(args))
    except CodedlaError as error:  # no MPI library, for instance: the first rank says so
        return error.exit_code


def _set_up(args: argparse.Namespace) -> None:
    """Route warnings and the log to stderr as the options say."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        # Once, also when every panel of a product gives the same reason.
        if not args.quiet and str(message) not in said:
            said.add(str(message))
            warn(str(message))

    warnings.showwarning = show
    warnings.simplefilter("always", CodedlaWarning)
    if args.verbose:
        world = world_from_env()
        rank = f"rank {world[0]} " if world else ""
        logging.basicConfig(format=f"%(asctime)s {rank}%(name)s %(levelname)s: %(message)s")
        level = logging.DEBUG if args.verbose > 1 else logging.INFO
        logging.getLogger("codedla").setLevel(level)
