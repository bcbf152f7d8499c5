//! Launches.

use std::ffi::c_void;

use super::attributes::MAX_SHARED;
use super::{Device, Error, Handle, Result, Status, Work, started, status};
use crate::grid::Launch;

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) n_attributes: u32,
}

/// `CUlaunchAttribute`, its value whatever the number before it says.
#[repr(C)]
pub struct LaunchAttribute {
    pub(super) id: u32,
    pub(super) value: [u64; 8],
}

/// Of [`LaunchAttribute::id`]: blocks may begin before the launch ahead has ended, as the number behind it says.
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// A grid's sides, as every card has them.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, u16::MAX as u32, u16::MAX as u32];

/// What a kernel is launched within.
pub(super) struct Limits {
    pub(super) threads: u32,
    pub(super) cluster: u32,
    pub(super) static_shared: usize,
    pub(super) dynamic_shared: usize,
}

fn check(limits: &Limits, config: &LaunchConfig) -> Result<()> {
    if config.block[1..] != [1, 1] {
        return Err(Error::NotSupported);
    }
    let dynamic = config.shared_bytes as usize;
    let is_grid = config.grid.iter().zip(MAX_GRID).all(|(n, max)| (1..=max).contains(n));
    let has_room = dynamic <= limits.dynamic_shared && dynamic + limits.static_shared <= MAX_SHARED;
    if !is_grid || !(1..=limits.threads).contains(&config.block[0]) || !has_room {
        return Err(Error::InvalidValue);
    }
    let is_whole = config.grid[0].is_multiple_of(limits.cluster);
    is_whole.then_some(()).ok_or(Error::InvalidClusterSize)
}

impl Device {
    /// # Safety
    /// As [`cuLaunchKernelEx`].
    unsafe fn launch(
        &self,
        config: &LaunchConfig,
        function: Handle,
        params: *const *const c_void,
    ) -> Result<()> {
        let function = self.functions.get(function)?;
        check(&function.limits(), config)?;
        let mut overlaps = false;
        for i in 0..config.n_attributes as usize {
            // SAFETY: one of as many as the caller says there are.
            let attribute = unsafe { &*config.attributes.add(i) };
            if attribute.id != PROGRAMMATIC_STREAM_SERIALIZATION {
                return Err(Error::NotSupported);
            }
            overlaps = attribute.value[0] as u32 != 0;
        }
        let mut bytes = vec![0; function.kernel.param_bytes];
        if !bytes.is_empty() {
            // SAFETY: null or a pointer's place, as the caller promises.
            let param =
                unsafe { params.as_ref() }.filter(|param| !param.is_null()).ok_or(Error::InvalidValue)?;
            // SAFETY: it leads to the kernel's parameter, as the caller promises.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(param.cast(), bytes.len()) };
        }
        let launch = Launch {
            kernel: function.kernel.clone(),
            grid: config.grid,
            threads: config.block[0],
            shared_bytes: config.shared_bytes as usize,
            params: bytes,
            overlaps,
        };
        self.submit(config.stream, Work::Launch(launch))
    }
}

/// The kernel's one parameter is copied now; `extra`, the other way to pass it, must be null.
///
/// # Safety
/// `config` is null or holds as many attributes as it says; `params` is null or leads to a pointer to as many bytes as the kernel's
/// parameter has. Nobody else uses what the kernel does when it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Status {
    status(started().and_then(|device| {
        if !extra.is_null() {
            return Err(Error::NotSupported);
        }
        // SAFETY: null or a config, as the caller promises.
        let config = unsafe { config.as_ref() }.ok_or(Error::InvalidValue)?;
        // SAFETY: the caller's promise.
        unsafe { device.launch(config, function, params) }
    }))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn launches_that_no_card_runs_are_refused() {
        let limits = Limits { threads: 256, cluster: 2, static_shared: 1 << 10, dynamic_shared: 100 << 10 };
        let all = Limits { dynamic_shared: MAX_SHARED, ..limits };
        let refused = Err(Error::InvalidValue);
        #[rustfmt::skip]
        let cases = [
            (&limits, [2, 1, 1],     [256, 1, 1], 100 << 10,             Ok(())),
            (&limits, [2, 9, 65535], [1, 1, 1],   0,                     Ok(())),
            (&limits, [2, 1, 65536], [1, 1, 1],   0,                     refused),
            (&limits, [2, 0, 1],     [1, 1, 1],   0,                     refused),
            (&limits, [2, 1, 1],     [0, 1, 1],   0,                     refused),
            (&limits, [2, 1, 1],     [257, 1, 1], 0,                     refused),
            (&limits, [2, 1, 1],     [1, 1, 1],   (100 << 10) + 1,       refused),
            (&all,    [2, 1, 1],     [1, 1, 1],   MAX_SHARED - 1024,     Ok(())),
            (&all,    [2, 1, 1],     [1, 1, 1],   MAX_SHARED - 1023,     refused),
            (&limits, [3, 1, 1],     [1, 1, 1],   0,                     Err(Error::InvalidClusterSize)),
            (&limits, [2, 1, 1],     [16, 2, 1],  0,                     Err(Error::NotSupported)),
        ];
        for (limits, grid, block, shared_bytes, result) in cases {
            let (stream, attributes) = (Handle::NULL, std::ptr::null());
            let shared_bytes = shared_bytes as u32;
            let config = LaunchConfig { grid, block, shared_bytes, stream, attributes, n_attributes: 0 };
            assert_eq!(check(limits, &config), result, "{grid:?} of {block:?}, {shared_bytes} bytes");
        }
    }

    #[test]
    fn structures_lie_as_in_cuda_h() {
        assert_eq!((offset_of!(LaunchConfig, block), offset_of!(LaunchConfig, shared_bytes)), (12, 24));
        assert_eq!((offset_of!(LaunchConfig, stream), offset_of!(LaunchConfig, attributes)), (32, 40));
        assert_eq!((offset_of!(LaunchConfig, n_attributes), size_of::<LaunchConfig>()), (48, 56));
        assert_eq!((offset_of!(LaunchAttribute, value), size_of::<LaunchAttribute>()), (8, 72));
    }
}
