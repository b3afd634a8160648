"""The command line: each command calls a library function. torch is imported only when a command runs."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from chordmixer.terminal import rank_count, show_log, tell
from chordmixer.version import __version__

CORE = {
    "inspect": "chordmixer.cli.inspect:inspect",
    "plan": "chordmixer.cli.train:plan",
    "train": "chordmixer.cli.train:train",
    "tune": "chordmixer.cli.tune:tune",
    "pretrain": "chordmixer.cli.train:pretrain",
    "predict": "chordmixer.cli.predict:predict",
    "embed": "chordmixer.cli.predict:embed",
    "explain": "chordmixer.cli.predict:explain",
    "variants": "chordmixer.cli.variants:variants",
    "evaluate": "chordmixer.cli.inspect:evaluate",
    "report": "chordmixer.cli.inspect:report",
    "fetch": "chordmixer.cli.fetch:fetch",
    "sample": "chordmixer.cli.fetch:sample",
}
"""Commands on a user's own data: the path of the function, imported when it is called or listed."""
PAPER = {
    "reproduce": (
        "chordmixer.paper.cli:reproduce",
        "Run a table or figure of the paper, and write a page with its number beside ours.",
    ),
    "bench": (
        "chordmixer.paper.cli:bench",
        "Measure time and peak memory of encoders, each in a process of its own, beside the paper's table.",
    ),
    "demo": (
        "chordmixer.paper.cli:demo",
        "Two minutes on two cores: ChordMixer on a small Adding problem, beside the same network without mixing.",
    ),
}
"""Commands that are imported only when they are called: the path of the function, and its line in the help."""
WITH_RANKS = ("train", "pretrain", "predict", "embed", "variants", "reproduce")
"""Commands whose work several ranks can share."""


class Commands(TyperGroup):
    """The list of commands; those of the paper are listed without importing them."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _imported(CORE[cmd_name]) if cmd_name in CORE else super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and rank_count() > 1 and args[0] not in WITH_RANKS:
            raise ValueError(
                f"{args[0]} runs in one process, and {rank_count()} were started: start it without torchrun or "
                f"accelerate launch, which are for {', '.join(WITH_RANKS)}"
            )
        if args and args[0] in PAPER:
            self.commands[args[0]] = _imported(PAPER[args[0]][0])
        return super().resolve_command(ctx, args)


def _imported(path: str) -> Any:
    """Import a function, given as `module:function`, as a command with its options."""
    module, name = path.split(":")
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(import_module(module), name))
    return typer.main.get_command(single)


def _placeholder() -> None:
    """Placeholder of a command that is not yet imported."""


app = typer.Typer(
    cls=Commands,
    help="Train and use models of long sequences with very different lengths, without padding.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name in CORE:
    app.command(name)(_placeholder)
for name, (_, line) in PAPER.items():
    app.command(name, help=line, rich_help_panel="The paper")(_placeholder)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        tell(f"chordmixer {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    if rank_count() > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else DDP warns on each rank about unused parameters
    try:
        with show_log():
            code = app(standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # fails here if the device is full, and not when the interpreter ends
        raise SystemExit(code)
    except ValueError as error:
        _stop(error, 2)
    except OSError as error:
        _stop(_refusal(error), 2)
    except KeyboardInterrupt as error:
        _stop(error, 130)
    except Exception as error:
        if type(error).__name__ == "Abort":  # the parser's name for Ctrl-C
            _stop(error, 130)
        if hasattr(error, "format_message"):  # the parser's own errors have it, ours and torch's do not
            _stop(error.format_message(), 2)
        if rank_count() > 1:
            _leave_ranks(error)
        raise


def _leave_ranks(error: Exception) -> None:
    """Exit without a traceback if another rank was the first to fail, or was killed."""
    from chordmixer.training import ranks

    if ranks.is_lost(error):
        _stop("another rank has ended: see its output; torchrun --max-restarts 3 restarts all of them", 1)
    if not ranks.first_to_fail():
        raise SystemExit(1) from None


def _prints() -> bool:
    """Whether this process prints its error: the only one, or the first of several ranks that fails."""
    if rank_count() == 1:
        return True
    from chordmixer.training.ranks import first_to_fail

    return first_to_fail()


def _stop(reason: object, code: int) -> None:
    if _prints():
        with suppress(OSError):
            tell(f"chordmixer: {' '.join(str(reason).split()) or 'stopped'}", stderr=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # otherwise the interpreter tries again, and exits with another code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code) from None


def _refusal(error: OSError) -> str:
    """Describe an error of the operating system; errors of files are handled elsewhere, so mostly of stdout."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF):
        return f"standard output cannot be written ({error.strerror}): make room, or send it to another place"
    what = "" if error.filename is None else f"{str(error.filename)[:100]!r}: "
    return f"{what}the system refuses ({error.strerror or repr(error)}): check the path, its permissions and the disk"
