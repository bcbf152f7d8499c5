//! Kernels by name: embedded, from the disk cache, or compiled now; loaded once.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use cudarc::driver::sys::{self, CUfunction_attribute as FunctionAttribute};

use super::compile::{self, nvrtc_is_present};
use super::disk_cache::{self, DiskCache};
use super::{CudaError, Result, archive, check};
use crate::kernels::{modules, source_hash};

/// A loaded kernel. Lives as long as its device.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    entry: &'static Entry,
}

struct Entry {
    function: sys::CUfunction,
    name: &'static str,
    /// Dynamic shared memory that was asked for so far. (Without asking there are 48 KB, less what the kernel has by itself.)
    shared_limit: Mutex<usize>,
}

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for Entry {}
// SAFETY: as above; the limit has a lock.
unsafe impl Sync for Entry {}

impl Kernel {
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.entry.function
    }

    pub(crate) fn name(&self) -> &'static str {
        self.entry.name
    }

    pub(crate) fn allow_shared(&self, bytes: usize) -> Result<()> {
        // Held while the driver is told: of two threads the one that asks for less must not come last.
        let mut limit = self.entry.shared_limit.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if bytes <= *limit {
            return Ok(());
        }
        let which = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of a loaded module.
        let result = unsafe { sys::cuFuncSetAttribute(self.entry.function, which, bytes as i32) };
        check("cuFuncSetAttribute", result)?;
        *limit = bytes;
        Ok(())
    }

    /// Blocks of so many threads and so much shared memory that a multiprocessor runs at once.
    pub(crate) fn blocks_at_once(&self, threads: u32, shared_bytes: usize) -> Result<usize> {
        self.allow_shared(shared_bytes)?;
        let (mut n, function) = (0, self.entry.function);
        // SAFETY: a function of a loaded module; `n` receives the count.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut n, function, threads as i32, shared_bytes)
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(n.max(0) as usize)
    }
}

pub(super) struct Modules {
    sm: u32,
    /// The device is another, whose driver compiles text for this one.
    is_pretence: bool,
    /// Whose code the device runs, its own first.
    arches: Vec<String>,
    cache: DiskCache,
    /// Compiled ahead of being asked for, where the disk does not keep it.
    ahead: Mutex<HashMap<&'static str, Vec<u8>>>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, ModuleHandle>,
    kernels: HashMap<(&'static str, &'static str), Kernel>,
}

struct ModuleHandle(sys::CUmodule);

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for ModuleHandle {}

impl Modules {
    pub(super) fn new(sm: u32, is_pretence: bool) -> Result<Self> {
        let arches = if is_pretence { Vec::new() } else { compile::arches_for(sm) };
        check_kernels(sm, &arches)?;
        let cache = DiskCache::of_user();
        cache.remove_unused(SystemTime::now());
        Ok(Self { sm, is_pretence, arches, cache, ahead: Mutex::default(), loaded: Mutex::default() })
    }

    pub(super) fn kernel(&self, module: &'static str, entry: &'static str) -> Result<Kernel> {
        let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(kernel) = loaded.kernels.get(&(module, entry)) {
            return Ok(*kernel);
        }
        let handle = match loaded.modules.get(module) {
            Some(handle) => handle.0,
            None => {
                let handle = self.load(module)?;
                loaded.modules.insert(module, ModuleHandle(handle));
                handle
            }
        };
        let name = CString::new(entry).expect("entry names in this crate have no zero");
        let mut function = std::ptr::null_mut();
        // SAFETY: `handle` is a loaded module; `function` receives the handle.
        check(entry, unsafe { sys::cuModuleGetFunction(&mut function, handle, name.as_ptr()) })?;
        // There are as many as kernels in the program, and graphs refer to them: kept for good.
        let made: &'static Entry =
            Box::leak(Box::new(Entry { function, name: entry, shared_limit: Mutex::default() }));
        let kernel = Kernel { entry: made };
        loaded.kernels.insert((module, entry), kernel);
        Ok(kernel)
    }

    fn load(&self, module: &'static str) -> Result<sys::CUmodule> {
        if let Some(cubin) = embedded(module, &self.arches) {
            return load_cubin(cubin);
        }
        let arch = self.target();
        let kept_as = disk_cache::name(module, &arch, source_hash(module));
        if let Some(cubin) = self.ahead().remove(module).or_else(|| self.cache.read(&kept_as, SystemTime::now()))
            // A damaged file is compiled again.
            && let Ok(handle) = load_cubin(&cubin)
        {
            return Ok(handle);
        }
        let cubin = compile::compile(module, &arch)?;
        self.cache.write(&kept_as, &cubin);
        load_cubin(&cubin)
    }

    /// What NVRTC is asked for.
    fn target(&self) -> String {
        if self.is_pretence { compile::text_for(self.sm) } else { compile::target_for(self.sm) }
    }

    fn ahead(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<u8>>> {
        self.ahead.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Compiles what neither the build nor the disk holds, on all cores. What fails is compiled again when it is asked for, and says then why.
    pub(super) fn compile_ahead(&self, mut progress: impl FnMut(usize, usize)) {
        if !nvrtc_is_present() {
            return;
        }
        let arch = self.target();
        let kept_as = |module: &str| disk_cache::name(module, &arch, source_hash(module));
        let is_missing =
            |module: &&str| embedded(module, &self.arches).is_none() && !self.cache.holds(&kept_as(module));
        let missing: Vec<_> = modules().filter(is_missing).map(|module| (module, arch.as_str())).collect();
        if missing.is_empty() {
            return;
        }
        progress(0, missing.len());
        let mut n_done = 0;
        compile::compile_each(&missing, |job, compiled| {
            let module = missing[job].0;
            if let Ok(cubin) = compiled
                && !self.cache.write(&kept_as(module), &cubin)
            {
                self.ahead().insert(module, cubin);
            }
            n_done += 1;
            progress(n_done, missing.len());
        });
    }

    pub(super) fn unload(&self) {
        let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loaded.kernels.clear();
        for (_, handle) in loaded.modules.drain() {
            // SAFETY: loaded by `load`, unloaded once; nobody can launch its kernels once the device is dropped.
            unsafe { sys::cuModuleUnload(handle.0) };
        }
    }
}

/// Refuses where there would be no kernels.
pub(super) fn check_kernels(sm: u32, arches: &[String]) -> Result<()> {
    // Whoever embeds one embeds all.
    let can_be_had = embedded("norm", arches).is_some() || nvrtc_is_present();
    can_be_had.then_some(()).ok_or_else(|| CudaError::NoCompiler { arch: compile::arch_for(sm) })
}

/// The first there is.
fn embedded(module: &str, arches: &[String]) -> Option<&'static [u8]> {
    let hash = source_hash(module);
    arches.iter().find_map(|arch| archive::find(module, arch, hash))
}

fn load_cubin(cubin: &[u8]) -> Result<sys::CUmodule> {
    let mut module = std::ptr::null_mut();
    // SAFETY: a context is current; the driver checks the image, an ELF file whose own headers say how long it is.
    check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) })?;
    Ok(module)
}
