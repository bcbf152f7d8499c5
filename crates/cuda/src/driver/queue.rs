//! A stream: copies, launches, and graphs recorded from it.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUlaunchAttributeID_enum as AttributeId};

use super::{Device, DeviceBuffer, Event, Kernel, PinnedBuffer, Result, Waiting, check};

/// The one by-value argument of a kernel: a `repr(C)` struct laid out as the kernel's own.
///
/// # Safety
/// The type has the layout of the parameter struct of every kernel it is passed to, without padding that the device
/// would read.
pub(crate) unsafe trait KernelParams: Copy {}

pub(crate) struct Queue {
    device: Arc<Device>,
    stream: sys::CUstream,
    is_capturing: Cell<bool>,
    /// The next launch begins when all before it is done.
    is_apart: Cell<bool>,
    /// What the next launch reads and nobody after it for long.
    read_once: Cell<Option<Range>>,
}

/// Of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

// SAFETY: a stream may be used from any thread with the context current, one at a time, which `&mut`-less `Queue` in an
// owner that is not `Sync` gives.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        device.make_current()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a context is current; `stream` receives the handle. Non-blocking: nothing waits for the default stream.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, 1) })?;
        Ok(Self {
            device: device.clone(),
            stream,
            is_capturing: Cell::new(false),
            is_apart: Cell::new(false),
            read_once: Cell::new(None),
        })
    }

    /// No block of the next kernel comes in before the last one of those before it is done: for one that makes what others
    /// read before they wait.
    pub(crate) fn set_apart(&self) {
        self.is_apart.set(true);
    }

    /// What the next kernel reads of this range leaves L2 before anything else does: what other kernels come back to (their inputs, their
    /// code) stays. At most [`Device::max_window_bytes`] of it count.
    pub(crate) fn set_read_once(&self, range: Range) {
        let bytes = range.bytes.min(self.device.max_window_bytes);
        self.read_once.set((bytes > 0).then_some(Range { bytes, ..range }));
    }

    pub(crate) fn launch<P: KernelParams>(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: usize,
        params: &P,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        kernel.allow_shared(shared_bytes)?;
        let overlaps = !self.is_apart.take() && self.device.overlaps;
        let window = self.read_once.take();
        let range = window.unwrap_or(Range { at: 0, bytes: 0 });
        let overlap = sys::CUlaunchAttribute {
            id: AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let read_once = sys::CUlaunchAttribute {
            id: AttributeId::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                accessPolicyWindow: sys::CUaccessPolicyWindow {
                    base_ptr: range.at as *mut c_void,
                    num_bytes: range.bytes,
                    hitRatio: 1.0,
                    hitProp: sys::CUaccessProperty::CU_ACCESS_PROPERTY_STREAMING,
                    missProp: sys::CUaccessProperty::CU_ACCESS_PROPERTY_NORMAL,
                },
            },
        };
        // The last of them counts only with a range.
        let mut attributes = if overlaps { [overlap, read_once] } else { [read_once, read_once] };
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes as u32,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: u32::from(overlaps) + u32::from(window.is_some()),
        };
        let mut arguments: [*mut c_void; 1] = [std::ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: the kernel takes one parameter of P's layout (P's promise), which the driver copies before returning;
        // the addresses in it are of buffers that outlive the queue's work, as the callers in `ops` and `backend` hold.
        let result = unsafe {
            sys::cuLaunchKernelEx(&config, kernel.function(), arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        check(kernel.name(), result)
    }

    /// Copies the first `len` bytes to the start of `to`.
    pub(crate) fn send(&self, from: &PinnedBuffer, to: &DeviceBuffer, len: usize) -> Result<()> {
        assert!(len <= from.len() && len <= to.len(), "{len} of {} to {}", from.len(), to.len());
        // SAFETY: in bounds (asserted). The owner does not write `from` before it has waited for the queue.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to.ptr(), from.ptr().cast(), len, self.stream) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// Copies `len` bytes at device address `from` to the start of `to`.
    ///
    /// # Safety
    /// `from` begins a range of `len` bytes of a live device buffer, and nobody reads `to` before [`Self::wait`].
    pub(crate) unsafe fn fetch(&self, from: u64, to: &PinnedBuffer, len: usize) -> Result<()> {
        assert!(len <= to.len(), "{len} to {}", to.len());
        // SAFETY: `to` has room (asserted); the rest is the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.ptr().cast(), from, len, self.stream) };
        check("cuMemcpyDtoHAsync", result)
    }

    /// Copies `len` bytes between device addresses.
    ///
    /// # Safety
    /// Both begin ranges of `len` bytes of live device buffers that do not overlap.
    pub(crate) unsafe fn copy(&self, from: u64, to: u64, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, self.stream) })
    }

    /// Copies `len` bytes of pinned memory from byte `at` on.
    ///
    /// # Safety
    /// Nobody writes them before the queue has come to this copy.
    pub(crate) unsafe fn send_part(
        &self,
        from: &PinnedBuffer,
        at: usize,
        to: &DeviceBuffer,
        to_at: usize,
        len: usize,
    ) -> Result<()> {
        assert!(
            at + len <= from.len() && to_at + len <= to.len(),
            "{len} at {at} of {} to {to_at} of {}",
            from.len(),
            to.len()
        );
        // SAFETY: in bounds (asserted); the rest is the caller's promise.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.ptr() + to_at as u64, from.ptr().add(at).cast(), len, self.stream)
        };
        check("cuMemcpyHtoDAsync", result)
    }

    pub(crate) fn clear(&self, buffer: &DeviceBuffer, from: usize, len: usize) -> Result<()> {
        assert!(from + len <= buffer.len(), "{from} + {len} of {}", buffer.len());
        // SAFETY: in bounds (asserted).
        let result = unsafe { sys::cuMemsetD8Async(buffer.ptr() + from as u64, 0, len, self.stream) };
        check("cuMemsetD8Async", result)
    }

    /// Copies `len` bytes of a buffer to another place in it that they do not reach into.
    pub(crate) fn copy_within(
        &self,
        buffer: &DeviceBuffer,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<()> {
        assert!(from.max(to) + len <= buffer.len() && from.abs_diff(to) >= len, "{len} from {from} to {to}");
        if len == 0 {
            return Ok(());
        }
        let (from, to) = (buffer.ptr() + from as u64, buffer.ptr() + to as u64);
        // SAFETY: both ranges are in bounds and apart (asserted), and the buffer outlives the queue's work.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, self.stream) })
    }

    /// Pageable memory to the device, and waits: for loading.
    pub(crate) fn send_bytes(&self, bytes: &[u8], to: &DeviceBuffer, at: usize) -> Result<()> {
        assert!(at + bytes.len() <= to.len(), "{} at {at} of {}", bytes.len(), to.len());
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: in bounds (asserted), and `bytes` lives until the wait below is over.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.ptr() + at as u64, bytes.as_ptr().cast(), bytes.len(), self.stream)
        };
        check("cuMemcpyHtoDAsync", result)?;
        self.wait()
    }

    /// Until everything asked for so far is done. Also where errors of kernels come to light.
    pub(crate) fn wait(&self) -> Result<()> {
        let _waiting = Waiting::begin();
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// The event is reached once everything asked for so far is done; in a graph, each time it is replayed.
    pub(crate) fn mark(&self, event: &Event) -> Result<()> {
        // External: a node of the graph, where there is one, in place of a dependency.
        let flags = u32::from(self.is_capturing.get());
        // SAFETY: both handles are live; a graph's owner keeps its events as long as the graph.
        check("cuEventRecord", unsafe { sys::cuEventRecordWithFlags(event.handle(), self.stream, flags) })
    }

    /// What `record` launches becomes a graph instead of running.
    pub(crate) fn capture(&self, record: impl FnOnce() -> Result<()>) -> Result<Graph> {
        // SAFETY: not capturing already: capture takes a closure that cannot reach a `&mut` owner of this queue.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(
                self.stream,
                sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
        })?;
        self.is_capturing.set(true);
        let recorded = record();
        self.is_capturing.set(false);
        let mut graph = std::ptr::null_mut();
        // SAFETY: a capture was begun above.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) });
        recorded?;
        ended?;
        let mut exec = std::ptr::null_mut();
        let mut n_nodes = 0;
        // SAFETY: `graph` is the graph just captured; instantiating copies it, so it can be destroyed after.
        let made = unsafe {
            sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut n_nodes);
            let made = check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            sys::cuGraphDestroy(graph);
            made
        };
        made?;
        Ok(Graph { device: self.device.clone(), exec, n_nodes })
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the graph is alive, and its nodes' buffers are, as its owner drops it before them.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.exec, self.stream) })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            let _waiting = Waiting::begin();
            // SAFETY: created in `new`, destroyed once, and nothing it was asked for is under way any more.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

/// A step, ready to be replayed.
pub(crate) struct Graph {
    device: Arc<Device>,
    exec: sys::CUgraphExec,
    pub(crate) n_nodes: usize,
}

// SAFETY: a handle, used under the owner's `&mut`.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: instantiated in `capture`, destroyed once.
            unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
    }
}
