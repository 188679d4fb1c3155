"""``with bitmma.torch.emulate("H100"): model(x)``: a model with another GPU's matrix products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from bitmma import isa
from bitmma.engine.cpu import thread_count
from bitmma.schedule import Schedule
from bitmma.torch.mode import NATIVE, Calls, Mode, Modules, Settings
from bitmma.torch.policy import Policy
from bitmma.torch.report import Ledger, Report
from bitmma.unit import Instruction

__all__ = ["emulate"]


class emulate:
    """Inside, every matrix product of this thread is what a GPU's matrix unit would give.

        with bitmma.torch.emulate("H100") as run, torch.inference_mode():
            y = model(x)
        print(run.report())

    A product of f16 or bf16 tensors runs on the GPU's instruction for them: FP32 accumulators, one
    chain along K; then ``alpha`` and ``beta C`` join in FP32, and one rounding, to nearest even,
    gives the tensors' dtype. What is no product (softmax, normalisation, activations, ...) is
    PyTorch's on the CPU, whose bits may differ from a GPU's. docs/torch.md says what each operator
    is taken for.

    The context is of one thread, and eager: what torch.compile has compiled PyTorch itself runs
    eagerly inside. While it is entered, some switches of PyTorch are set for the whole process:
    oneDNN, TorchScript's fusers and the fast path of `torch.nn.MultiheadAttention` are off, and of
    attention's kernels only PyTorch's own order of products and softmax is on, in the tensors'
    dtype.

    Args:
        gpu: a GPU's name, as for `bitmma.instruction`, or a `Policy`.
        fp32, instruction, schedule: as for `Policy`, where ``gpu`` is a name.
        modules: other policies for parts of the model: patterns of module names ("encoder.layer.0",
            "*.attention.*", as `fnmatch` has them), each to a `Policy` or to "native", where
            PyTorch computes and it is counted. A pattern holds for a module and all inside it; the
            first that fits counts. Names are those of ``named_modules()`` of the outermost module
            that is called.
        backward: emulate the products of gradients too; ``backward()`` must be called inside.
        fallback: "raise", or "native": what is not modelled PyTorch computes, and it is counted.
        no_products: operators unknown to bitmma that hold no matrix product, such as
            "torchvision::nms".
        threads: as for `bitmma.matmul`.

    Raises:
        TypeError, ValueError: arguments that mean nothing. Inside the context:
        UnmodelledProduct: a product that the GPU has no instruction for (the message says which
            have one), or an operator that hides one; not with ``fallback="native"``.
        GradientError: a product whose gradient would be left to PyTorch.
    """

    def __init__(
        self,
        gpu: str | Policy,
        *,
        fp32: str = "raise",
        instruction: Mapping[str, str | Instruction] | None = None,
        schedule: Schedule | Mapping[str, Schedule] | None = None,
        modules: Mapping[str, Policy | Literal["native"]] | None = None,
        backward: bool = False,
        fallback: Literal["raise", "native"] = "raise",
        no_products: Iterable[str] = (),
        threads: int | None = None,
    ) -> None:
        if not isinstance(gpu, Policy):
            gpu = Policy(gpu, fp32, instruction or {}, schedule or {})
        elif fp32 != "raise" or instruction is not None or schedule is not None:
            raise ValueError("fp32, instruction and schedule belong in the Policy that was given")
        modules = dict(modules or {})
        for pattern, policy in modules.items():
            if not isinstance(pattern, str) or not (isinstance(policy, Policy) or policy == NATIVE):
                raise TypeError(
                    "modules must map patterns of names to a Policy or 'native', not "
                    f"{pattern!r} to {policy!r}"
                )
        if fallback not in ("raise", "native"):
            raise ValueError(f"fallback is 'raise' or 'native', not {fallback!r}")
        if isinstance(no_products, str):
            raise TypeError(f"no_products must be a collection of names, not {no_products!r}")
        if not isinstance(backward, bool):
            raise TypeError(f"backward must be True or False, not {backward!r}")
        if threads is not None:
            thread_count(threads)  # raises where it is no number of threads
        self._settings = Settings(gpu, modules, backward, fallback, frozenset(no_products), threads)
        self._ledger = Ledger()
        self._modules = Modules()
        self._mode = Mode(self._settings, self._modules, self._ledger)
        self._entered: contextlib.ExitStack | None = None

    def __enter__(self) -> emulate:
        if self._entered is not None:
            raise ValueError("this emulate(...) is already entered; make another one")
        with contextlib.ExitStack() as stack:
            stack.enter_context(_switches())
            stack.enter_context(self._modules)
            hooks = torch.nn.modules.module
            hook = hooks.register_module_forward_pre_hook(self._mode.check_scripted)
            stack.callback(hook.remove)
            stack.callback(self._mode.tie_gradients)
            saved = torch.autograd.graph.saved_tensors_hooks
            stack.enter_context(saved(lambda tensor: tensor, self._mode.check_saved))
            stack.enter_context(Calls(self._mode))
            stack.enter_context(self._mode)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        assert self._entered is not None
        stack, self._entered = self._entered, None
        stack.__exit__(*exception)

    def report(self) -> Report:
        """Products, MACs and fallbacks so far, by module and operator; ``print`` shows a table."""
        return self._ledger.report(isa.gpu(self._settings.policy.gpu))


@contextlib.contextmanager
def _switches() -> Iterator[None]:
    """PyTorch's switches for paths that the mode cannot see into, or that change dtypes."""
    c, cuda = torch._C, torch.backends.cuda
    switches: tuple[tuple[Callable[[], bool], Callable[[bool], object], bool], ...] = (
        (c._get_mkldnn_enabled, c._set_mkldnn_enabled, False),
        (c._jit_llga_enabled, c._jit_set_llga_enabled, False),
        (c._jit_texpr_fuser_enabled, c._jit_set_texpr_fuser_enabled, False),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False),
        (cuda.flash_sdp_enabled, cuda.enable_flash_sdp, False),
        (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, False),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, False),
        (cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
        (
            cuda.fp16_bf16_reduction_math_sdp_allowed,
            cuda.allow_fp16_bf16_reduction_math_sdp,
            True,
        ),
    )
    before = [get() for get, _, _ in switches]
    for _, put, value in switches:
        put(value)
    try:
        yield
    finally:
        for (_, put, _), value in zip(switches, before, strict=True):
            put(value)
