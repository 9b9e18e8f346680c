"""A pretended GPU: tensors that say they are on cuda:0, computed by the CPU.

`make test-gpu` runs the tests marked cuda on it. To be on the GPU is a label of a storage; values,
views and gradients are the CPU's own. A mode below autograd sees every operation, and refuses what
a GPU refuses:

    devices   an operation on tensors of both; a number of the CPU's, without an axis, may mix
    waits     where set_sync_debug_mode("error") or a capture forbids them
    captures  operations are recorded, not executed: what they have written is put back, and new
              memory is filled with 0xFF. A replay runs them on the same memory, without Python
    copies    one from pinned memory must not change before the next wait; one to pinned memory
              arrives then, and is poison until then
    streams   memory that one writes and another uses without waiting for it, by vector clocks
    failures  a capture that failed leaves torch as torch 2.11 leaves it: it refuses all others,
              and random numbers outside of a capture
    RNNs      cuDNN's rules: no gradient but of a module in training, a warning for weights that
              are not one piece of memory

It knows nothing of speed, rounding, sizes of memory, a second GPU, and other threads.
"""

import time
import traceback
import types
import warnings
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
REAL = types.SimpleNamespace()  # what `install` replaces
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default,
           aten.bincount.default, aten.equal.default, aten._unique2.default,
           aten.repeat_interleave.Tensor}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
            aten._index_put_impl_.default}
SETTING = {aten.set_.source_Tensor, aten.set_.source_Storage}
RANDOM = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform_",
          "normal_", "native_dropout", "exponential_", "random_"}
FAILED = "operation failed due to a previous error during capture"


class GpuError(RuntimeError):
    """What a GPU, or torch for one, would have said."""


class Race(AssertionError):
    """What no GPU notices: memory is used by two at the same time."""


class Labels:
    """A set of storages, in which each stays as long as it lives."""

    def __init__(self):
        self.refs, self.limit = {}, 4000

    def add(self, x):
        """Puts the storage of `x` in; returns `x`."""
        self.refs[key(x)] = StorageWeakRef(x.untyped_storage())
        if len(self.refs) > self.limit:
            self.refs = {at: ref for at, ref in self.refs.items() if not ref.expired()}
            self.limit = 2 * len(self.refs) + 4000
        return x

    def __contains__(self, x):
        ref = self.refs.get(key(x))
        return ref is not None and not ref.expired()


class Gpu:
    """The GPU's memory, its streams, and what the CPU has asked it for."""

    def __init__(self):
        self.memory, self.pinned = Labels(), Labels()  # on the GPU; of the CPU, for copies
        self.registered = []  # (address, bytes), pinned by cudaHostRegister
        self.copies = []  # (memory of the CPU, its values, whether it is read, where), not awaited
        self.written, self.read = {}, {}  # by storage: {stream: tick}
        self.host, self.latest = {}, {}  # {stream: tick} that the CPU has waited for; all there are
        self.capture, self.broken, self.sync_mode, self.named = None, False, 0, False
        self.installed = False

    def own(self, x):
        """Puts `x`, whose memory is new, on the GPU; returns it."""
        self.written.pop(key(x), None)  # of memory that was freed
        self.read.pop(key(x), None)
        return self.memory.add(x)

    def is_pinned(self, x):
        at, end = x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
        return x in self.pinned or at < end and any(
            first <= at and end <= first + size for first, size in self.registered)

    def wait(self, what, clock):
        """The CPU waits for what a `clock` counts."""
        if self.capture is not None:
            self.capture.invalid = what
            raise GpuError("CUDA error: operation not permitted when stream is capturing"
                           f" (pretended: {what})")
        self._arrive()
        merge(self.host, clock)

    def hidden_wait(self, what):
        """An operation waits that does not say so by its name."""
        if self.sync_mode == 2:
            raise GpuError(f"called a synchronizing CUDA operation (pretended: {what})")
        self.wait(what, self.stream.clock)

    def _arrive(self):
        copies, self.copies = self.copies, []
        with _disable_current_modes():
            for here, values, is_read, where in copies:
                if not is_read:
                    here.copy_(values)
                elif not same_bits(here, values):
                    raise Race("memory of the CPU changed before the GPU, which copies it, was"
                               f" waited for; the copy began at\n{where}")

    def use(self, reads, writes):
        """An operation of the current stream on storages; Race if it does not wait for another."""
        number, clock = self.stream.number, self.stream.clock
        merge(clock, self.host)
        tick = clock[number] = self.latest[number] = self.latest.get(number, 0) + 1
        for at in reads | writes:
            before = self.written.get(at, {}) | (self.read.get(at, {}) if at in writes else {})
            for other, needed in before.items():
                if clock.get(other, 0) < needed:
                    raise Race(f"stream {number} uses memory that stream {other} uses, without"
                               " waiting for it")
            if at in writes:
                self.written[at], self.read[at] = {number: tick}, {}
            else:
                self.read.setdefault(at, {})[number] = tick

    def draw(self, func, kwargs):
        """Gives a random operation the GPU's own generator, unless the script gave another."""
        if kwargs.get("generator") not in (None, self.generator):
            return
        if self.broken and self.capture is None:
            raise GpuError("Offset increment outside graph capture encountered unexpectedly.")
        if any(x.name == "generator" for x in func._schema.arguments):
            kwargs["generator"] = self.generator

    @contextmanager
    def device_named(self):
        """A device within is one that a script has named. Torch itself names the CPU for all."""
        before, self.named = self.named, True
        try:
            yield
        finally:
            self.named = before


GPU = Gpu()


def key(x):
    """The storage of a tensor, as a number."""
    return x.untyped_storage()._cdata


def merge(clock, other):
    """Moves a clock to where `other` is, if that is later."""
    for number, tick in other.items():
        clock[number] = max(clock.get(number, 0), tick)


def same_bits(x, y):
    return REAL.numpy(x.contiguous()).tobytes() == REAL.numpy(y.contiguous()).tobytes()


def here():
    """The lines of the project that are being executed."""
    lines = [x for x in traceback.extract_stack()
             if x.filename != __file__ and "/torch/" not in x.filename]
    return "".join(traceback.format_list(lines[-4:]))


# streams, events, graphs

class Stream:
    """torch.cuda.Stream: its clock has the tick of each stream that it has waited for."""

    count = 0

    def __init__(self, device=None, priority=0):
        Stream.count += 1
        self.number, self.clock, self.device = Stream.count, {}, CUDA

    def wait_stream(self, other):
        merge(self.clock, other.clock)

    def wait_event(self, event):
        merge(self.clock, event.clock)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        GPU.wait("stream.synchronize", self.clock)


class Event:
    """torch.cuda.Event."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.clock, self.time = {}, 0.0

    def record(self, stream=None):
        self.clock, self.time = dict((stream or GPU.stream).clock), time.perf_counter()

    def wait(self, stream=None):
        merge((stream or GPU.stream).clock, self.clock)

    def synchronize(self):
        GPU.wait("event.synchronize", self.clock)

    def elapsed_time(self, end):
        return 1e3 * (end.time - self.time)


@contextmanager
def stream_context(stream):
    """torch.cuda.stream."""
    before, GPU.stream = GPU.stream, stream or GPU.stream
    try:
        yield
    finally:
        GPU.stream = before


class CUDAGraph:
    """torch.cuda.CUDAGraph; `ops` are the operations of a replay, each of which is a kernel."""

    def __init__(self, keep_graph=False):
        self.ops, self.reads, self.writes = [], set(), set()
        self.ended, self.invalid = False, None
        self.saved, self.fresh = {}, {}  # by storage: what was in it; a tensor of a new one

    def capture_begin(self):
        if GPU.stream is GPU.default:
            raise GpuError("CUDA graphs must be captured on a non-default stream.")
        GPU.capture = self

    def capture_end(self):
        GPU.capture = None
        with _disable_current_modes(), torch.no_grad():
            for storage, values in self.saved.values():
                storage.copy_(values)
            for x in self.fresh.values():
                torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).fill_(0xFF)
        self.saved, self.fresh = {}, {}
        if self.invalid:
            GPU.broken = True
            raise GpuError(f"CUDA error: {FAILED}")
        if not self.ops:
            warnings.warn("The CUDA Graph is empty.", stacklevel=3)
        self.ended = True

    def replay(self):
        if not self.ended:
            raise GpuError("Called CUDAGraph::replay without a preceding successful capture.")
        GPU.use(self.reads, self.writes)
        with _disable_current_modes(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, made in self.ops:
                for own, new in zip(made, tensors_in(func(*args, **kwargs))):
                    own.copy_(new)

    def before_writing(self, written):
        """Keeps what is in the memory that an operation will write, once."""
        for x in written:
            if key(x) not in self.saved and key(x) not in self.fresh:
                storage = x.untyped_storage()
                self.saved[key(x)] = storage, storage.clone()

    def record(self, func, args, kwargs, made, reads, writes):
        """Adds an operation, with the values that memory of the CPU has now."""
        args, kwargs = tree_map(values_of_now, (args, kwargs))
        self.ops.append((func, args, kwargs, made))
        self.reads |= reads
        self.writes |= writes

    def __del__(self):
        if GPU.capture is not None and self.ended:
            GPU.capture.invalid = "a graph was destroyed within a capture"


class graph:  # noqa: N801
    """torch.cuda.graph."""

    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        self.graph, self.within = cuda_graph, stream_context(stream or Stream())

    def __enter__(self):
        synchronize()
        empty_cache()
        self.within.__enter__()
        self.graph.capture_begin()

    def __exit__(self, *error):
        self.graph.capture_end()  # where it raises, the stream stays as it is: torch's does, too
        self.within.__exit__(*error)


def values_of_now(x):
    return x.clone() if isinstance(x, torch.Tensor) and x not in GPU.memory else x


# operations

def tensors_in(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def written_by(func, args, kwargs):
    """The tensors that an operation writes into."""
    given = dict(zip((x.name for x in func._schema.arguments), args)) | kwargs
    return [x for arg in func._schema.arguments if arg.alias_info and arg.alias_info.is_write
            for x in tensors_in([given.get(arg.name)])]


def is_view(func):
    return any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns)


def unfinished(x):
    """Fills memory in which a copy from the GPU has not arrived."""
    x.fill_(float("nan") if x.is_floating_point() else True if x.dtype == torch.bool
            else torch.iinfo(x.dtype).min)


class Operations(TorchDispatchMode):
    """Every operation of torch in this thread, below autograd."""

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device, pin = kwargs.get("device"), kwargs.pop("pin_memory", None)
        if device is not None:
            device, kwargs["device"] = torch.device(device), CPU
        given = tensors_in((args, kwargs))
        gpu = [x for x in given if x in GPU.memory]
        if func is aten.copy_.default:
            return self.copy(func, args, kwargs)
        if device == CPU and gpu and not GPU.named:
            device = None
        to_gpu = bool(gpu) if device is None else device.type == "cuda"
        if func is aten._to_copy.default:
            return self.copy_to(func, args, kwargs, to_gpu, pin)
        if func in SETTING:
            return func(*args, **kwargs)
        if gpu:
            self.check(func, args, given)
        if to_gpu:
            if func._schema.name.split("::")[1] in RANDOM:
                GPU.draw(func, kwargs)
            return self.on_gpu(func, args, kwargs)
        out = func(*args, **kwargs)
        return tree_map(GPU.pinned.add, out) if pin else out

    def check(self, func, args, given):
        """Refuses, of an operation on tensors of the GPU, others and waits that are forbidden."""
        places = tensors_in(args[1]) if func in INDEXING else []
        for x in places:
            if x.dtype in (torch.bool, torch.uint8):
                GPU.hidden_wait(f"{func} with a mask")
            elif x not in GPU.memory:
                GPU.hidden_wait(f"{func} with an index of the CPU")
        if any(x.dim() and x not in GPU.memory and not any(x is y for y in places) for x in given):
            shapes = [(*x.shape, str(x.device)) for x in given]
            raise GpuError("Expected all tensors to be on the same device, but found at least two"
                           f" devices, cuda:0 and cpu! (pretended: {func} of {shapes})")
        if func in WAITING:
            GPU.hidden_wait(str(func))

    def on_gpu(self, func, args, kwargs):
        """The operation, executed and counted, or recorded."""
        written, view = written_by(func, args, kwargs), is_view(func)
        if GPU.capture is not None:
            GPU.capture.before_writing(written)
        out = func(*args, **kwargs)
        made = [x for x in tensors_in(out) if x not in GPU.memory]
        for x in made:
            GPU.own(x)
            if GPU.capture is not None:
                GPU.capture.fresh[key(x)] = x
        if view:
            return out
        writes = {key(x) for x in (*written, *tensors_in(out))}
        reads = {key(x) for x in tensors_in((args, kwargs)) if x in GPU.memory} - writes
        if GPU.capture is None:
            GPU.use(reads, writes)
        else:
            made = [] if written else tensors_in(out)
            GPU.capture.record(func, args, kwargs, made, reads, writes)
        return out

    def copy(self, func, args, kwargs):
        """own.copy_(other, non_blocking)."""
        own, other = args[:2]
        later = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if own in GPU.memory:
            if other not in GPU.memory:
                self.upload(other, later)
            return self.on_gpu(func, args, kwargs)
        if other not in GPU.memory:
            return func(*args, **kwargs)
        if not later or not GPU.is_pinned(own):
            GPU.hidden_wait("a copy to the CPU")
            return func(*args, **kwargs)
        if GPU.capture is not None:
            raise GpuError("pretended: a copy to the CPU within a capture")
        GPU.use({key(other)}, set())
        GPU.copies.append((own, other.detach().clone(), False, here()))
        unfinished(own)
        return own

    def copy_to(self, func, args, kwargs, to_gpu, pin):
        """A copy of args[0] on a device, perhaps of another dtype."""
        from_gpu = args[0] in GPU.memory
        if from_gpu and to_gpu:
            return self.on_gpu(func, args, kwargs)
        if to_gpu:
            self.upload(args[0], kwargs.get("non_blocking", False))
        elif from_gpu:
            GPU.hidden_wait("a copy to the CPU")
        out = func(*args, **kwargs)
        if to_gpu:
            if GPU.capture is not None:
                raise GpuError("pretended: new memory from the CPU within a capture")
            GPU.use(set(), {key(GPU.own(out))})
        return GPU.pinned.add(out) if pin else out

    def upload(self, x, later):
        """A copy from memory of the CPU begins."""
        if later and x.is_contiguous() and GPU.is_pinned(x):
            GPU.copies.append((x.detach(), x.detach().clone(), True, here()))
        elif x.numel() and (GPU.capture is not None or not later):
            GPU.hidden_wait("a copy of memory that is not pinned, or that is awaited")


# torch in Python

def install():
    """Makes torch say, from now on in this process, that there is a GPU."""
    if GPU.installed:
        return
    GPU.installed, GPU.generator = True, torch.Generator()
    GPU.default = GPU.stream = Stream()
    replace(torch.Tensor, device=property(device_of), is_cuda=property(is_cuda), cpu=to_cpu,
            cuda=to_cuda, to=to, numpy=numpy, __array__=array, tolist=tolist,
            pin_memory=pin_memory, is_pinned=is_pinned)
    replace(torch, tensor=tensor, Generator=torch.Generator, autocast=torch.autocast)
    torch.Generator, torch.autocast = Generator, type("autocast", (REAL.autocast,), {
        "__init__": begin_autocast})
    replace(torch.cuda, CUDAGraph=CUDAGraph, Event=Event, Stream=Stream, graph=graph,
            stream=stream_context, **{x.__name__: x for x in (
                is_available, device_count, current_device, current_stream, default_stream,
                set_stream, synchronize, empty_cache, get_rng_state, set_rng_state, manual_seed,
                manual_seed_all, is_bf16_supported, get_device_name, get_sync_debug_mode,
                set_sync_debug_mode, is_current_stream_capturing, cudart, _lazy_init)})
    torch.cuda.device = nullcontext
    torch.backends.cudnn.is_acceptable = is_acceptable
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        kind.forward = as_in_cudnn(kind.forward)
    torch._C._ensureCUDADeviceGuardSet()
    Operations().__enter__()


def replace(holder, **others):
    """Gives attributes of torch other values; REAL keeps those that they had."""
    for name, other in others.items():
        setattr(REAL, name, getattr(holder, name))
        setattr(holder, name, other)


def device_of(x):
    return CUDA if x in GPU.memory else REAL.device.__get__(x)


def is_cuda(x):
    return x in GPU.memory


def is_pinned(x, device=None):
    return GPU.is_pinned(x)


def pin_memory(x, device=None):
    with _disable_current_modes():
        return GPU.pinned.add(x.clone())


def to_cpu(x, memory_format=torch.preserve_format):
    return to(x, "cpu")


def to_cuda(x, device=None, non_blocking=False):
    return to(x, "cuda", non_blocking=non_blocking)


def to(x, *args, device=None, dtype=None, non_blocking=False, copy=False, memory_format=None):
    """Tensor.to, with any of its three forms of arguments."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, (str, torch.device)):
            device = arg
        elif isinstance(arg, torch.dtype):
            dtype = arg
        elif isinstance(arg, bool):
            non_blocking = arg
    form = {} if memory_format is None else {"memory_format": memory_format}
    place = x.device if device is None else torch.device(device)
    if place.type == x.device.type:
        return REAL.to(x, dtype=x.dtype if dtype is None else dtype, copy=copy, **form)
    with GPU.device_named():
        return aten._to_copy(x, dtype=dtype, device=place, non_blocking=non_blocking, **form)


def refuse_numpy(x):
    if x in GPU.memory:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy"
                        " the tensor to host memory first.")


def numpy(x, *args, **settings):
    refuse_numpy(x)
    return REAL.numpy(x, *args, **settings)


def array(x, *args, **settings):
    refuse_numpy(x)
    return REAL.__array__(x, *args, **settings)


def tolist(x):
    if x in GPU.memory:
        GPU.hidden_wait("tolist")
    return REAL.tolist(x)


def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
    """torch.tensor."""
    data = data.cpu() if isinstance(data, torch.Tensor) else data
    to_gpu = device is not None and torch.device(device).type == "cuda"
    out = REAL.tensor(data, dtype=dtype, requires_grad=requires_grad,
                      device=CPU if to_gpu else device)
    if to_gpu:
        GPU.hidden_wait("torch.tensor on the device")
    return GPU.own(out) if to_gpu else GPU.pinned.add(out) if pin_memory else out


class Generator:
    """torch.Generator of any device."""

    def __new__(cls, device="cpu"):
        return REAL.Generator()


def begin_autocast(self, device_type, *args, **settings):
    REAL.autocast.__init__(self, "cpu" if device_type == "cuda" else device_type, *args, **settings)


# torch.cuda

def is_available():
    return True


def device_count():
    return 1


def current_device():
    return 0


def _lazy_init():
    pass


def is_bf16_supported(including_emulation=True):
    return True


def get_device_name(device=None):
    return "NVIDIA PRETENDED"


def current_stream(device=None):
    return GPU.stream


def default_stream(device=None):
    return GPU.default


def set_stream(stream):
    GPU.stream = stream


def synchronize(device=None):
    GPU.wait("cuda.synchronize", GPU.latest)


def empty_cache():
    if GPU.broken:
        raise GpuError("captures_underway.empty() INTERNAL ASSERT FAILED")


def get_rng_state(device=None):
    return GPU.generator.get_state()


def set_rng_state(state, device=None):
    GPU.generator.set_state(state)


def manual_seed(seed):
    GPU.generator.manual_seed(seed)


def manual_seed_all(seed):
    GPU.generator.manual_seed(seed)


def get_sync_debug_mode():
    return GPU.sync_mode


def set_sync_debug_mode(mode):
    GPU.sync_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)
    if GPU.sync_mode:
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)


def is_current_stream_capturing():
    return GPU.capture is not None


def cudart():
    """CUDA's functions that pin memory of the caller's."""
    def register(address, size, flags):
        GPU.registered.append((address, size))
        return 0

    def unregister(address):
        GPU._arrive()
        GPU.registered = [one for one in GPU.registered if one[0] != address]
        return 0
    return types.SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)


# cuDNN

def is_acceptable(x):
    return False


def as_in_cudnn(forward):
    """The forward of a recurrent module with cuDNN's rules (RNN.cpp: try_get_weight_buf)."""
    def checked(self, x, *args, **settings):
        out = forward(self, x, *args, **settings)
        seen, first = (y.data if isinstance(y, PackedSequence) else y for y in (x, out[0]))
        if seen not in GPU.memory:
            return out
        # When torch moves a module to a GPU it joins the weights; here they are no views then.
        if any(weight.storage_offset() for weight in self._flat_weights):
            warnings.warn("RNN module weights are not part of single contiguous chunk of memory.",
                          stacklevel=2)
        if first.requires_grad and not self.training:
            first.register_hook(refuse_gradient)
        return out
    return checked


def refuse_gradient(gradient):
    raise GpuError("cudnn RNN backward can only be called in training mode")
