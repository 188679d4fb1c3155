"""The command line: ``bitmma list | compare | explain | matmul | vectors | probe | experiment``.

Whatever a user got wrong ends in exit code 2 and one line on stderr. Modules that compute are
imported by the command that needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from bitmma.unit import Instruction

__all__ = ["app", "main"]

app = typer.Typer(
    name="bitmma",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Click's exceptions, wherever this version of Typer keeps them.
_UsageError: Any = typer.BadParameter.__bases__[0]
_ClickException: Any = _UsageError.__bases__[0]

Gpu = Annotated[
    str, typer.Argument(metavar="GPU", help="A generation or chip: Hopper, H100, sm_90, gfx942.")
]
Instr = Annotated[
    str, typer.Argument(metavar="INSTR", help="An instruction's name, see `bitmma list`.")
]
Json = Annotated[bool, typer.Option("--json", help="Data instead of a table.")]
_NUMBERS = "Numbers, comma- or space-separated; write --a=-1,2 where the first is negative."
_CODES = " A decimal, a C hex float (0x1.8p-3) or a 0x code."
_HYPO = " Hypothetical."
# `bitmma.cases.CATEGORIES`, which is not imported for a help text.
_CATEGORIES = (
    "normal, bits, cancel, narrow, near_f, ties, e_zero, subnormal, overflow, special, zeros, "
    "pow2, huge"
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line (None: the process's own) and return the exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # an encoding without "·" is no error
    try:
        arguments = list(args) if args is not None else None
        with _terminated_cleanly():
            return app(arguments, prog_name="bitmma", standalone_mode=False) or 0
    except _ClickException as error:
        return _complain(error.format_message())
    except (ValueError, TypeError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has seen enough (`bitmma list | head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _complain(str(error) or type(error).__name__)
    except (KeyboardInterrupt, typer.Abort):
        return 130


@contextlib.contextmanager
def _terminated_cleanly() -> Iterator[None]:
    """SIGTERM ends the process as an exception does: files half written are taken away."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(message: str) -> int:
    # The library's messages speak of Python; here that is somewhere else.
    message = re.sub(r"\bbitmma\.quantize\b", r"in Python, \g<0>", message)
    print(f"bitmma: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _find(gpu: str, name: str) -> Instruction:
    """The instruction; the name of a whole family, as `bitmma list` prints it, is explained."""
    from bitmma.unit import instruction, instructions

    if re.search(r"\dnnk\d", name.lower()):
        family = [x for x in instructions(gpu) if x.family.lower() == name.strip().lower()]
        if family:
            ns = f"{family[0].n}, {family[1].n}, … {family[-1].n}"
            raise ValueError(
                f"{name!r} is a family of {len(family)} instructions: write one of {ns} for N, "
                f"such as {family[0].name}"
            )
    return instruction(gpu, name)


def _version(wanted: bool) -> None:
    if wanted:
        import bitmma

        print(f"bitmma {bitmma.__version__} (bits {bitmma.BITS_VERSION})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _bitmma(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """The bits that a GPU's matrix unit would return, computed on any machine."""
    if context.invoked_subcommand is None:
        print(context.get_help())


# --- list -----------------------------------------------------------------------------------------


@app.command("list")
def list_instructions(
    gpu: Annotated[str | None, typer.Option(help="Only this GPU: Hopper, H100, sm_90.")] = None,
    with_format: Annotated[
        str | None,
        typer.Option("--format", help="Only instructions with this format: e4m3, bf16, ue8m0."),
    ] = None,
    op: Annotated[str | None, typer.Option(help="mma, wgmma, tcgen05 or mfma.")] = None,
    json: Json = False,
) -> None:
    """List the instructions, one row a family (N is left open where only N varies)."""
    from bitmma import isa
    from bitmma.render import model_dict, model_text, provenance_text

    families: dict[tuple[str, str, str], list[isa.Entry]] = {}
    for e in isa.select(gpu_name=gpu, op=op, any_format=with_format):
        families.setdefault((e.gpu, e.op, e.family), []).append(e)
    if json:
        _print_json([
            {
                "gpu": e.gpu, "op": e.op, "instruction": e.family, "m": e.m,
                "n": [x.n for x in members], "k": e.k, "a": e.a, "b": e.b, "c": e.c, "d": e.d,
                "scale": e.scale, "block": e.block, "model": model_dict(e.model),
                "provenance": _fields(e.provenance),
            }
            for members in families.values()
            for e in members[:1]
        ])  # fmt: skip
        return

    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _console(wide=240)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    rows = []
    for members in families.values():
        e = members[0]
        inputs = f"{e.a}·{e.b}" + (f"·{e.scale}/{e.block}" if e.scale else "")
        formats = f"{inputs}+{e.c}→{e.d}"
        model, provenance = model_text(e.model), provenance_text(e.provenance)
        rows.append((e.gpu, e.op, e.family, formats, model, provenance))
    titles = ("GPU", "op", "instruction", "formats", "model", "provenance")
    columns = list(zip(titles, *rows, strict=True))
    # Nothing is broken in mid-word: where there is no room, columns are left out, these first.
    left_out = []
    for title in ("model", "formats", "provenance"):
        if sum(max(map(len, column)) + 3 for column in columns) <= console.width:
            break
        columns = [column for column in columns if column[0] != title]
        left_out.append(title)
    for title, *_ in columns:
        table.add_column(title, overflow="fold", no_wrap=len(columns) > 3)
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*map(Text, row))
    console.print(table)
    instructions = sum(map(len, families.values()))
    text = f"{len(families)} families, {instructions} instructions. "
    if any("nNk" in e.family for e, *_ in families.values()):
        text += "nNk: N = 8 or 16, … 256. "
    if left_out:
        text += f"No room for {' and '.join(left_out)}: a wider terminal has it. "
    console.print(Text(f"{text}Sources of the provenance: --json.", "dim"))


# --- compare and explain --------------------------------------------------------------------------


@app.command()
def compare(
    a: Annotated[str | None, typer.Option(help=_NUMBERS)] = None,
    b: Annotated[str | None, typer.Option(help="As many numbers as a.")] = None,
    c: Annotated[str | None, typer.Option(help="One number; 0 if a and b are given.")] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Only this GPU; may be given several times.")
    ] = None,
    json: Json = False,
) -> None:
    """One dot product a·b + c on every instruction that holds the values, grouped by answer.

    Without numbers: the input on which ten GPU generations give six answers.
    """
    from bitmma.analysis import compare as run

    values_a, values_b = (_numbers(x) if x is not None else None for x in (a, b))
    addend = _one(c, "--c") if c is not None else None
    _show(run(values_a, values_b, addend, gpu=gpu or None), json)


@app.command()
def explain(
    gpu: Gpu,
    instruction: Instr,
    a: Annotated[str, typer.Option(help=_NUMBERS + _CODES)],
    b: Annotated[str, typer.Option(help="Likewise; missing numbers are +0.")],
    c: Annotated[str, typer.Option(help="One number." + _CODES)] = "0",
    scale_a: Annotated[
        str | None, typer.Option(help="Scales of a's blocks, one for each or one for all.")
    ] = None,
    scale_b: Annotated[str | None, typer.Option(help="Scales of b's blocks.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture there as well.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: the picture and every number.")
    ] = None,
    theme: Annotated[
        str, typer.Option(help="Of picture and page: auto (the viewer's), light or dark.")
    ] = "auto",
    beside: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="GPU INSTR", help="A second one, beside the first."),
    ] = None,
    json: Json = False,
) -> None:
    """One dot product step by step: products, alignment, what was cut, rounding."""
    scales = [_numbers(x) if x is not None else None for x in (scale_a, scale_b)]
    instructions = [_find(gpu, instruction), *([_find(*beside)] if beside else [])]
    numbers = _numbers(a), _numbers(b), _one(c, "--c"), *scales
    first, *others = [instr.explain(*numbers) for instr in instructions]
    shown = first.beside(*others) if others else first
    for path, draw in ((svg, shown.to_svg), (html, shown.to_html)):
        if path is not None:
            path.write_text(draw(theme), encoding="utf-8")
    _show(shown, json)


# --- files ----------------------------------------------------------------------------------------

_FILE = "FILE or FILE:NAME, .npy, .npz or .safetensors"


@app.command()
def matmul(
    gpu: Gpu,
    operands: Annotated[
        list[str],
        typer.Argument(
            metavar="[INSTR] A B",
            help="An instruction's name; without one, the default for the files' formats, which "
            f"is printed. Then A (…, M, K) and B (…, K, N), each {_FILE}.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where D goes: .npy, or .npz or .safetensors, named d there."
        ),
    ],
    c: Annotated[str | None, typer.Option(help="(…, M, N); +0 if not given.")] = None,
    scale_a: Annotated[str | None, typer.Option(help="(…, M, K/block).")] = None,
    scale_b: Annotated[str | None, typer.Option(help="(…, K/block, N).")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="When accumulators leave the matrix unit: promote_every=128,split_k=4."),
    ] = None,
    promote_scale_a: Annotated[
        str | None, typer.Option(help="float32, one a block of A: promotion's scales.")
    ] = None,
    promote_scale_b: Annotated[str | None, typer.Option(help="Those of B.")] = None,
    promote_block_a: Annotated[str, typer.Option(help="Rows and k of a block of A.")] = "1,128",
    promote_block_b: Annotated[str, typer.Option(help="k and columns of one of B.")] = "128,128",
    alpha: Annotated[float | None, typer.Option(help="D = alpha A B, in FP32.")] = None,
    beta: Annotated[float | None, typer.Option(help="And + beta C; C is float32 then.")] = None,
    out_format: Annotated[
        str | None, typer.Option(help="D rounded from FP32: f32, f16, bf16, e4m3, e5m2, fp8, bf8.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="How many; default: all cores.")] = None,
) -> None:
    """D = A B + C on files of any size, as a kernel on one instruction computes it.

    The instruction says the formats: arrays hold values of them or raw codes, as void bytes too:
    that is what .npy makes of bf16, fp8, fp6 and fp4 arrays. It has no name for float8_e5m2: save
    x.view(np.uint8). A D of bf16 or fp8 is written to .npy and .npz as unsigned codes
    (D.view(ml_dtypes.bfloat16) reads them), to .safetensors as what it is.

    On success one line says what was written: shape, format, instruction.

    Without --schedule, it is one chain along K. Its fields are those of bitmma.Schedule in Python.
    """
    from bitmma.cli import products
    from bitmma.epilogue import Epilogue
    from bitmma.schedule import Schedule

    if len(operands) not in (2, 3):
        raise ValueError(f"GPU [INSTR] A B: {len(operands)} arguments are given after the GPU")
    *names, a, b = operands
    name = names[0] if names else None
    files = {
        "A": a, "B": b, "--c": c, "--scale-a": scale_a, "--scale-b": scale_b,
        "--promote-scale-a": promote_scale_a, "--promote-scale-b": promote_scale_b,
    }  # fmt: skip
    given = {k: v for k, v in files.items() if v is not None}
    instr = products.default(gpu, given) if name is None else _find(gpu, name)
    epilogue = None
    if (alpha, beta, out_format) != (None, None, None):
        epilogue = Epilogue(alpha=alpha, beta=beta, out_format=out_format or "f32")
    blocks = {
        "promote_block_a": _block(promote_block_a, "--promote-block-a"),
        "promote_block_b": _block(promote_block_b, "--promote-block-b"),
    }
    walk = None if schedule is None else Schedule.parse(schedule)
    text = products.multiply(instr, given, output, threads, walk, epilogue, blocks)
    if sys.stdout is not None:  # as in `bitmma matmul … >&-`: D is written all the same
        print(text + (f", the default for {instr.a}·{instr.b}" if name is None else ""))


@app.command()
def vectors(
    gpu: Gpu,
    instruction: Instr,
    output: Annotated[Path, typer.Option("--output", "-o", help=".npz, or .txt or .hex for text.")],
    cases: Annotated[int, typer.Option(min=1, help="How many dot products.")] = 1000,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same file.")
    ] = 0,
    category: Annotated[
        str | None,
        typer.Option(help=f"Only these, comma-separated; default: all in turn. {_CATEGORIES}."),
    ] = None,
    l: Annotated[int | None, typer.Option("--L", help="Products of one step." + _HYPO)] = None,
    f: Annotated[int | None, typer.Option("--F", help="Bits kept below e_max." + _HYPO)] = None,
    f2: Annotated[int | None, typer.Option("--F2", help="Of the joint sum." + _HYPO)] = None,
    rho: Annotated[
        str | None, typer.Option(help="The conversion: RZ-FP32, RZ-E8M13, RNE-FP32…" + _HYPO)
    ] = None,
    e_zero: Annotated[int | None, typer.Option(help="Exponent of a zero c." + _HYPO)] = None,
) -> None:
    """Golden inputs and outputs by category, for test benches.

    With --L, --F, --F2, --rho or --e-zero: of a hypothetical unit, which nobody has built. It is
    the instruction's with these parameters replaced, and the file says so.
    """
    from bitmma.cli import golden

    chosen = _numbers(category) if category is not None else None
    changes = {"L": l, "F": f, "F2": f2, "rho": rho, "e_zero": e_zero}
    instr = golden.changed(
        _find(gpu, instruction), {k: v for k, v in changes.items() if v is not None}
    )
    golden.write(instr, output, cases, seed, chosen)


# --- probing --------------------------------------------------------------------------------------

_FUNCTION = " Of a function only."


@app.command()
def probe(
    target: Annotated[
        str,
        typer.Argument(
            metavar="GPU|FUNCTION",
            help="A GPU, then an instruction; or alone a function D = f(A, B, C), where it is: "
            "path/to/module.py:fn.",
        ),
    ],
    instruction: Annotated[
        str | None, typer.Argument(metavar="[INSTR]", help="See `bitmma list`.")
    ] = None,
    m: Annotated[int, typer.Option("--m", help="Rows of A." + _FUNCTION)] = 8,
    n: Annotated[int, typer.Option("--n", help="Columns of B." + _FUNCTION)] = 8,
    k: Annotated[int | None, typer.Option("--k", help="Columns of A." + _FUNCTION)] = None,
    a: Annotated[str, typer.Option("--a", help="The format of A." + _FUNCTION)] = "f16",
    b: Annotated[str | None, typer.Option("--b", help="Default: as A.")] = None,
    c: Annotated[str, typer.Option("--c", help="The format of C." + _FUNCTION)] = "f32",
    d: Annotated[str | None, typer.Option("--d", help="Default: as C.")] = None,
    scale: Annotated[str | None, typer.Option(help="Block scales: ue8m0 or ue4m3.")] = None,
    block: Annotated[int | None, typer.Option(help="How many k share a scale.")] = None,
    batched: Annotated[
        bool, typer.Option("--batched", help="The function takes leading batch dimensions.")
    ] = False,
    inputs: Annotated[
        int | None, typer.Option(min=1, help="Outputs to compare with the model found.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds that one call may take.")] = 60.0,
    resume: Annotated[
        Path | None,
        typer.Option(help="Keeps the answers; after an interrupt the same command goes on there."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="The report: .json, .html, .svg. Several times."),
    ] = None,
    json: Json = False,
) -> None:
    """Find the arithmetic of a unit, or of any function, from what it returns alone.

    Ends with 0 if a model was found and verified, with 1 if it was not: ambiguous, unexplained, or
    invalid.
    """
    from bitmma.cli import probing

    box: Any
    if instruction is not None:
        box = _find(target, instruction)
    elif ":" not in target:
        raise ValueError(
            f"{target!r}: what is probed is GPU and INSTR or path/to/module.py:function"
        )
    elif k is None:
        raise ValueError(f"{target}: a function needs --k, the columns of A")
    else:
        box = probing.black_box(
            target, m=m, n=n, k=k, a=a, b=b, c=c, d=d, scale=scale, block=block, batched=batched
        )
    settings: dict[str, Any] = {"seed": seed, "limit": limit, "checkpoint": resume}
    if inputs is not None:
        settings["inputs"] = inputs
    from rich.console import Console

    bar = Console(stderr=True) if sys.stderr is not None and sys.stderr.isatty() else None
    try:
        report = probing.run(box, output or [], bar, **settings)
    except KeyboardInterrupt:
        if resume is not None:
            print(f"bitmma: the same command goes on from {str(resume)!r}", file=sys.stderr)
        raise
    if json:
        _print_json(report.to_dict())
    else:
        _check_stdout()
        print(report)
    if report.status != "verified":
        raise typer.Exit(1)


# --- experiments ----------------------------------------------------------------------------------


@app.command()
def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one, or all; none lists them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples: seconds.")] = False,
    out: Annotated[
        Path, typer.Option(help="The folder for NAME.json, .csv, .md, .svg and .png.")
    ] = Path("experiments"),
) -> None:
    """Reproduce a published finding: numbers, a table and a figure, the published ones beside them.

    Needs Matplotlib (the extra plot), and real-weights a package with a model (the extra examples).
    """
    from bitmma.experiments import EXPERIMENTS

    if name is None:
        _check_stdout()
        width = max(map(len, EXPERIMENTS))
        print("\n".join(f"{key:<{width}}  {what}" for key, what in EXPERIMENTS.items()))
        return
    missing = []
    for key in EXPERIMENTS if name == "all" else (name,):
        try:
            _experiment(key, quick, out)
        except ImportError as error:
            missing.append(str(error))
    if missing:
        raise ValueError("; ".join(dict.fromkeys(missing)))


def _experiment(name: str, quick: bool, out: Path) -> None:
    from rich.console import Console, Group
    from rich.progress import Progress
    from rich.text import Text

    from bitmma.experiments import run
    from bitmma.experiments.report import figures

    figures()  # says what to install before anything is computed
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"--out is a folder that can be written: {str(there)!r} is not one")
    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(name, total=None)
        report = run(
            name, quick=quick, progress=lambda done, total: bar.update(
                task, completed=done, total=total
            ), processes=1 if quick else os.cpu_count() or 1,
        )  # fmt: skip
    paths = report.write(out)
    lines = [
        f"{x.what}: published {x.published}, here {x.ours}: {x.agrees}" for x in report.findings
    ]
    _console(wide=160).print(Group(report, Text("\n".join(lines)), Text(f"{paths[2]}", "dim")))


# --- small things ---------------------------------------------------------------------------------


def _numbers(text: str) -> list[str]:
    """The words of "1,2 3"; what they mean is for the operand's format to say."""
    return re.split(r"\s*,\s*|\s+", text.strip())


def _one(text: str, option: str) -> str:
    words = _numbers(text)
    if len(words) != 1:
        raise ValueError(f"{option} is one number, not {text!r}")
    return words[0]


def _block(text: str, option: str) -> tuple[int, int]:
    words = _numbers(text)
    if len(words) != 2 or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise ValueError(f"{option} is two positive integers such as 1,128, not {text!r}")
    return int(words[0]), int(words[1])


def _fields(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


def _show(result: Any, json: bool) -> None:
    if json:
        _print_json(result.to_dict())
    else:
        _console(wide=120).print(result)


def _print_json(data: Any) -> None:
    import json

    _check_stdout()
    print(json.dumps(data, indent=1))


def _check_stdout() -> None:
    if sys.stdout is None:  # as in `bitmma list >&-`
        raise ValueError("standard output is closed")


def _console(wide: int) -> Console:
    """Rich's console; a pipe or file, which has no width, gets one where tables fit."""
    from rich.console import Console

    _check_stdout()
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=wide if piped else None, highlight=False)
