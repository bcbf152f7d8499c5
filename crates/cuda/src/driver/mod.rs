//! The small layer over the driver API: device, memory, modules, launches, graphs. Everything unsafe about CUDA that is
//! not a kernel is here.

pub(crate) mod archive;
pub(crate) mod compile;
mod disk_cache;
mod error;
mod event;
mod memory;
mod modules;
mod patience;
mod queue;

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

pub use error::CudaError;
pub(crate) use error::{Result, check};
pub(crate) use event::Event;
pub(crate) use memory::{DeviceBuffer, PinnedBuffer, device_bytes};
pub(crate) use modules::Kernel;
pub(crate) use patience::Waiting;
pub use patience::when_stuck;
pub(crate) use queue::{Graph, KernelParams, Queue, Range};

/// A device with its primary context and the kernels loaded so far. One per device and process is enough.
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(crate) name: String,
    /// Compute capability, 90 for 9.0.
    pub(crate) sm: u32,
    /// Programmatic dependent launch: the next kernel's blocks start while this one's last still run.
    pub(crate) overlaps: bool,
    /// [`Pretence::apart`].
    pub(crate) is_raced: bool,
    pub(crate) n_multiprocessors: usize,
    /// Shared memory that a block may ask for.
    pub(crate) max_shared_bytes: usize,
    /// Of memory that a launch can say something about; 0 where it cannot.
    pub(crate) max_window_bytes: usize,
    modules: modules::Modules,
}

// SAFETY: a context may be used from any thread that makes it current, which every method here does first; the module
// cache has a lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What is known of a device without touching it.
struct Probed {
    device: sys::CUdevice,
    name: String,
    sm: u32,
}

/// The device, if this backend runs on it.
fn probe(ordinal: usize) -> Result<Probed> {
    let known = Device::count()?;
    if ordinal >= known {
        return Err(CudaError::NoDevice { asked: ordinal, known });
    }
    let mut device = 0;
    let mut name = [0; 128];
    // SAFETY: the ordinal is in range; the out parameters live until the calls return and `name` has the given length.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
    }
    // SAFETY: the driver ended the name with a zero, or the last byte, which it was not given, is one.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if major < 8 {
        return Err(CudaError::TooOld { device: name, major, minor });
    }
    Ok(Probed { device, name, sm: (major * 10 + minor) as u32 })
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `device` is a device of the driver's.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
    Ok(value)
}

/// What a device does otherwise than it would, for checks. What kernels compute is theirs; how fast is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pretence {
    /// An older or smaller card that it stands in for, so that kernels for cards which are not at hand can be run: its compute
    /// capability, 86 for 8.6.
    pub sm: Option<u32>,
    /// As `compute-sanitizer`'s racecheck wants it, which follows neither launches that overlap nor a lane that speaks for others: no kernel begins before
    /// the one ahead has ended, and each lane says for itself what it has read (but for prompts' kernels without `wgmma`). The machine code is the same.
    pub apart: bool,
    /// Work is dealt to no more multiprocessors than these: with two, matrices of a test are as many stages to a block as a large model's are
    /// with all of them.
    pub multiprocessors: Option<usize>,
}

impl Pretence {
    /// Shared memory that a block may ask for there, as NVIDIA's programming guide has it.
    fn max_shared_bytes(self) -> Option<usize> {
        self.sm.map(|sm| match sm {
            80 | 87 => 163 << 10,
            90 | 100 | 103 => 227 << 10,
            _ => 99 << 10,
        })
    }
}

impl Device {
    /// How many devices the driver knows, which is started with the first call. Never touches a device.
    pub fn count() -> Result<usize> {
        // Errors are not for keeping twice: why it failed, if the library is there at all.
        static STARTED: OnceLock<std::result::Result<(), Option<String>>> = OnceLock::new();
        let started = STARTED.get_or_init(|| {
            // SAFETY: loads the library and looks for nothing in it.
            if !unsafe { sys::is_culib_present() } {
                return Err(None);
            }
            // SAFETY: the library is there.
            match unsafe { sys::cuInit(0) } {
                // The driver of a machine whose cards are elsewhere, as in a container.
                sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(()),
                result => check("cuInit", result).map_err(|e| Some(e.to_string())),
            }
        });
        match started {
            Err(None) => return Err(CudaError::NoDriver),
            Err(Some(why)) => return Err(CudaError::DriverFails(why.clone())),
            Ok(()) => {}
        }
        let mut n = 0;
        // SAFETY: the driver is there, and refuses where it was not started; `n` receives the count.
        let counted = check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut n) });
        Ok(if counted.is_ok() { n.max(0) as usize } else { 0 })
    }

    /// Whether the device can be opened, or why not: without a context, which takes a while to make.
    pub fn check(ordinal: usize) -> Result<()> {
        let sm = probe(ordinal)?.sm;
        modules::check_kernels(sm, &compile::arches_for(sm))
    }

    /// Loads a kernel: whether the driver takes those that there are, or NVRTC makes some for this card, is known only then.
    pub fn check_kernels(&self) -> Result<()> {
        self.make_current()?;
        self.kernel("norm", "rms_norm").map(|_| ())
    }

    /// Makes kernels ready that NVRTC has to compile, once for a card and a version, on all cores: one after the other, as steps ask for them,
    /// would take longer than who waits for a step may think it can. `progress` is told how many are, of how many.
    pub fn compile_ahead(&self, progress: impl FnMut(usize, usize)) {
        self.modules.compile_ahead(progress);
    }

    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        Self::open_as(ordinal, Pretence::default())
    }

    pub fn open_as(ordinal: usize, pretence: Pretence) -> Result<Arc<Self>> {
        let Probed { device, name, sm: own } = probe(ordinal)?;
        let attribute = |which| attribute(device, which);
        let n_multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let max_shared_bytes =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        let max_window_bytes =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE)?.max(0);
        let sm = pretence.sm.unwrap_or(own);
        let modules = modules::Modules::new(sm, sm != own)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `device` is a device of the driver's; released in `drop`.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let n_multiprocessors = pretence.multiprocessors.unwrap_or(usize::MAX).clamp(1, n_multiprocessors);
        let max_shared_bytes = pretence.max_shared_bytes().unwrap_or(usize::MAX).min(max_shared_bytes);
        Ok(Arc::new(Self {
            device,
            context,
            name,
            sm,
            overlaps: sm >= 90 && !pretence.apart,
            is_raced: pretence.apart,
            n_multiprocessors,
            max_shared_bytes,
            max_window_bytes: max_window_bytes as usize,
            modules,
        }))
    }

    /// Makes the context this thread's. Cheap, and needed wherever a call may come from another thread.
    pub(crate) fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// (free, total) bytes of device memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// The kernel `entry` of `kernels/{module}.cu`, compiled or loaded when first asked for.
    pub(crate) fn kernel(&self, module: &'static str, entry: &'static str) -> Result<Kernel> {
        self.make_current()?;
        self.modules.kernel(module, entry)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.modules.unload();
        // SAFETY: retained in `open`; buffers, queues and graphs hold an `Arc` of this device, so none is left.
        unsafe {
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
