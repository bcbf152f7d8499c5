//! CUDA C++ to machine code by NVRTC, with no device needed.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::error::{CudaError, Result};
use crate::kernels::{HEADERS, source};

/// What a release embeds, and what `build-kernels` compiles unless told otherwise.
pub const RELEASE_ARCHES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"];

/// The target for a device: Hopper's and Blackwell's own instructions need the `a`.
pub(crate) fn arch_for(sm: u32) -> String {
    match sm {
        90 | 100 => format!("sm_{sm}a"),
        _ => format!("sm_{sm}"),
    }
}

/// Targets whose machine code a device runs, its own first: that of older cards of the same generation, but for what is one card's
/// own (`a`). Boards (Orin, Thor) run no cards' code, by NVIDIA's guide.
pub(crate) fn arches_for(sm: u32) -> Vec<String> {
    let is_board = matches!(sm, 87 | 101 | 110);
    let older = |arch: &&&str| {
        let other = arch.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok());
        !is_board && other.is_some_and(|other| other / 10 == sm / 10 && other < sm)
    };
    let older = RELEASE_ARCHES.iter().rev().filter(older).map(|arch| arch.to_string());
    std::iter::once(arch_for(sm)).chain(older).collect()
}

/// From this on kernels are the same for every card: those for others differ in what they ask of one, and the host asks for it by the
/// card.
const FIRST_ALIKE: u32 = 120;

/// What NVRTC is asked for: a device's machine code, or, of one newer than it knows, the text for the newest that it does, which the device's driver
/// compiles on.
pub(crate) fn target_for(sm: u32) -> String {
    target_among(sm, &nvrtc_knows())
}

fn target_among(sm: u32, known: &[u32]) -> String {
    let newest = known.iter().filter(|known| (FIRST_ALIKE..sm).contains(*known)).max();
    match newest {
        Some(newest) if !known.contains(&sm) => format!("compute_{newest}"),
        _ => arch_for(sm),
    }
}

/// As text, which the driver compiles on.
pub(crate) fn text_for(sm: u32) -> String {
    arch_for(sm).replace("sm_", "compute_")
}

/// Compute capabilities; none without NVRTC, or with one too old to say.
fn nvrtc_knows() -> Vec<u32> {
    if nvrtc_version() < (11, 2) {
        return Vec::new();
    }
    let mut n = 0;
    // SAFETY: the library is there and has this function; `n` receives a number.
    if unsafe { sys::nvrtcGetNumSupportedArchs(&mut n) } != nvrtcResult::NVRTC_SUCCESS {
        return Vec::new();
    }
    let mut known = vec![0i32; n.max(0) as usize];
    // SAFETY: as long as NVRTC says.
    if unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) } != nvrtcResult::NVRTC_SUCCESS {
        return Vec::new();
    }
    known.into_iter().filter_map(|sm| u32::try_from(sm).ok()).collect()
}

pub fn nvrtc_is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads the library and looks for nothing in it.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// (major, minor) of NVRTC, part of what a cached cubin is named by.
pub(crate) fn nvrtc_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    if nvrtc_is_present() {
        // SAFETY: the library is there; both receive a number.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    }
    (major, minor)
}

/// `kernels/{module}.cu` for `arch`, as a driver loads it: a cubin, or of a virtual one (`compute_86`) the text that the driver
/// compiles on. NVRTC must be present.
pub(crate) fn compile(module: &'static str, arch: &str) -> Result<Vec<u8>> {
    if !nvrtc_is_present() {
        return Err(CudaError::NoCompiler { arch: arch.into() });
    }
    let c = |s: &str| CString::new(s).expect("kernel sources and options have no zero");
    let (text, name) = (c(source(module)), c(&format!("{module}.cu")));
    let headers: Vec<(CString, CString)> = HEADERS.iter().map(|(n, t)| (c(n), c(t))).collect();
    let header_names: Vec<_> = headers.iter().map(|h| h.0.as_ptr()).collect();
    let header_texts: Vec<_> = headers.iter().map(|h| h.1.as_ptr()).collect();
    // Fused multiply-add is left on: it is the same in every launch of a kernel, so rows keep their bits.
    let options = [c(&format!("--gpu-architecture={arch}")), c("--std=c++17")];
    let option_ptrs: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: NVRTC is present; all strings outlive the program, which is destroyed before they are dropped.
    unsafe {
        let made = sys::nvrtcCreateProgram(
            &mut program,
            text.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            header_texts.as_ptr(),
            header_names.as_ptr(),
        );
        if made != nvrtcResult::NVRTC_SUCCESS {
            return Err(failure(module, arch, made, String::new()));
        }
        let compiled = sys::nvrtcCompileProgram(program, option_ptrs.len() as i32, option_ptrs.as_ptr());
        let result = if compiled == nvrtcResult::NVRTC_SUCCESS {
            let image = if arch.starts_with("compute_") { text_of(program) } else { cubin_of(program) };
            image.ok_or_else(|| failure(module, arch, compiled, "no code came out".into()))
        } else {
            Err(failure(module, arch, compiled, log_of(program)))
        };
        sys::nvrtcDestroyProgram(&mut program);
        result
    }
}

/// [`compile`]s modules for targets; the machine's cores take them in turn, as one may take up to a minute. `made` gets each when it is there, by
/// its place among the `jobs`.
pub fn compile_each(jobs: &[(&'static str, &str)], mut made: impl FnMut(usize, Result<Vec<u8>>)) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..cores.min(jobs.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some((module, arch)) = jobs.get(job) else { break };
                    // Nobody takes them any more where `made` has panicked.
                    let Ok(()) = sender.send((job, compile(module, arch))) else { break };
                }
            });
        }
        drop(sender);
        results.into_iter().for_each(|(job, compiled)| made(job, compiled));
    });
}

fn failure(module: &'static str, arch: &str, result: nvrtcResult, log: String) -> CudaError {
    // SAFETY: the string is static and NVRTC knows its own results.
    let reason = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) }.to_string_lossy().into_owned();
    CudaError::Compile { module, arch: arch.into(), log: format!("{reason}\n{log}") }
}

/// # Safety
/// `program` is a program that was compiled.
unsafe fn log_of(program: sys::nvrtcProgram) -> String {
    let mut len = 0;
    // SAFETY: the caller's promise; the buffer has the length NVRTC asks for.
    unsafe {
        sys::nvrtcGetProgramLogSize(program, &mut len);
        let mut log = vec![0u8; len];
        sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
    }
}

/// # Safety
/// `program` is a program that was compiled.
unsafe fn cubin_of(program: sys::nvrtcProgram) -> Option<Vec<u8>> {
    let mut len = 0;
    // SAFETY: the caller's promise; the buffer has the length NVRTC asks for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut len);
        let mut cubin = vec![0u8; len];
        let got = sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast());
        (got == nvrtcResult::NVRTC_SUCCESS && len > 0).then_some(cubin)
    }
}

/// Ends with a zero.
///
/// # Safety
/// `program` is a program that was compiled.
unsafe fn text_of(program: sys::nvrtcProgram) -> Option<Vec<u8>> {
    let mut len = 0;
    // SAFETY: the caller's promise; the buffer has the length NVRTC asks for.
    unsafe {
        sys::nvrtcGetPTXSize(program, &mut len);
        let mut text = vec![0u8; len];
        let got = sys::nvrtcGetPTX(program, text.as_mut_ptr().cast());
        (got == nvrtcResult::NVRTC_SUCCESS && len > 0).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_newer_than_the_compiler_gets_text_for_the_newest_that_this_knows() {
        let known = [75, 80, 86, 89, 90, 100, 120];
        for (sm, target) in
            [(80, "sm_80"), (90, "sm_90a"), (120, "sm_120"), (121, "compute_120"), (200, "compute_120")]
        {
            assert_eq!(target_among(sm, &known), target, "{sm}");
        }
        // Kernels for these differ from those for others in what they ask of a card.
        assert_eq!(target_among(103, &known), "sm_103");
        assert_eq!(target_among(120, &known[..5]), "sm_120");
        // It will say itself that it does not know a card so old, or that it is not there.
        assert_eq!(target_among(70, &known), "sm_70");
        assert_eq!(target_among(90, &[]), "sm_90a");
    }

    #[test]
    fn a_card_runs_what_was_made_for_older_ones_of_its_generation() {
        for (sm, arches) in [
            (80, &["sm_80"][..]),
            (86, &["sm_86", "sm_80"]),
            (87, &["sm_87"]),
            (89, &["sm_89", "sm_86", "sm_80"]),
            (90, &["sm_90a"]),
            (100, &["sm_100a"]),
            // `sm_100a` is 10.0's own.
            (103, &["sm_103"]),
            (120, &["sm_120"]),
            (121, &["sm_121", "sm_120"]),
        ] {
            assert_eq!(arches_for(sm), arches, "{sm}");
        }
    }
}
