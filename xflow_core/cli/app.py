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

DicomWebUrl = typer.Option(
    "--dicomweb",
    metavar="URL",
    help="A PACS's DICOMweb service. Credentials come from XFLOW_DICOMWEB_USER and XFLOW_DICOMWEB_PASSWORD, from "
    "XFLOW_DICOMWEB_TOKEN or from a netrc file.",
)
# What segment and batch both take.
Survey = typer.Option("--survey", help="Ask for all seven findings instead.")
BundleName = typer.Option("--bundle", help="A bundle's name or folder.")
Device = typer.Option("--device", help="auto, cpu, cuda or mps.")
Stages = typer.Option("--stages", min=1, max=2, help="1 ends with the boxes' masks, 2 revises them.")
Seed = typer.Option("--seed", help="For policies that sample.")
Timeout = typer.Option("--timeout", metavar="SECONDS", help="How long to wait for a PACS's answer.")

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
pacs_app = typer.Typer(name="pacs", help="A PACS that speaks DICOMweb.", no_args_is_help=True)
app.add_typer(pacs_app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xflow {__version__} ({NOT_FOR_CLINICAL_USE})")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="auto|merged|adapters|nf4",
            help="How a foundation bundle's policies lie in memory; by default what fits (xflow doctor says which).",
        ),
    ] = None,
) -> None:
    """Options before the subcommand."""
    if layout is not None:
        # Through the environment, so that the workers of a batch have it, too.
        before = os.environ.get("XFLOW_LAYOUT")
        os.environ["XFLOW_LAYOUT"] = layout

        def put_back() -> None:
            os.environ.pop("XFLOW_LAYOUT")
            if before is not None:
                os.environ["XFLOW_LAYOUT"] = before

        context.call_on_close(put_back)


@app.command()
def segment(
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the results.")],
    images: Annotated[
        list[Path] | None, typer.Argument(help="DICOM, PNG, JPEG, TIFF, NIfTI, NRRD or MHA files.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option("-i", "--instruction", help='E.g. "Segment the effusion in the left lung".')
    ] = None,
    survey: Annotated[bool, Survey] = False,
    bundle: Annotated[str, BundleName] = "compact",
    device: Annotated[str, Device] = "auto",
    stages: Annotated[int, Stages] = 2,
    seed: Annotated[int, Seed] = 0,
    accept_image: Annotated[
        bool,
        typer.Option(
            "--accept-image", help="Run against the guards' refusal, kept as a warning; the first of several frames."
        ),
    ] = False,
    dicom_geometry: Annotated[
        str | None,
        typer.Option(
            metavar="synthetic|none",
            help="What seg.dcm gets where the image has no Frame of Reference: a synthetic one (the default, and what "
            "viewers open), or none.",
        ),
    ] = None,
    secondary_capture: Annotated[
        bool, typer.Option("--secondary-capture", help="Also write the overlay as DICOM, for viewers without SEG.")
    ] = False,
    dicomweb: Annotated[str | None, DicomWebUrl] = None,
    study: Annotated[str | None, typer.Option(help="The PACS's study to answer, by its UID.")] = None,
    series: Annotated[str | None, typer.Option(help="One series of it; by default its CR and DX series.")] = None,
    store: Annotated[bool, typer.Option("--store", help="Store the DICOM results in the PACS.")] = False,
    timeout: Annotated[float, Timeout] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON line at the end.")] = False,
) -> None:
    """Answer an instruction on radiographs, from files or from a PACS; write mask, overlay and trace, and DICOM."""
    from .pacs import PacsOptions
    from .segment import SegmentCall, run_segment

    if not out:  # an unset variable of the shell; as a path it would be the current folder
        raise CallError("-o names no folder.")
    call = SegmentCall(
        images=tuple(images or ()),
        pacs=PacsOptions(dicomweb, study, series, store, timeout),
        out=Path(out),
        instruction=instruction,
        survey=survey,
        bundle=bundle,
        device=device,
        stages=stages,
        seed=seed,
        accept_image=accept_image,
        dicom_geometry=dicom_geometry,
        secondary_capture=secondary_capture,
        as_json=as_json,
    )
    raise typer.Exit(run_segment(call))


@app.command()
def batch(
    given: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder, a glob in quotes, or a CSV or Parquet list: column image, optionally instruction; further "
            "columns are carried into the table.",
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="Folder for the results and their table.")],
    instruction: Annotated[
        str | None, typer.Option("-i", "--instruction", metavar="TEXT|FILE", help="One, or a file with one a line.")
    ] = None,
    survey: Annotated[bool, Survey] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each CPU.")] = None,
    together: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images that each of them has in work at a time; by default 4 with a foundation bundle, whose model "
            "they share, else 1. Not on Ray.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each worker.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep results that are there, whole, and this call's.")
    ] = False,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS|auto", help="Run on this Ray cluster.")] = None,
    bundle: Annotated[str, BundleName] = "compact",
    device: Annotated[str, Device] = "auto",
    stages: Annotated[int, Stages] = 2,
    seed: Annotated[int, Seed] = 0,
    image_minutes: Annotated[
        float, typer.Option(min=0.1, metavar="MINUTES", help="The longest for one image; then it is a failed row.")
    ] = 30.0,
) -> None:
    """Answer instructions on many images; write what segment writes for each, and one table of all answers."""
    from .batch import BatchCall, run_batch_call

    if not out:
        raise CallError("-o names no folder.")
    call = BatchCall(
        given=given,
        out=Path(out),
        instruction=instruction,
        survey=survey,
        bundle=bundle,
        device=device,
        stages=stages,
        seed=seed,
        workers=workers,
        together=together,
        threads=threads,
        resume=resume,
        ray=ray,
        image_minutes=image_minutes,
    )
    raise typer.Exit(run_batch_call(call))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Where the clients' token is, or is put (mode 0600); by default a temporary file."),
    ] = None,
    bundle: Annotated[list[str] | None, typer.Option(help="A bundle's name or folder; may be repeated.")] = None,
    device: Annotated[str, Device] = "auto",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A reverse proxy in front speaks TLS; listen beyond this machine.")
    ] = False,
    name: Annotated[
        list[str] | None, typer.Option(help="A host name by which clients call this server; may be repeated.")
    ] = None,
    cache: Annotated[int, typer.Option(min=64, metavar="MIB", help="Memory for images and their encodings.")] = 2048,
    idle: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="Unload the models after so long without a run; 0: never.")
    ] = 0,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when standard input ends, as it does when the parent dies.")
    ] = False,
) -> None:
    """Answer other programs over HTTP; prints where it listens as one JSON line, and logs to stderr."""
    from .serve import ServeCall, run_serve

    run_serve(
        ServeCall(
            host=host,
            port=port,
            token_file=token_file,
            bundles=tuple(bundle or ("compact",)),
            device=device,
            tls_cert=tls_cert,
            tls_key=tls_key,
            behind_proxy=behind_proxy,
            hosts=tuple(name or ()),
            cache_mib=cache,
            idle_minutes=idle,
            with_parent=with_parent,
        )
    )


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


@bundles_app.command("make")
def bundles_make(
    name: str,
    out: Annotated[Path, typer.Option("-o", "--out", help="The bundle's new folder.")],
    language: Annotated[
        str, typer.Option(metavar="[ID@REVISION=]FOLDER", help="MedGemma: a Gemma3 in safetensors, with its processor.")
    ],
    segmenter: Annotated[
        str | None,
        typer.Option(metavar="[ID@REVISION=]FOLDER", help="SAM3, or a fine-tune of it, in safetensors."),
    ] = None,
    sam3_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="[ID@REVISION=]FILE", help="Instead: Meta's own sam3.pt, converted into the bundle."),
    ] = None,
    init_adapter: Annotated[
        str | None, typer.Option(metavar="[ID@REVISION=]FOLDER", help="PEFT adapter of the first stage's policy.")
    ] = None,
    revision_adapter: Annotated[
        str | None, typer.Option(metavar="[ID@REVISION=]FOLDER", help="PEFT adapter of the second stage's policy.")
    ] = None,
    side: Annotated[int, typer.Option(help="The segmenter's picture: 1008, or 1024 as in the paper.")] = 1008,
    recipe: Annotated[str, typer.Option(help="How radiographs are prepared.")] = "mimic-cxr-jpg",
    finding: Annotated[
        list[str] | None, typer.Option(help="One that it answers; may be repeated. By default all seven.")
    ] = None,
    version: Annotated[str, typer.Option(help="Of this bundle.")] = "1",
    policies: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Settings of the policies: grid, calibration, ..")
    ] = None,
    quality: Annotated[Path | None, typer.Option(metavar="JSON", help="What was measured, with n and where.")] = None,
    licence: Annotated[list[str] | None, typer.Option(help="A licence or source; may be repeated.")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the weights into the bundle.")] = False,
) -> None:
    """Make a foundation bundle from folders of weights on this machine; without adapters a zero-shot one."""
    from .bundles import MakeCall, run_make

    run_make(
        MakeCall(
            name=name,
            out=out,
            language=language,
            segmenter=segmenter,
            sam3_checkpoint=sam3_checkpoint,
            init_adapter=init_adapter,
            revision_adapter=revision_adapter,
            side=side,
            recipe=recipe,
            findings=tuple(finding or ()),
            version=version,
            policies=policies,
            quality=quality,
            licences=tuple(licence or ()),
            copy=copy,
        )
    )


@pacs_app.command("find")
def pacs_find(
    dicomweb: Annotated[str, DicomWebUrl],
    patient: Annotated[str | None, typer.Option(help="Patient ID; * and ? stand for any letters.")] = None,
    date: Annotated[str | None, typer.Option(help="Study date, YYYYMMDD or YYYYMMDD-YYYYMMDD.")] = None,
    accession: Annotated[str | None, typer.Option(help="Accession number.")] = None,
    study: Annotated[str | None, typer.Option(help="Study Instance UID.")] = None,
    modality: Annotated[str | None, typer.Option(help="CR or DX; by default both.")] = None,
    any_part: Annotated[bool, typer.Option("--any-part", help="Not only chests.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many studies.")] = 100,
    show_patient: Annotated[
        bool, typer.Option("--show-patient", help="Print the patient's ID and name, which no other output holds.")
    ] = False,
    timeout: Annotated[float, Timeout] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the studies as one JSON line.")] = False,
) -> None:
    """List chest CR and DX studies: UID, date, modalities, numbers of series and images."""
    from .pacs import FindCall, run_find

    run_find(
        FindCall(
            url=dicomweb,
            patient=patient,
            date=date,
            accession=accession,
            study=study,
            modality=modality,
            any_part=any_part,
            limit=limit,
            show_patient=show_patient,
            timeout=timeout,
            as_json=as_json,
        )
    )


@pacs_app.command("store")
def pacs_store(
    files: Annotated[list[Path], typer.Argument(help="DICOM files, such as those a PACS did not take before.")],
    dicomweb: Annotated[str, DicomWebUrl],
    timeout: Annotated[float, Timeout] = 60.0,
) -> None:
    """Store DICOM files in a PACS."""
    from .pacs import run_store

    run_store(files, dicomweb, timeout)


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
