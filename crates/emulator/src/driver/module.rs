//! Modules and their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::attributes::{MAX_SHARED, MAX_THREADS, USUAL_SHARED};
use super::launch::Limits;
use super::{Device, Error, Handle, Result, Status, current, put, started, status};
use crate::program::{Kernel, Program};

pub(super) struct Module {
    program: Program,
    /// Those that were asked for: whoever asks again gets the same, with what it was allowed.
    functions: Mutex<HashMap<String, Handle>>,
}

pub(super) struct Function {
    pub(super) kernel: Arc<Kernel>,
    /// Dynamic shared memory that a launch may ask for.
    shared_limit: AtomicUsize,
}

impl Function {
    fn new(kernel: Arc<Kernel>) -> Self {
        let shared_limit = USUAL_SHARED.saturating_sub(kernel.static_shared);
        Self { kernel, shared_limit: AtomicUsize::new(shared_limit) }
    }

    pub(super) fn limits(&self) -> Limits {
        let threads = match self.kernel.max_threads {
            // It does not say.
            0 => MAX_THREADS,
            n => n.min(MAX_THREADS),
        };
        Limits {
            threads,
            cluster: self.kernel.cluster.max(1),
            static_shared: self.kernel.static_shared,
            dynamic_shared: self.shared_limit.load(Ordering::Relaxed),
        }
    }

    fn allow_shared(&self, bytes: usize) -> Result<()> {
        if bytes > MAX_SHARED.saturating_sub(self.kernel.static_shared) {
            return Err(Error::InvalidValue);
        }
        self.shared_limit.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Device {
    fn load(&self, image: &CStr) -> Result<Handle> {
        self.check_sound()?;
        if image.to_bytes().starts_with(b"\x7fELF") {
            return Err(Error::NoBinaryForGpu);
        }
        let text = image.to_str().map_err(|_| Error::InvalidImage)?;
        let program = Program::read(text, &self.space).map_err(|why| {
            eprintln!("emulator: {why}");
            Error::InvalidPtx
        })?;
        Ok(self.modules.add(Arc::new(Module { program, functions: Mutex::default() })))
    }

    fn unload(&self, module: Handle) -> Result<()> {
        let module = self.modules.remove(module)?;
        let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.drain().try_for_each(|(_, function)| self.functions.remove(function).map(|_| ()))
    }

    fn function(&self, module: Handle, name: &str) -> Result<Handle> {
        let module = self.modules.get(module)?;
        let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        let kernel = module.program.kernels.get(name).ok_or(Error::NotFound)?;
        let function = self.functions.add(Arc::new(Function::new(kernel.clone())));
        functions.insert(name.to_string(), function);
        Ok(function)
    }
}

/// # Safety
/// `to` takes a handle; `image` is null, an ELF file, or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(to: *mut Handle, image: *const c_void) -> Status {
    status(current().and_then(|device| {
        if image.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: text ends with a zero, as the caller promises, and an ELF file has one in its first 16 bytes.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        // SAFETY: the caller's promise.
        unsafe { put(to, device.load(image)?) }
    }))
}

/// Graphs that launch its kernels keep them.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> Status {
    status(started().and_then(|device| device.unload(module)))
}

/// # Safety
/// `to` takes a handle; `name` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(to: *mut Handle, module: Handle, name: *const c_char) -> Status {
    status(started().and_then(|device| {
        if name.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: not null (checked); the rest is the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Error::NotFound)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, device.function(module, name)?) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, which: u32, value: c_int) -> Status {
    const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
    status(started().and_then(|device| {
        let function = device.functions.get(function)?;
        if which != MAX_DYNAMIC_SHARED_SIZE_BYTES {
            return Err(Error::NotSupported);
        }
        function.allow_shared(usize::try_from(value).map_err(|_| Error::InvalidValue)?)
    }))
}
