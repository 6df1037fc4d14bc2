"""Compile the kernels of a token's step for sm_90 without a GPU; registers and spills of each."""
# ruff: noqa

import sys, subprocess, tempfile, re, inspect, time
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ocr_phases.steps import token_step as T, token_kernels as K
import glob

PTXAS = str(__import__("pathlib").Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
TY = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.float16: "*fp16",
}
seen = {}
OUT = tempfile.mkdtemp()
print("PTX in", OUT)


def start(self, name, grid, *arguments, **sizes):
    num_warps = T.SIZES[name].warps
    early = name != "open_step"
    if name != "open_step":
        sizes["EARLY"] = True
    fn = getattr(K, name)
    names = fn.arg_names
    sizes.pop("launch_pdl", None)
    arguments = list(arguments) + [sizes.pop(n) for n in names if n in sizes and n.upper() != n]
    sig = {}
    attrs = {}
    consts = {}
    for i, n in enumerate(names):
        if n in sizes:
            sig[n] = "constexpr"
            consts[(i,)] = sizes[n]
            continue
        v = arguments[i]
        if isinstance(v, torch.Tensor):
            sig[n] = TY[v.dtype]
            attrs[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(v, int):
            if v == 1:
                sig[n] = "constexpr"
                consts[(i,)] = 1
            else:
                sig[n] = "i32"
                if v % 16 == 0:
                    attrs[(i,)] = [["tt.divisibility", 16]]
        else:
            sig[n] = "fp32"
    key = (name, str(sorted(sizes.items())), num_warps, grid)
    if key in seen:
        return
    src = ASTSource(fn, sig, consts, attrs)
    t = time.time()
    out = triton.compile(
        src, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps, "launch_pdl": early}
    )
    t = time.time() - t
    ptx = out.asm["ptx"]
    f = f"{OUT}/{name}_{len(seen)}.ptx"
    open(f, "w").write(ptx)
    r = subprocess.run(
        [PTXAS, "-v", "-arch=sm_90a", f, "-o", f"{OUT}/x.cubin"], capture_output=True, text=True
    )
    regs = re.search(r"Used (\d+) registers", r.stderr)
    sp = re.search(r"(\d+) bytes spill stores", r.stderr)
    smem = out.metadata.shared
    n = 1
    for g in grid:
        n *= g
    seen[key] = 1
    bars = ptx.count("bar.sync")
    print(
        f"{name:14s} programs {n:5d} warps {num_warps} regs {regs and regs[1]} spills {sp and sp[1]} smem {smem} bar {bars} wait {ptx.count('griddepcontrol.wait')} v4 {len(re.findall('ld.global[^;]*v4.b32', ptx))} v2 {len(re.findall('ld.global[^;]*v2.b32', ptx))} other {len(re.findall('ld.global', ptx)) - len(re.findall('ld.global[^;]*v[24].b32', ptx))} {t:.1f}s",
        flush=True,
    )


T.TokenStep._start = start
from types import SimpleNamespace as N

T.device_of = lambda d: N(chip=lambda: N(cores=132))
from transformers import UnlimitedOcrConfig
import ocr_phases
from transformers.models.unlimited_ocr import modeling_unlimited_ocr as M

C = M.UnlimitedOcrTextConfig if hasattr(M, "UnlimitedOcrTextConfig") else None
c = C(
    hidden_size=1280,
    num_attention_heads=10,
    num_key_value_heads=10,
    head_dim=128,
    intermediate_size=6848,
    moe_intermediate_size=896,
    n_routed_experts=64,
    num_experts_per_tok=6,
    n_shared_experts=2,
    num_hidden_layers=2,
    vocab_size=129280,
    topk_method="greedy",
    mlp_layer_types=["dense", "sparse"],
)
dtype = torch.float32 if "f32" in sys.argv else torch.bfloat16
with torch.device("meta"):
    lm = M.UnlimitedOcrTextModel(c).to(dtype)
    head = torch.nn.Linear(1280, 129280, bias=False, dtype=dtype)
    print("fits", T.token_kernels_fit(lm, head, 1))
    S = 8193

    class L:
        keys = torch.empty(1, 10, S, 128, dtype=dtype)
        values = torch.empty(1, 10, S, 128, dtype=dtype)
        window = None

    class Cc:
        layers = [L, L]

    i = lambda *s: torch.zeros(s, dtype=torch.int64)
    st = T.TokenState(
        i(1, 1), i(1, 1), i(1), i(2, 1), torch.zeros(1, 1, 1, S, dtype=dtype), i(), torch.zeros(1)
    )
    step = T.TokenStep(lm, head, Cc, st, early=True)
    step(1024)
    if "more" in sys.argv:
        for r in (2048, 4096, 8192):
            step(r)
