"""The command line: each command calls one library function. torch is imported only when one runs."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from chordmixer.cli.benching import bench
from chordmixer.cli.fetching import fetch
from chordmixer.cli.learning import demo, train
from chordmixer.cli.looking import evaluate, inspect, report
from chordmixer.cli.planning import plan
from chordmixer.cli.pretraining import pretrain
from chordmixer.cli.reproducing import reproduce
from chordmixer.cli.sample import sample
from chordmixer.cli.using import embed, explain, predict
from chordmixer.cli.variants import variants
from chordmixer.terminal import tell
from chordmixer.version import __version__

app = typer.Typer(
    help="Learn from long sequences of very different lengths, without padding.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    inspect,
    plan,
    train,
    pretrain,
    predict,
    embed,
    explain,
    variants,
    evaluate,
    report,
    reproduce,
    bench,
    fetch,
    sample,
    demo,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        tell(f"chordmixer {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    try:
        code = app(standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # a full device shows here, and not when the interpreter ends
        raise SystemExit(code)
    except ValueError as error:
        _stop(error, 2)
    except OSError as error:
        _stop(_refusal(error), 2)
    except KeyboardInterrupt as error:
        _stop(error, 130)
    except Exception as error:
        if type(error).__name__ == "Abort":  # the parser's word for Ctrl-C
            _stop(error, 130)
        if not hasattr(error, "format_message"):  # the parser's own errors have it, ours and torch's do not
            raise
        _stop(error.format_message(), 2)


def _stop(reason: object, code: int) -> None:
    with suppress(OSError):
        tell(f"chordmixer: {' '.join(str(reason).split()) or 'stopped'}", stderr=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # else the interpreter tries again, and leaves with a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code) from None


def _refusal(error: OSError) -> str:
    """What the operating system refused; files have their own errors, so that most often it is the output."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF):
        return f"standard output cannot be written ({error.strerror}): make room, or send it to another place"
    what = "" if error.filename is None else f"{str(error.filename)[:100]!r}: "
    return f"{what}the system refuses ({error.strerror or repr(error)}): check the path, its permissions and the disk"
