"""Kernels that read their weights before they wait for the kernel before them."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from ocr_phases.steps.compiled import compile_apart
from ocr_phases.steps.early_weights import LAUNCH, WAIT, EarlyWeights, reordered, weight_names

#: The pointer in_ptr1 is of a weight.
WEIGHTS = {"in_ptr1"}


def kernel(source: str) -> list[str]:
    """The lines of a kernel; ``WAIT`` and ``LAUNCH`` stand for the compiler's calls."""
    lines = source.strip("\n").split("\n")
    return [line.replace("WAIT", WAIT).replace("LAUNCH", LAUNCH) for line in lines]


IN_A_LOOP = (
    """
x0 = xindex
WAIT
for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_1 = r0_offset + r0_base
    tmp0 = tl.load(in_ptr0 + (r0_1), r0_mask, other=0.0).to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (r0_1 + 8*x0), r0_mask, other=0.0).to(tl.float32)
    tmp2 = tmp0 * tmp1
    _tmp3 = _tmp3 + tmp2
tmp3 = tl.sum(_tmp3, 1)
WAIT
LAUNCH
tl.store(out_ptr0 + (x0), tmp3, xmask)
""",
    """
LAUNCH
x0 = xindex
for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_1 = r0_offset + r0_base
    tmp1_raw = tl.load(in_ptr1 + (r0_1 + 8*x0), r0_mask, other=0.0)
    WAIT
    tmp0 = tl.load(in_ptr0 + (r0_1), r0_mask, other=0.0).to(tl.float32)
    tmp1 = tmp1_raw.to(tl.float32)
    tmp2 = tmp0 * tmp1
    _tmp3 = _tmp3 + tmp2
tmp3 = tl.sum(_tmp3, 1)
tl.store(out_ptr0 + (x0), tmp3, xmask)
""",
)
AT_A_PLACE_THAT_THE_LAST_KERNEL_WROTE = (
    """
WAIT
tmp0 = tl.load(in_ptr0 + (x0), xmask)
LAUNCH
tmp1 = tl.load(in_ptr1 + (r0_1 + 8*tmp0), xmask)
tl.store(out_ptr0 + (x0), tmp1, xmask)
""",
    """
LAUNCH
WAIT
tmp0 = tl.load(in_ptr0 + (x0), xmask)
tmp1 = tl.load(in_ptr1 + (r0_1 + 8*tmp0), xmask)
tl.store(out_ptr0 + (x0), tmp1, xmask)
""",
)
IN_A_BRANCH = (
    """
x0 = xindex
WAIT
if rsplit_id == 0:
    tl.store(out_ptr0 + (x0), x0, xmask)
LAUNCH
tmp1 = tl.load(in_ptr1 + (x0), xmask)
tl.store(out_ptr1 + (x0), tmp1, xmask)
""",
    """
LAUNCH
x0 = xindex
tmp1 = tl.load(in_ptr1 + (x0), xmask)
WAIT
if rsplit_id == 0:
    tl.store(out_ptr0 + (x0), x0, xmask)
tl.store(out_ptr1 + (x0), tmp1, xmask)
""",
)
WITHOUT_A_WEIGHT = (
    """
WAIT
tmp0 = tl.load(in_ptr0 + (x0), xmask)
LAUNCH
tl.store(out_ptr0 + (x0), tmp0, xmask)
""",
    """
LAUNCH
WAIT
tmp0 = tl.load(in_ptr0 + (x0), xmask)
tl.store(out_ptr0 + (x0), tmp0, xmask)
""",
)
WITHOUT_A_WAIT = (
    "tmp1 = tl.load(in_ptr1 + (x0), xmask)",
    "tmp1 = tl.load(in_ptr1 + (x0), xmask)",
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(*IN_A_LOOP, id="a weight in a loop is read first"),
        pytest.param(*AT_A_PLACE_THAT_THE_LAST_KERNEL_WROTE, id="an expert's number is waited for"),
        pytest.param(*IN_A_BRANCH, id="every block waits"),
        pytest.param(*WITHOUT_A_WEIGHT, id="what the last kernel wrote is waited for"),
        pytest.param(*WITHOUT_A_WAIT, id="a kernel without a wait stays as it is"),
    ],
)
def test_a_kernel_waits_before_it_reads_anything_but_weights(before: str, after: str) -> None:
    assert reordered(kernel(before), WEIGHTS) == kernel(after)


class Layer(nn.Module):
    """A layer with a parameter and a buffer, which writes to a cache that was handed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(8, 16, bias=False)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, hidden: Tensor, cache: Tensor) -> Tensor:
        cache[:1].copy_(hidden)
        return self.projection(hidden) * self.scale + cache.sum()


class SeenError(Exception):
    """The graph was looked at; its C++ would take seconds to compile."""


def test_only_tensors_of_modules_that_nothing_writes_to_are_weights() -> None:
    """An activation is an input of the compiler's graph too, and a KV cache stays where it is."""
    from torch._inductor.graph import GraphLowering

    cache = torch.zeros(4, 8)
    torch._dynamo.mark_static_address(cache)
    sizes: list[set[tuple[int, ...]]] = []
    make_code = GraphLowering.codegen

    def look(graph: GraphLowering) -> object:
        make_code(graph)
        inputs = graph.graph_inputs
        sizes.append({tuple(map(int, inputs[name].get_size())) for name in weight_names(graph)})
        raise SeenError

    compiled = compile_apart(Layer.forward, {"post_grad_custom_post_pass": EarlyWeights()})

    with (
        torch._inductor.config.patch({"force_disable_caches": True, "cpp.vec_isa_ok": False}),
        patch.object(GraphLowering, "codegen", look),
        torch.no_grad(),
        pytest.raises(torch._dynamo.exc.TorchDynamoException, match="SeenError"),
    ):
        compiled(Layer(), torch.ones(1, 8), cache)

    assert sizes == [{(16, 8), (16,)}]
