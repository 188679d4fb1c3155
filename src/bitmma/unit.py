"""Instructions that can be called, and hypothetical units.

``bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")`` gives an `Instruction`: call it on
matrices, ask ``.dpa`` for single dot products, ``.explain`` for the steps of one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bitmma import engine, formats, isa, reference
from bitmma.engine import operands
from bitmma.models import FDPA, GSTFDPA, STFDPA, Model, check_int, check_k, check_model

if TYPE_CHECKING:
    from bitmma.render import Explanation

__all__ = ["Instruction", "instruction", "instructions", "mma", "prepare"]

#: A NumPy array or a PyTorch tensor: `bitmma.engine.operands` says which are accepted.
Array = Any


SCALES = ("scale_a", "scale_b")

#: NumPy's iterators take 32 dimensions, two of them the matrix's.
MAX_LEADING = 30


# --- one call, whoever makes it -------------------------------------------------------------------


#: A, B, C and the scales.
_Given = tuple[Array, Array, Array | None, Array | None, Array | None]


class _Shapes(NamedTuple):
    """The trailing dimensions of every operand."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    scale_a: tuple[int, ...]
    scale_b: tuple[int, ...]


def _matrix_shapes(m: int, n: int, k: int, block: int | None) -> _Shapes:
    blocks = -(-k // block) if block else 0
    return _Shapes((m, k), (k, n), (m, n), (m, blocks), (blocks, n))


def _vector_shapes(k: int, block: int | None) -> _Shapes:
    blocks = k // block if block else 0
    return _Shapes((k,), (k,), (), (blocks,), (blocks,))


@dataclass(frozen=True)
class Call:
    """What one kind of call takes and whom it asks; made once an instruction, run many times.

    Attributes:
        title: what messages call it.
        model: the arithmetic. a, b, c, scale, block: operand formats as in `isa.Entry`.
        shapes: the trailing dimensions; None takes them from A and B.
        vector: dot products (``a``, ``b``, ``c``) rather than matrices (``A``, ``B``, ``C``).
    """

    title: str
    model: Model
    a: str
    b: str
    c: str
    scale: str | None
    block: int | None
    shapes: _Shapes | None
    vector: bool = False

    # What computes, where shapes are known; made once, for a call takes microseconds.

    @functools.cached_property
    def _plan(self) -> engine.Plan:
        assert self.shapes
        k = self.shapes.a[-1]
        return engine.plan(self.model, self.a, self.b, self.c, k, self.scale, self.block)

    @functools.cached_property
    def _direct(self) -> Callable[..., Any] | None:
        return self._plan.direct(self.shapes.c) if self.shapes else None

    def _of_any_size(self, *operands: Any, threads: int | None, **scales: Any) -> Any:
        return engine.mma(
            self.model, *operands, a_format=self.a, b_format=self.b, c_format=self.c,
            scale_format=self.scale, block=self.block, threads=threads, **scales,
        )  # fmt: skip

    @functools.cached_property
    def _names(self) -> tuple[str, str, str, int]:
        return ("a", "b", "c", -1) if self.vector else ("A", "B", "C", -2)

    @functools.cached_property
    def _d(self) -> str:
        return self.model.d

    def run(
        self,
        A: Array,
        B: Array,
        C: Array | None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Codes out of the operands, shapes checked, the engine asked, its answer wrapped."""
        # What most small calls are is computed as it comes; all others are looked at one by one.
        if threads is None and self._direct:
            d = self._direct(A, B, C, scale_a, scale_b)
            if d is not None:
                return d
        return self._read_and_run((A, B, C, scale_a, scale_b), threads)

    # Apart: variables that inner functions know take longer to make, which all calls would.
    def _read_and_run(self, given: _Given, threads: int | None) -> Array:
        (a, b, c, scales), kind = self.read(*given, to_codes=operands.as_codes)
        compute: Callable[..., Any] = self._of_any_size
        if self.shapes:
            compute = self._plan.dpa if self.vector else self._plan.mma
        d = operands.computed(
            lambda: compute(a, b, c, threads=threads, **scales), lambda: self.read(*given)
        )
        return operands.wrap(d, self._d, kind)

    def read(
        self,
        A: Array,
        B: Array,
        C: Array | None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
        to_codes: operands.ToCodes = operands.to_codes,
    ) -> tuple[tuple[Any, Any, Any | None, dict[str, Any]], operands.Kind]:
        """The operands as codes (a, b, c and the scales by name), checked, and their kind.

        With `operands.as_codes` in place of `operands.to_codes`, codes of A and B are left for the
        engine to check.
        """
        name_a, name_b, name_c, k_axis_b = self._names
        a, kind = to_codes(A, self.a, name_a)
        b, kind_b = to_codes(B, self.b, name_b, k_axis_b)
        kinds = None if kind_b is kind else {name_a: kind, name_b: kind_b}
        c = None
        if C is not None:
            c, kind_c = operands.to_codes(C, self.c, name_c)
            if kinds is not None or kind_c is not kind:
                kinds = {name_a: kind, name_b: kind_b, name_c: kind_c}
        scales: dict[str, Any] = {}
        if self.scale or scale_a is not None or scale_b is not None:
            scales, more = self._scales(scale_a, scale_b)
            kinds = (kinds or {name_a: kind}) | more
        if kinds is not None:
            kind = operands.common_kind(kinds)
        shapes = self.shapes or self._shapes_of(a, b)
        lead = a.shape[: -len(shapes.a)]
        if (
            len(lead) > MAX_LEADING
            or a.shape != lead + shapes.a
            or b.shape != lead + shapes.b
            or (c is not None and c.shape != lead + shapes.c)
            or (scales and any(x.shape != lead + getattr(shapes, n) for n, x in scales.items()))
        ):
            self._check_shapes(shapes, a, b, c, scales)
        return (a, b, c, scales), kind

    def _scales(self, *given: Array | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scales as codes, and their kinds; both there or, without block scaling, neither."""
        codes, kinds = {}, {}
        for name, scale, k_axis in zip(SCALES, given, (-1, -2), strict=True):
            if self.wants(name, scale) and self.scale:
                codes[name], kinds[name] = operands.to_codes(scale, self.scale, name, k_axis)
        return codes, kinds

    def wants(self, name: str, scale: object) -> bool:
        """Whether there are scales to read; ValueError where they are missing or superfluous."""
        if self.scale is None and scale is not None:
            raise ValueError(f"{name} was given, but {self.title} has no block scales")
        if self.scale is not None and scale is None:
            shape = f"{_shown(getattr(self.shapes, name))} " if self.shapes else ""
            raise ValueError(f"{name} is missing: {self.title} needs {shape}scales of {self.scale}")
        return self.scale is not None

    def _shapes_of(self, a: Any, b: Any) -> _Shapes:
        for name, array, wanted in (("A", a, "(..., M, K)"), ("B", b, "(..., K, N)")):
            if array.ndim < 2:
                raise ValueError(f"{name} must be {wanted}, got {_tuple(array.shape)}")
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(
                f"inner dimensions differ: A is {_tuple(a.shape)} and B is {_tuple(b.shape)}; "
                f"B must be (..., {a.shape[-1]}, N)"
            )
        return _matrix_shapes(a.shape[-2], b.shape[-1], a.shape[-1], self.block)

    def _check_shapes(
        self, shapes: _Shapes, a: Any, b: Any, c: Any | None, scales: Mapping[str, Any]
    ) -> None:
        """Raise unless trailing dimensions match and leading ones broadcast."""
        name_a, name_b, name_c, _ = self._names
        named = {name_a: (a, shapes.a), name_b: (b, shapes.b)}
        if c is not None:
            named[name_c] = c, shapes.c
        for name, scale in scales.items():
            named[name] = scale, getattr(shapes, name)
        leads = []
        for name, (array, trailing) in named.items():
            cut = array.ndim - len(trailing)
            if cut < 0 or array.shape[cut:] != trailing:
                raise ValueError(
                    f"{name} must be {_shown(trailing)} for {self._purpose(a, b)}, "
                    f"got {_tuple(array.shape)}"
                )
            if cut > MAX_LEADING:
                raise ValueError(
                    f"{name} may have up to {MAX_LEADING} leading dimensions, not {cut}"
                )
            leads.append(array.shape[:cut])
        try:
            np.broadcast_shapes(*leads)
        except ValueError:
            listed = ", ".join(f"{name} {_tuple(x.shape)}" for name, (x, _) in named.items())
            raise ValueError(f"leading dimensions do not broadcast: {listed}") from None

    def _purpose(self, a: Any, b: Any) -> str:
        if self.shapes:
            return self.title
        blocks = f", blocks of {self.block}" if self.block else ""
        return f"A {_tuple(a.shape)} times B {_tuple(b.shape)}{blocks}"


def _tuple(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _shown(trailing: Sequence[int]) -> str:
    return f"({', '.join(['...', *map(str, trailing)])})"


# --- instructions ---------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Instruction(isa.Entry):
    """One instruction of one GPU, ready to be called. A value: frozen, hashable, picklable.

    Fields as in `bitmma.isa.Entry`: gpu, op, name, m, n, k, the formats a, b, c, d and scale,
    block, model and provenance. ``dataclasses.replace(instr, model=...)`` makes a hypothetical one,
    and its provenance says so.

    Examples:
        >>> import bitmma, numpy as np
        >>> instr = bitmma.instruction("CDNA3", "f32_16x16x16_f16")
        >>> A = np.zeros((16, 16), np.float16); B = A.copy()
        >>> A[0, :2], B[:2, 0] = 2048, (2048, -2048)
        >>> C = np.full((16, 16), -1e-6, np.float32)
        >>> float(instr(A, B, C)[0, 0])
        -0.25
    """

    def __post_init__(self) -> None:
        for field in ("gpu", "op", "name"):
            if not isinstance(getattr(self, field), str):
                raise TypeError(f"{field} must be a string, not {getattr(self, field)!r}")
        isa.check_op(self.op)
        for field in ("m", "n", "k"):
            check_int(self, field, 1)
        check_model(self.model)
        check_k(self.model, self.k)
        for field in ("a", "b", "c", "d"):
            object.__setattr__(self, field, _operand_format(getattr(self, field), field))
        if self.d != self.model.d:
            raise ValueError(
                f"d is {self.d}, but the model's output is {self.model.d}: {self.model!r}"
            )
        object.__setattr__(self, "scale", _scale_format(self.scale, self.block))
        _check_scaling(self.model, self.scale, self.block)
        if self.block and self.k % self.block:
            raise ValueError(f"k must be a multiple of the block of {self.block}, not {self.k}")
        # Evidence is for an instruction as it is: it neither goes along with changes of a field nor
        # stays lost when they are taken back.
        object.__setattr__(self, "provenance", isa.provenance(self))

    def __call__(
        self,
        A: Array,
        B: Array,
        C: Array | None = None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
    ) -> Array:
        """D = A B + C, as the instruction gives it.

        Args:
            A: (..., m, k) of format ``a``. B: (..., k, n) of format ``b``.
            C: (..., m, n) of format ``c``; None is +0. Leading dimensions broadcast.
            scale_a, scale_b: (..., m, k/block) and (..., k/block, n) of format ``scale``, for
                block-scaled instructions and only for these.

        Each is a NumPy array of the format's dtype or of raw codes, or a PyTorch tensor; kinds are
        not mixed in one call. Tensors are read without their gradient.

        Returns:
            (..., m, n), a new array (or tensor on the operands' device) of the dtype of ``d``.

        Raises:
            TypeError: an operand that is no array, of a wrong dtype, or of another kind.
            ValueError: a wrong shape, missing or superfluous scales, codes out of range.
        """
        return self._matrix_call.run(A, B, C, scale_a, scale_b)

    def dpa(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
    ) -> Array:
        """Dot products d = a . b + c of exactly k terms, each as one output of the instruction.

        Args:
            a, b: (..., k). c: (...); None is +0. Leading dimensions broadcast.
            scale_a, scale_b: (..., k/block), for block-scaled instructions.

        Returns:
            (...) of the dtype of ``d``. Kinds and errors as in a call.
        """
        return self._vector_call.run(a, b, c, scale_a, scale_b)

    @formats.in_default_environment
    def explain(
        self,
        a: Any,
        b: Any,
        c: Any = 0,
        scale_a: Any = None,
        scale_b: Any = None,
    ) -> Explanation:
        """One dot product with every step shown: products, alignment, what was cut, rounding.

        Args:
            a, b: up to k numbers, missing ones are +0: a one-dimensional array as in `dpa`, or a
                list of numbers and strings, where "0x3c00" is a raw code and "0x1.8p-3" a number.
            c: one number.
            scale_a, scale_b: k/block of them, or one for all blocks.

        Returns:
            A table in a terminal or notebook; ``.to_dict()`` gives it as data.

        Raises:
            TypeError, ValueError: as in a call; also a number that its format does not hold.
        """
        from bitmma.render import Explanation

        scales = [
            self._explained_scale(x, n) for x, n in zip((scale_a, scale_b), SCALES, strict=True)
        ]
        trace = reference.trace(
            self.model,
            _dot_operand(a, self.a, self.k, "a"),
            _dot_operand(b, self.b, self.k, "b"),
            _dot_operand(c, self.c, 1, "c")[0],
            a_format=self.a,
            b_format=self.b,
            c_format=self.c,
            scale_format=self.scale,
            scale_a=scales[0],
            scale_b=scales[1],
        )
        return Explanation(trace, self.title, self.provenance)

    def _explained_scale(self, given: Any, name: str) -> list[int]:
        if not self._vector_call.wants(name, given) or not self.scale or not self.block:
            return []
        blocks = self.k // self.block
        if isinstance(given, Sequence) and not isinstance(given, str) and len(given) != blocks:
            raise ValueError(f"{name} must be one scale or {blocks}, got {len(given)}")
        one = isinstance(given, str) or np.ndim(given) == 0
        codes = _dot_operand(given, self.scale, 1 if one else blocks, name)
        return codes * blocks if one else codes

    @functools.cached_property
    def _matrix_call(self) -> Call:
        return self._call(_matrix_shapes(self.m, self.n, self.k, self.block), vector=False)

    @functools.cached_property
    def _vector_call(self) -> Call:
        return self._call(_vector_shapes(self.k, self.block), vector=True)

    def free_call(self, c: str) -> Call:
        """Reads matrices of any size, C of format ``c``: for `bitmma.matmul`."""
        return dataclasses.replace(self._matrix_call, shapes=None, c=c)

    def _call(self, shapes: _Shapes, *, vector: bool) -> Call:
        return Call(
            self.name, self.model, self.a, self.b, self.c, self.scale, self.block, shapes, vector
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields alone: what is cached beside them is made again.
        return type(self), tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def __repr__(self) -> str:
        if self.provenance.level == "hypothetical":
            return f"<Instruction {self.title}: {self.model!r}>"
        return f"Instruction({self.gpu!r}, {self.name!r}, {self.model!r})"


def _dot_operand(x: Any, fmt: str, k: int, name: str) -> list[int]:
    """Numbers or a one-dimensional array as k codes, filled up with +0."""
    if not operands.is_array(x):
        if k > 1 and isinstance(x, Sequence) and not isinstance(x, str) and len(x) > k:
            raise ValueError(
                f"{name} has {len(x)} elements, one instruction takes {k}: explain the first {k}, "
                "then the next ones with c = the d of these"
            )
        return operands.from_list(x, fmt, k, name)
    codes, _ = operands.to_codes(x, fmt, name)
    if codes.ndim > 1 or codes.size > k:
        limit = "one number" if k == 1 else f"a vector of up to {k}"
        raise ValueError(f"{name} must be {limit}, got {_tuple(codes.shape)}")
    listed: list[int] = codes.reshape(-1).tolist()
    return listed + [0] * (k - len(listed))


@functools.cache
def _made(entry: isa.Entry) -> Instruction:
    return Instruction(*(getattr(entry, f.name) for f in dataclasses.fields(entry)))


def instruction(gpu: str, name: str, op: str | None = None) -> Instruction:
    """One instruction, by GPU and name; the same object each time.

    Args:
        gpu: a generation, chip or compute capability, in any case: "Hopper", "H100", "sm_90".
        name: as the vendor writes it, with or without the mnemonic, ``.sync.aligned``, ``.row.col``
            and ``.block_scale.scale_vec::NX``: "m16n8k16.f32.f16.f16.f32".
        op: mma, wgmma, tcgen05 or mfma, where only that will do.

    Raises:
        TypeError: a name that is no string.
        ValueError: an unknown GPU or instruction, with the nearest names; an instruction that this
            GPU lacks, with those that have it.
    """
    return _made(isa.find(gpu, name, op))


_by_name = instruction


def instructions(
    gpu: str | None = None,
    *,
    op: str | None = None,
    format: str | None = None,
    a: str | None = None,
    b: str | None = None,
    c: str | None = None,
    d: str | None = None,
    scale: str | None = None,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
) -> tuple[Instruction, ...]:
    """All instructions that fit every condition given, GPU by GPU.

    Args:
        gpu: as for `instruction`. op: mma, wgmma, tcgen05 or mfma.
        format: a format that any of A, B, C, D or the scales has; its PyTorch and NumPy names will
            do. a, b, c, d, scale: the format of that operand. m, n, k: the shape.

    Raises:
        ValueError: an unknown GPU, op or format. (Nothing fits: an empty tuple.)
    """
    entries = isa.select(
        gpu_name=gpu, op=op, any_format=format, a=a, b=b, c=c, d=d, scale=scale, m=m, n=n, k=k
    )
    return tuple(map(_made, entries))


def resolve(instruction: Any, name: str = "instruction") -> Instruction:
    """The instruction, given itself or as GPU and name; ``name`` is what a TypeError calls it."""
    if isinstance(instruction, tuple) and len(instruction) == 2:
        instruction = _by_name(*instruction)
    if not isinstance(instruction, Instruction):
        raise TypeError(
            f"{name} must be an Instruction or a (gpu, name) pair, not {instruction!r}; "
            "bitmma.recipes.default_instruction gives a GPU's for a format"
        )
    return instruction


def prepare(B: Array, instruction: Instruction | tuple[str, str]) -> operands.Prepared:
    """B read, checked and laid out once, to be passed in its place any number of times.

    Kernels read B row after row. Weights that come otherwise (PyTorch's ``weight.T``, columns of a
    larger matrix, fp4 pairs, tensors of a GPU) are brought into that order anew in every product,
    which costs more than the product itself where A has few rows; prepared, they cost it once. No
    bit depends on it.

    Args:
        B: (..., K, N) of the instruction's ``b``, of any kind that a call takes. It is copied: what
            becomes of it afterwards does not matter.
        instruction: an `Instruction`, or GPU and name. Any other with the same ``b`` will do, too.

    Returns:
        A value with ``shape``, ``format`` and ``nbytes``, to be given as B to `bitmma.matmul` or to
        an `Instruction`; picklable.

    Raises:
        TypeError, ValueError: as for B in a call of the instruction; fewer than two dimensions.
    """
    instruction = resolve(instruction)
    made = operands.prepared(B, instruction.b, "B")
    if len(made.shape) < 2:
        raise ValueError(f"B must be (..., K, N), got {_tuple(made.shape)}")
    return made


# --- hypothetical units ---------------------------------------------------------------------------


def mma(
    model: Model,
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    a: str,
    b: str | None = None,
    c: str | None = None,
    scale: str | None = None,
    block: int | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    threads: int | None = None,
) -> Array:
    """D = A B + C on any model, as one instruction of K products would give it.

    Args:
        model: a value of `bitmma.models`, such as ``TFDPA(L=8, F=13)`` or
            ``dataclasses.replace(bitmma.instruction(...).model, F=30)``. K beyond its group length
            is a chain of groups.
        A, B, C: (..., M, K), (..., K, N), (..., M, N) or None; kinds as for an `Instruction`.
        a, b, c: their formats; ``b`` is ``a`` and ``c`` the model's output format if not given.
        scale, block: block scaling's format ("ue8m0" or "ue4m3") and how many k share a scale.
        scale_a, scale_b: (..., M, ceil(K/block)) and (..., ceil(K/block), N).
        threads: how many; None: BITMMA_NUM_THREADS, or all cores.

    Returns:
        (..., M, N) of the dtype of ``model.d``.

    Raises:
        TypeError, ValueError: as for an `Instruction`; also an unknown format, scales for a model
            that has none, and a K that is not the number of a `SumTree`'s products.
    """
    check_model(model)
    call = _hypothetical(
        model, _operand_format(a, "a"), _operand_format(a if b is None else b, "b"),
        _operand_format(model.d if c is None else c, "c"), _scale_format(scale, block), block,
    )  # fmt: skip
    return call.run(A, B, C, scale_a, scale_b, threads)


def _operand_format(name: str, argument: str) -> str:
    try:
        fmt = formats.get(name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None
    if fmt.specials == "ue8m0":
        raise ValueError(f"{argument} is {fmt}, which has no zero and is for scales only")
    return fmt.name


def _scale_format(scale: str | None, block: int | None) -> str | None:
    """The scales' format by its own name; TypeError where block is no int."""
    if block is not None and (isinstance(block, bool) or not isinstance(block, int)):
        raise TypeError(f"block must be an int, not {block!r}")
    return None if scale is None else formats.get(scale).name


def _check_scaling(model: Model, scale: str | None, block: int | None) -> None:
    if (scale is None) != (block is None):
        raise ValueError(f"scale and block go together, got scale={scale!r} and block={block!r}")
    if scale is not None and block is not None:
        if not isinstance(model, STFDPA | GSTFDPA | FDPA):
            raise ValueError(f"{model!r} has no block scales; STFDPA, GSTFDPA and FDPA have")
        if formats.get(scale).signed:
            raise ValueError(f"scale is ue8m0 or ue4m3, not {scale!r}")
        if isinstance(model, STFDPA) and scale != "ue8m0":
            raise ValueError(f"STFDPA adds exponents: its scales are ue8m0, not {scale}")
        # An FDPA multiplies every product by its own scales, so that a step may span blocks.
        shares = {STFDPA: "L", GSTFDPA: "G"}
        share = getattr(model, shares.get(type(model), ""), 1)
        if block < 1 or block % share:
            raise ValueError(f"block must be a multiple of {share} for {model!r}, not {block}")


@functools.lru_cache
def _hypothetical(
    model: Model, a: str, b: str, c: str, scale: str | None, block: int | None
) -> Call:
    """Checks what the arguments of `mma` mean together; remembered, as a model is used for long."""
    _check_scaling(model, scale, block)
    return Call(repr(model), model, a, b, c, scale, block, None)
