"""Runs emitted WGSL through wgpu, all arrays in one buffer between guard bytes, and compares with the interpreter."""

import functools

import numpy as np

from camshaft.emit.wgsl.layout import FIXED_BINDING, RUN_BINDING, WgslTarget
from camshaft.emit.wgsl.module import emit
from camshaft.lang.interpreter.interpret import grid_sizes, interpret
from camshaft.lang.simt.form import to_simt
from tests.support.compilers.emit_harness import agreeing, trace
from tests.support.needs import require

WIDTHS, FEW_WIDTHS = (1, 4, 32, 64), (4, 64)  # less than a subgroup, and more
GUARD_NBYTES = 64
ALIGNMENT = 256
TARGET = WgslTarget(frozenset({"packed-dot"}), max_bindings=16, max_workgroup_nbytes=32_768, alignment=ALIGNMENT)


@functools.cache
def device():
    """A wgpu device, Mesa's software Vulkan where there is no other. Without one the test is skipped; under CI=true it fails."""
    try:
        import wgpu

        adapter, reason = wgpu.gpu.request_adapter_sync(power_preference="high-performance"), ""
    except Exception as error:
        adapter, reason = None, f"no WebGPU adapter: {error}"
    require(adapter, reason)
    wanted = {"shader-f16", "subgroup"} & adapter.features
    limits = {"max-storage-buffers-per-shader-stage": 16, "max-compute-workgroup-storage-size": 32_768}
    return adapter.request_device_sync(required_features=sorted(wanted), required_limits=limits)


def layout(arrays):
    """(offset of each array, bytes of the buffer): guards between, addresses that are not multiples of the alignment."""
    offsets, at = [], 0
    for i, array in enumerate(arrays):
        at = -(-(at + GUARD_NBYTES) // 16) * 16 + array.itemsize * (i % 3)
        offsets.append(at)
        at += array.nbytes
    return offsets, -(-(at + GUARD_NBYTES) // ALIGNMENT) * ALIGNMENT


def binding_range(binding, start, nbytes, whole):
    """(offset, size) of a binding for an array at byte `start`, as emit/wgsl/layout.py says."""
    aligned = start // ALIGNMENT * ALIGNMENT
    low, end = aligned + binding.offset_nbytes, -(-(start + nbytes) // 4) * 4
    low = min(low, (end - 1) // ALIGNMENT * ALIGNMENT)
    return low, min(end, low + binding.nbytes, whole) - low


def dispatch(module, arrays, values, programs):
    """Copies of `arrays` after one launch. The bytes around them must be untouched."""
    import wgpu

    gpu = device()
    offsets, whole = layout(arrays)
    memory = np.full(whole, 0xA5, np.uint8)
    for array, at in zip(arrays, offsets, strict=True):
        memory[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = gpu.create_buffer_with_data(data=memory, usage=usage)
    run = gpu.create_buffer_with_data(data=np.array([*values, 0], np.int32), usage=wgpu.BufferUsage.STORAGE)
    cuts = [at % ALIGNMENT for at in offsets]
    words = module.fixed_words(range(module.n_scalars), cuts)
    fixed = gpu.create_buffer_with_data(data=words, usage=wgpu.BufferUsage.UNIFORM)
    parts = {RUN_BINDING: (run, 0, run.size, "read-only-storage"), FIXED_BINDING: (fixed, 0, fixed.size, "uniform")}
    for b in module.bindings:
        low, size = binding_range(b, offsets[b.array], arrays[b.array].nbytes, whole)
        parts[b.binding] = (buffer, low, size, "read-only-storage" if b.read_only else "storage")
    entries = [
        {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
        for i, (*_, kind) in parts.items()
    ]
    group_layout = gpu.create_bind_group_layout(entries=entries)
    resources = [
        {"binding": i, "resource": {"buffer": b, "offset": at, "size": n}} for i, (b, at, n, _) in parts.items()
    ]
    group = gpu.create_bind_group(layout=group_layout, entries=resources)
    shader = gpu.create_shader_module(code=module.text)
    pipeline = gpu.create_compute_pipeline(
        layout=gpu.create_pipeline_layout(bind_group_layouts=[group_layout]),
        compute={"module": shader, "entry_point": module.entry},
    )
    encoder = gpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(*module.dispatch(programs))
    compute.end()
    gpu.queue.submit([encoder.finish()])
    after = np.frombuffer(gpu.queue.read_buffer(buffer), np.uint8)
    touched = after != memory
    for array, at in zip(arrays, offsets, strict=True):
        touched[at : at + array.nbytes] = False
    assert not touched.any(), "bytes around an array were written"
    return [
        after[at : at + a.nbytes].copy().view(a.dtype).reshape(a.shape) for a, at in zip(arrays, offsets, strict=True)
    ]


def both(kernel, arrays, outputs=1, scalars=None, grid=(1,), lanes=32, target=TARGET, **constants):
    """(outputs by WGSL, outputs by the interpreter) of one kernel at one width."""
    scalars = scalars or {}
    kernel_ir = trace(kernel, arrays, outputs, tuple(scalars), grid, **constants)
    values = list(scalars.values())
    simt = to_simt(kernel_ir, lanes)
    programs = int(np.prod(grid_sizes(kernel_ir, values)))
    got = dispatch(emit(simt, target), arrays, values, programs)
    meant = [a.copy() for a in arrays]
    interpret(kernel_ir, meant, values, lanes=lanes, shuffle_seed=lanes)
    return got[-outputs:], meant[-outputs:]


def agree(kernel, arrays, *, widths=FEW_WIDTHS, rtol=0.0, atol=0.0, **keywords):
    """Asserts that WGSL and the interpreter agree at every width; gives the last outputs."""
    return agreeing(both, kernel, arrays, widths, rtol, atol, **keywords)
