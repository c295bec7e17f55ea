"""The ``xflow`` command: its subcommands and how every one of them ends.

An error is one line on stderr. Exit status: 0 ran, 2 the call or the instruction is wrong, 3 an image could not be read
or is refused, 4 the engine failed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from xflow_core import NOT_FOR_CLINICAL_USE, __version__
from xflow_core.domain.errors import CallError, EngineError, XFlowError

app = typer.Typer(
    name="xflow",
    help="Ask a chest radiograph a question: lungs, verdicts, boxes, a mask, clicks. "
    f"{NOT_FOR_CLINICAL_USE.capitalize()}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Typer's own base of usage errors: click's in its earlier versions, a copy of its own in the later ones.
UsageProblem: type[typer.BadParameter] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

bundles_app = typer.Typer(name="bundles", help="The model bundles on this machine.", no_args_is_help=True)
app.add_typer(bundles_app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xflow {__version__} ({NOT_FOR_CLINICAL_USE})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options before the subcommand."""


@app.command()
def segment(
    images: Annotated[list[Path], typer.Argument(help="DICOM, PNG, JPEG, TIFF, NIfTI, NRRD or MHA files.")],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the results.")],
    instruction: Annotated[
        str | None, typer.Option("-i", "--instruction", help='E.g. "Segment the effusion in the left lung".')
    ] = None,
    survey: Annotated[bool, typer.Option("--survey", help="Ask for all seven findings instead.")] = False,
    bundle: Annotated[str, typer.Option(help="A bundle's name or folder.")] = "compact",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    stages: Annotated[int, typer.Option(min=1, max=2, help="1 ends with the boxes' masks, 2 revises them.")] = 2,
    seed: Annotated[int, typer.Option(help="For policies that sample.")] = 0,
    accept_image: Annotated[
        bool,
        typer.Option(
            "--accept-image", help="Run against the guards' refusal, kept as a warning; the first of several frames."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON line at the end.")] = False,
) -> None:
    """Answer an instruction on radiographs and write mask, overlay and trace."""
    from .segment import SegmentCall, run_segment

    if not out:  # an unset variable of the shell; as a path it would be the current folder
        raise CallError("-o names no folder.")
    call = SegmentCall(
        images=tuple(images),
        out=Path(out),
        instruction=instruction,
        survey=survey,
        bundle=bundle,
        device=device,
        stages=stages,
        seed=seed,
        accept_image=accept_image,
        as_json=as_json,
    )
    raise typer.Exit(run_segment(call))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON line.")] = False) -> None:
    """What runs here: devices, memory, bundles, optional parts."""
    from .doctor import run_doctor

    raise typer.Exit(run_doctor(as_json))


@bundles_app.command("list")
def bundles_list() -> None:
    """The bundles by name."""
    from .bundles import run_list

    run_list()


@bundles_app.command("show")
def bundles_show(
    name: str, as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False
) -> None:
    """What a bundle answers, how well, and what it was made from."""
    from .bundles import run_show

    run_show(name, as_json)


@bundles_app.command("verify")
def bundles_verify(name: str) -> None:
    """Compare every file of a bundle with its manifest."""
    from .bundles import run_verify

    run_verify(name)


def fail(problem: XFlowError, what: str | None = None) -> int:
    """Print an error's one line on stderr; returns its exit status."""
    sentence = " ".join(str(problem).split())
    if what and sentence.startswith(f"{Path(what).name} "):
        sentence, what = f"{what}{sentence[len(Path(what).name) :]}", None
    print(f"xflow: {what}: {sentence}" if what else f"xflow: {sentence}", file=sys.stderr)
    return problem.exit_status


def main(arguments: list[str] | None = None) -> Any:
    """Run the command and end the process with its status."""
    for stream in (sys.stdout, sys.stderr):
        # Where the terminal's encoding lacks a character, show its number rather than fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="xflow", standalone_mode=False)
    except UsageProblem as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            print(problem.format_message(), file=sys.stderr)
            status = CallError.exit_status
        else:
            status = fail(CallError(f"{problem.format_message()} (xflow --help tells more)"))
    except (typer.Abort, KeyboardInterrupt):
        print("xflow: stopped by the user.", file=sys.stderr)
        status = 130
    except XFlowError as problem:
        status = fail(problem)
    except OSError as problem:
        # Standard output cannot be written. A reader that went away (xflow .. | head) is no error; nothing more may be
        # written to it, also not at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        gone = isinstance(problem, BrokenPipeError)
        status = 0 if gone else fail(EngineError(f"Stopped by the system: {problem.strerror or problem}."))
    except Exception as problem:  # noqa: BLE001  the last resort: one line and a status, whatever went wrong
        status = fail(EngineError(f"An internal error, please report it: {problem!r}."))
    sys.exit(status if isinstance(status, int) else 0)
