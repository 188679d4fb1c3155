"""The dispatch mode behind `bitmma.torch.emulate`: what becomes of each operator that is called."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import torch
from bitmma.torch import operators
from bitmma.torch.kernel import multiply
from bitmma.torch.operators import Kind
from bitmma.torch.policy import DTYPES, Policy, UnmodelledProduct
from bitmma.torch.products import HANDLERS
from bitmma.torch.report import Ledger, What

__all__ = ["NATIVE", "Calls", "GradientError", "Mode", "Modules", "Settings"]

Tensor = Any

#: In place of a policy: PyTorch computes, and it is counted.
NATIVE = "native"

#: Where a node of the autograd graph keeps its `_Recorded`.
_METADATA = "bitmma.torch"


class GradientError(ValueError):
    """A gradient that PyTorch would compute where the product was a GPU's."""


@dataclass(frozen=True)
class Settings:
    """What `bitmma.torch.emulate` was given; see there."""

    policy: Policy
    modules: Mapping[str, Policy | Literal["native"]]
    backward: bool
    fallback: Literal["raise", "native"]
    no_products: frozenset[str]
    threads: int | None


class Modules:
    """The modules that are being called in the thread that entered, by name, outermost first.

    The outermost one is called "", and those inside it as its ``named_modules()`` does.
    """

    def __init__(self) -> None:
        self.path: tuple[str, ...] = ()
        self._names: Mapping[Any, str] = {}
        self._thread = 0

    def __enter__(self) -> Modules:
        self.path = ()
        self._thread = threading.get_ident()
        hooks = torch.nn.modules.module
        self._handles = (
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: Any, inputs: Any) -> None:
        if threading.get_ident() == self._thread:
            if not self.path:
                self._names = {m: name for name, m in module.named_modules()}
            self.path += (self._names.get(module, type(module).__name__),)

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self.path = self.path[:-1]


class _LeftToPyTorch(Exception):
    """A product that PyTorch is to compute, and why."""


class _Recorded(NamedTuple):
    """What recorded a node of the autograd graph, and where in the model."""

    mode: Mode
    op: str
    path: tuple[str, ...]


class Mode(TorchDispatchMode):
    """Every operator that reaches PyTorch's dispatcher passes through here."""

    supports_higher_order_operators = True  # so that there is an error of our own for them

    def __init__(self, settings: Settings, modules: Modules, ledger: Ledger) -> None:
        super().__init__()
        self.settings = settings
        self._modules = modules
        self._ledger = ledger
        self._kinds: dict[Any, Kind] = {}
        self._untied: list[tuple[Tensor, _Recorded]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.tie_gradients()
        if isinstance(func, HigherOrderOperator):
            why = f"{func.name()} is an operator on whole functions, which may hold matrix products"
            return self.left(func.name(), UnmodelledProduct(why), func, args, kwargs)
        kind = self._kinds.get(func) or self._classify(func)
        if kind == "no product":
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
            return func(*args, **kwargs)  # shapes without numbers
        if any(is_traceable_wrapper_subclass(x) for x in tensors):
            return NotImplemented  # it takes itself apart and calls again with what is inside
        if kind == "decomposed" and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        op = operators.base_name(func._schema.name)
        recorded = self._check_gradients(op, tensors)
        try:
            result = self._run(func, op, kind, tensors, args, kwargs)
        except (UnmodelledProduct, _LeftToPyTorch) as reason:
            result = self.left(op, reason, func, args, kwargs)
        if recorded:
            outputs = (x for x in tree_leaves(result) if isinstance(x, torch.Tensor))
            self._untied += [(x, recorded) for x in outputs]
        return result

    def left(self, op: str, reason: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator by PyTorch, counted; where that was not asked for, the reason raised."""
        what = self._leave(op, reason)
        result = func(*args, **kwargs)
        self._ledger.add(what, 1, 1, _macs(func, args, kwargs, result))
        return result

    def _leave(self, op: str, reason: Exception) -> What:
        """What to count of an operator left to PyTorch; where it must not be, the reason raised."""
        if self._policy() == NATIVE:
            reason = _LeftToPyTorch("as modules= says")
        elif isinstance(reason, UnmodelledProduct) and self.settings.fallback == "raise":
            raise reason
        return What(self._path[-1], op, "", str(reason).partition("; ")[0], "", True)

    def check_scripted(self, module: Any, inputs: Any) -> None:
        """A hook before forward: kernels in TorchScript that call no dispatcher are left, too."""
        if isinstance(module, torch.jit.ScriptModule) and _active()[-1:] == [self]:
            for op in _fused(module):
                why = UnmodelledProduct(operators.explain_opaque(op))
                self._ledger.add(self._leave(op, why), 1, 1, None)

    def _classify(self, func: Any) -> Kind:
        name, overload = func._schema.name, func._schema.overload_name
        kind = operators.kind(name, overload)
        if kind == "unknown" and self.settings.no_products & {name, operators.base_name(name)}:
            kind = "no product"
        self._kinds[func] = kind
        return kind

    def _run(
        self, func: Any, op: str, kind: Kind, tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Any:
        """The operator, the products in it emulated."""
        if kind == "opaque":
            raise UnmodelledProduct(operators.explain_opaque(op))
        if kind == "unknown":
            raise UnmodelledProduct(
                f"{op} is unknown and may hold matrix products; if it holds none, say so: "
                f"emulate(..., no_products={{{op!r}}})"
            )
        if kind == "integer product":
            raise _LeftToPyTorch("integers, the same everywhere")
        if kind == "decomposed":
            with self:
                return func._op_dk(_kernel_key(func, tensors[0].device.type), *args, **kwargs)
        given, written, in_place = _bound(func, args, kwargs)
        calls = [1]  # the first product of the operator counts its call

        def product(*operands: Any, **options: Any) -> Tensor:
            return self._product(op, calls.pop() if calls else 0, *operands, **options)

        result = HANDLERS[op](product, **given)
        if in_place:
            return given["self"].copy_(result)
        if not written:
            return result
        parts = result if isinstance(result, tuple) else (result,)
        for out, part in zip(written, parts, strict=True):
            if out.dtype != part.dtype:
                raise ValueError(f"{op}: out must be {part.dtype}, not {out.dtype}")
            out.resize_(part.shape).copy_(part)
        return written if isinstance(result, tuple) else written[0]

    # --- one product ------------------------------------------------------------------------------

    def _product(
        self, op: str, calls: int, A: Tensor, B: Tensor, *more: Tensor | None, **options: Any
    ) -> Tensor:
        """`bitmma.torch.products.Product`, of one operator."""
        policy = self._policy()
        if policy == NATIVE:
            raise _LeftToPyTorch
        _check_operands(op, A, B, *more)
        done = multiply(policy, op, A, B, *more, threads=self.settings.threads, **options)
        a, b = DTYPES[A.dtype], DTYPES[B.dtype]
        batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2]).numel()
        what = What(
            self._path[-1], op, a if a == b else f"{a}·{b}", done.instruction.title,
            str(done.schedule), False,
        )  # fmt: skip
        macs = batch * A.shape[-2] * A.shape[-1] * B.shape[-1]
        self._ledger.add(what, calls, batch, macs)
        return done.result

    def _policy(self) -> Any:
        """The one that holds for the module that is being called."""
        for pattern, policy in self.settings.modules.items():
            if any(fnmatchcase(name, pattern) for name in self._path):
                return policy
        return self.settings.policy

    @property
    def _path(self) -> tuple[str, ...]:
        """The modules being called; in a backward pass, those that the node was recorded in."""
        if self._modules.path:
            return self._modules.path
        node = torch._C._current_autograd_node()
        recorded = node.metadata.get(_METADATA) if node is not None else None
        return recorded.path if recorded else ("",)

    # --- gradients --------------------------------------------------------------------------------

    def _check_gradients(self, op: str, tensors: Sequence[Tensor]) -> _Recorded | None:
        """What to tie to the node that autograd is about to record, if it is.

        Raises:
            GradientError: gradients are not emulated, and this product has or is one.
        """
        in_backward = torch._C._current_autograd_node() is not None
        records = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if self.settings.backward:
            return _Recorded(self, op, self._path) if records else None
        if in_backward:
            raise GradientError(
                f"{op} is called by backward(), inside emulate(...) without backward=True; "
                "backward=True emulates the products of gradients"
            )
        if records:
            raise GradientError(
                f"{op} of tensors that require grad: their gradient would be PyTorch's own. Use "
                "torch.no_grad() or torch.inference_mode() where no gradient is needed; "
                "emulate(..., backward=True) emulates it, with backward() called inside"
            )
        return None

    def tie_gradients(self) -> None:
        """Mark the nodes recorded since the last call, so that they run emulated or not at all.

        Autograd makes a node only after the operator has returned, so this waits for the next one.
        """
        for output, recorded in self._untied:
            node = output.grad_fn
            if node is not None and _METADATA not in node.metadata:
                node.metadata[_METADATA] = recorded
                node.register_prehook(functools.partial(_check_node, recorded))
        self._untied.clear()

    def check_saved(self, tensor: Tensor) -> Tensor:
        """A tensor saved for a backward pass, when that asks for it."""
        self._check_active("what was")
        return tensor

    def _check_active(self, what: str) -> None:
        """GradientError unless this is the emulation that a backward pass runs in."""
        if self.settings.backward and _active()[-1:] == [self]:
            return
        how = (
            "must be called inside that same context"
            if self.settings.backward
            else "needs emulate(..., backward=True), and to be called inside"
        )
        raise GradientError(f"backward() of {what} recorded inside emulate(...) {how}")


def _check_node(recorded: _Recorded, gradients: Any) -> None:
    recorded.mode._check_active(f"a {recorded.op}")


class Calls(TorchFunctionMode):
    """Stops the composites that hide products from the dispatcher, where Python calls them."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]
        if name in operators.HIDDEN_COMPOSITES:
            why = UnmodelledProduct(operators.explain_opaque(name))
            return self._mode.left(name, why, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


# --- helpers --------------------------------------------------------------------------------------


def _active() -> list[Mode]:
    """The emulations that are entered in this thread, the innermost one last."""
    return [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Mode)]


def _fused(module: Any) -> list[str]:
    """The nodes of `operators.FUSED` in a scripted module: in its code and in what that became."""
    graphs = [module.inlined_graph]
    with contextlib.suppress(RuntimeError):  # there are no plans before the first calls
        state = module.get_debug_state()
        graphs += [plan.graph for plan in state.execution_plans.values()]
    found = [[n.kind() for k in operators.FUSED for n in g.findAllNodes(k)] for g in graphs]
    return max(found, key=len)


@functools.cache
def _kernel_key(func: Any, device: str) -> Any:
    """The kernel to run with the mode on: the one for all devices, else this one's."""
    keys, has = torch._C.DispatchKey, torch._C._dispatch_has_kernel_for_dispatch_key
    shared = keys.CompositeExplicitAutograd, keys.CompositeExplicitAutogradNonFunctional
    own = getattr(keys, torch._C._dispatch_key_for_device(device))
    return next(key for key in (*shared, own) if has(func.name(), key))


@functools.cache
def _arguments(func: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Names of all arguments, of the ``out`` ones, and whether the first is written to."""
    arguments = func._schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    outs = tuple(a.name for a in arguments if a.name in written and a.kwarg_only)
    return tuple(a.name for a in arguments), outs, arguments[0].name in written


def _bound(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Tensor, ...], bool]:
    """The arguments by name, those to write to, and whether that is the first one."""
    names, outs, in_place = _arguments(func)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return given, tuple(given.pop(name) for name in outs), in_place


def _check_operands(op: str, *tensors: Tensor | None) -> None:
    """_LeftToPyTorch for integers; UnmodelledProduct for what is not dense."""
    given = [x for x in tensors if x is not None]
    if not any(x.is_floating_point() or x.is_complex() for x in given):
        raise _LeftToPyTorch("integers, the same everywhere")
    for x in given:
        if x.layout != torch.strided or x.is_nested or x.is_quantized:
            what = "nested" if x.is_nested else "quantized" if x.is_quantized else x.layout
            raise UnmodelledProduct(f"{op} of {what} tensors")


def _macs(func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """Multiplications of an operator that PyTorch computed; None where its counter knows none."""
    formula = flop_registry.get(getattr(func, "overloadpacket", None))
    return None if formula is None else formula(*args, **kwargs, out_val=result) // 2
