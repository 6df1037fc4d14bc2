"""A small Chrome trace written by hand, whose sums are known, and the kernel view of a GPU's
record.
"""

from typing import Any

from conftest import GPU_RECORD
from example_run import altered, make_run

from ocr_phases import PhaseRun
from ocr_phases.measure.trace_events import KV_RANGE, Identity
from ocr_phases.record.parts import to_plain

HOST_THREAD = 7
DEVICE_THREAD = 13
#: A name, the begin and the end.
Kernel = tuple[str, float, float]


class TraceWriter:
    """Events of a Chrome trace as torch.profiler writes them; all times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            {"ph": "i", "cat": "Trace", "name": "Iteration Start", "ts": 5.0},
        ]
        self.spans: list[tuple[float, Identity]] = []
        self.correlation = 0

    def event(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        """Any event with a duration; times are counted from a second of the machine's clock."""
        is_of_device = category in ("kernel", "gpu_memcpy")
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": DEVICE_THREAD if is_of_device else HOST_THREAD,
                "ts": 1e9 + start,
                "dur": end - start,
                "args": args,
            }
        )

    def stage(
        self,
        phase: str,
        stage: str,
        start: float,
        end: float,
        view: str = "",
        step: int | None = None,
    ) -> None:
        """The range of a stage, and its span in the record."""
        self.event("user_annotation", stage, start, end)
        self.spans.append((start, (phase, stage, view, step)))

    def operator(self, name: str, start: float, end: float, external: int = 0, **args: Any) -> None:
        """An operator of torch, with the id that ties kernels to it."""
        self.event("cpu_op", name, start, end, **{"External id": external, **args})

    def launch(
        self,
        start: float,
        *kernels: Kernel,
        call: str = "cudaLaunchKernel",
        category: str = "kernel",
        us: float = 5,
    ) -> None:
        """A call of ``us`` and the device's work behind it, all with one correlation id."""
        self.correlation += 1
        self.event("cuda_runtime", call, start, start + us, correlation=self.correlation)
        for name, begin, end in kernels:
            self.event(category, name, begin, end, correlation=self.correlation, stream=7)

    def sync(self, start: float, end: float) -> None:
        """The host waits for the device."""
        self.launch(start, call="cudaStreamSynchronize", us=end - start)

    def identities(self) -> list[Identity]:
        """What each span is of, in the order in which they began."""
        in_order = sorted(self.spans, key=lambda span: span[0])
        return [identity for _, identity in in_order]


def mini_trace() -> tuple[dict[str, Any], list[Identity]]:
    """One prefill and two steps, which replay a graph; every sum is in `test_kernels`."""
    trace = TraceWriter()
    trace.stage("prefill", "prefill", 0, 2000)
    trace.stage("prefill", "sam", 10, 300, view="global")
    trace.launch(20, ("conv", 100, 200))
    trace.launch(30, ("gelu", 180, 260))  # overlaps on another stream
    trace.stage("prefill", "language_model", 400, 1200)
    trace.operator("aten::scaled_dot_product_attention", 410, 450)
    trace.launch(420, ("flash_fwd", 430, 530))
    trace.event("user_annotation", KV_RANGE, 460, 500)
    trace.operator("aten::cat", 465, 495)
    trace.launch(470, ("CatArrayBatchedCopy", 540, 560))
    trace.operator("aten::item", 600, 760)
    trace.operator("aten::_local_scalar_dense", 605, 755)
    trace.launch(
        610,
        ("Memcpy DtoH (Device -> Pageable)", 630, 640),
        call="cudaMemcpyAsync",
        category="gpu_memcpy",
    )
    trace.sync(620, 700)
    trace.launch(800, ("gemm", 810, 910))
    trace.stage("prefill", "sampling", 1300, 1400)
    trace.launch(1310, ("argmax", 1350, 1360))
    trace.event("cuda_runtime", "cudaEventRecord", 1380, 1382, correlation=900)
    trace.event("gpu_user_annotation", "sam", 100, 260)
    trace.stage("decode", "decode", 2100, 3500)
    for step in range(2):
        start = 2200 + 500 * step
        trace.stage("decode", "decode_step", start, start + 400, step=step)
        trace.launch(
            start + 20,
            ("triton_index_copy", start + 30, start + 40),
            ("flash_decode", start + 40, start + 100),
            ("gemv", start + 101, start + 200),
            call="cudaGraphLaunch",
        )
        trace.stage("decode", "sampling", start + 300, start + 380, step=step)
        trace.sync(start + 310, start + 350)
    # A call that the trace lost leaves its operator.
    trace.operator("aten::fill_", 2790, 2795, external=55)
    trace.event("kernel", "fill", 2950, 2960, **{"correlation": 999, "External id": 55})
    trace.launch(4100, ("outside", 4110, 4120))
    return {"schemaVersion": 1, "traceEvents": trace.events}, trace.identities()


def launched_step(head_by_shape: bool = False) -> tuple[dict[str, Any], list[Identity]]:
    """A step with the kernels that `mini_trace` replays, launched one by one.

    Its stages have ranges; or, as in a compiled step, only the shapes of what its kernels read.
    """
    trace = TraceWriter()
    trace.stage("decode", "decode_step", 0, 400, step=0)
    if head_by_shape:
        trace.operator("embedding", 10, 20, external=1, **{"Input Dims": [[50, 8]]})
        trace.operator("gemv", 120, 150, external=2, **{"Input Dims": [[1, 8], [50, 8]]})
    else:
        trace.stage("decode", "language_model", 5, 110)
        trace.stage("decode", "lm_head", 115, 160)
        trace.event("user_annotation", KV_RANGE, 25, 45)
        trace.operator("aten::scaled_dot_product_attention", 55, 80)
    trace.launch(30, ("triton_index_copy", 40, 50))
    trace.launch(60, ("flash_decode", 70, 130))
    trace.launch(125, ("gemv", 140, 240))
    return {"traceEvents": trace.events}, trace.identities()


def example_view() -> dict[str, Any]:
    """The view of an eager run with crops on an H200: vision keeps the device busy, launches do
    not.
    """
    return to_plain(PhaseRun.load(GPU_RECORD).kernels)


def with_kernels(run: PhaseRun | None = None, view: dict[str, Any] | None = None) -> PhaseRun:
    """The record, or one of a GPU, with this kernel view or the example's."""
    if run is None:
        run = make_run(cuda=True)
    if view is None:
        view = example_view()
    return altered(run, kernels={"tool": "torch.profiler", **view})
