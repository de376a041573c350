"""No other module than `torch_internals` uses what torch does not promise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import consilience

ROOT = Path(consilience.__file__).parent
KEPT = ROOT / "torch_internals.py"
OURS = {"self", "cls"}
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
ELSEWHERE = {"os._exit"}
OF_MODULES = {"_buffers", "_modules", "_parameters", "_non_persistent_buffers_set"}
"""Private to torch, whose name they have in our layers all the same."""
UNDOCUMENTED = {
    "TorchDispatchMode",
    "cudnn.flags",
    "eliminate_dead_code",
    "fill_uninitialized_memory",
    "functional_call",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "map_aggregate",
    "map_arg",
    "torch.Tag",
}
"""Names without an underscore of which torch promises less than is relied on."""


def mentioned(node: ast.AST) -> list[str]:
    """The dotted names that a piece of code mentions; of imports, those from torch and all above them."""
    match node:
        case ast.Attribute():
            return [ast.unparse(node)]
        case ast.Call(
            func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
        ):
            return [f"?.{name}"]
        case ast.ImportFrom(module=str(path)):
            imported = [f"{path}.{one.name}" for one in node.names]
        case ast.Import():
            imported = [one.name for one in node.names]
        case _:
            return []
    parts = [name.split(".") for name in imported if name.split(".")[0] == "torch"]
    return [".".join(some[:end]) for some in parts for end in range(1, len(some) + 1)]


def is_private(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    if not last.startswith("_") or last.endswith("__"):
        return False
    return not (owner in OURS or last in NAMED_TUPLE or name in ELSEWHERE) or last in OF_MODULES


def offences(code: str) -> list[str]:
    """Private and undocumented names of torch in some code, each with its line."""
    found = [(node, name) for node in ast.walk(ast.parse(code)) for name in mentioned(node)]
    return [
        f"{node.lineno}: {name}"
        for node, name in found
        if is_private(name) or any(f".{name}".endswith(f".{one}") for one in UNDOCUMENTED)
    ]


@pytest.mark.parametrize(
    "code",
    [
        "torch._foreach_copy_(a, b)",
        "torch.ops.aten._to_copy.default",
        "_ATEN._unsafe_view",
        "operation._schema.arguments",
        "getattr(node.target, '_schema', None)",
        "from torch.utils._pytree import tree_map",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch._dynamo",
        "from torch import _C",
        "module._modules.items()",
        "self._buffers['x']",
        "from torch.func import functional_call",
        "torch.func.functional_call(module, tensors, ())",
        "torch.Tag.generated in function.tags",
        "with torch.backends.cudnn.flags(enabled=True): ...",
        "graph.eliminate_dead_code()",
    ],
)
def test_a_private_name_is_noticed(code):
    assert offences(code), code


@pytest.mark.parametrize(
    "code",
    [
        "self._own",
        "batch._replace(key=key)",
        "os._exit(0)",
        "torch.__version__",
        "from a import _b",
        "array.flags",
    ],
)
def test_names_that_are_not_torchs_are_left_alone(code):
    assert not offences(code), code


def test_private_torch_is_in_one_place():
    files = [path for path in ROOT.rglob("*.py") if path != KEPT]
    assert len(files) > 100
    found = [f"{path.relative_to(ROOT)}:{one}" for path in files for one in offences(path.read_text())]
    assert not found, f"what torch does not promise belongs into {KEPT.name}, with a test: {found}"
