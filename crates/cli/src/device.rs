//! What computes: from the flag to a backend. CUDA is looked for at run time; without a driver the CPU takes over.

use std::str::FromStr;

use overdraft_cpu::Cpu;
use overdraft_engine::available_memory;
use overdraft_plan::Backend;

use crate::failure::{Failure, Result};
use crate::screen::Screen;

/// `--device` as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    Auto,
    Cpu,
    CpuReference,
    /// Of several, by the driver's number.
    Cuda(usize),
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cpu-reference" => Ok(Self::CpuReference),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                number
                    .map(Self::Cuda)
                    .ok_or_else(|| "expected auto, cpu, cpu-reference, cuda or cuda:N".into())
            }
        }
    }
}

/// As run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    CpuReference,
    Cuda(usize),
}

impl Device {
    /// A device that is not there is refused before anything is read.
    pub(crate) fn resolve(arg: DeviceArg, screen: &Screen) -> Result<Self> {
        Ok(match arg {
            DeviceArg::Auto => match cuda::usable() {
                Ok(ordinal) => Device::Cuda(ordinal),
                Err(why) => {
                    if let Some(why) = why {
                        screen.note(&format!("computing on the CPU, as the card cannot be used: {why}"));
                    }
                    Device::Cpu
                }
            },
            DeviceArg::Cpu => Device::Cpu,
            DeviceArg::CpuReference => Device::CpuReference,
            DeviceArg::Cuda(n) => {
                cuda::check(n)?;
                Device::Cuda(n)
            }
        })
    }

    pub(crate) fn name(self) -> String {
        match self {
            Device::Cpu => "cpu".into(),
            Device::CpuReference => "cpu-reference".into(),
            Device::Cuda(n) => format!("cuda:{n}"),
        }
    }

    /// The backend, and the bytes of memory it may use where that is known. Asked before weights are loaded. For a whole model all kernels
    /// are made ready first, which the `screen` shows where it takes a while; for an op alone those it asks for are, when it does.
    pub(crate) fn open(
        self,
        threads: usize,
        for_model: Option<&Screen>,
    ) -> Result<(Box<dyn Backend>, Option<usize>)> {
        Ok(match self {
            Device::Cpu => (Box::new(Cpu::new(threads)), available_memory()),
            Device::CpuReference => (Box::new(Cpu::reference()), available_memory()),
            Device::Cuda(n) => cuda::open(n, for_model)?,
        })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use std::sync::{Arc, Once, OnceLock};
    use std::time::Duration;

    use overdraft_cuda::{Cuda, CudaError, Device, when_stuck};

    use crate::progress::Progress;

    /// Stays open, so that what was made to look at it need not be made again.
    static USABLE: OnceLock<Arc<Device>> = OnceLock::new();

    /// The first card that `auto` may count on; if there is none, what is to be said of the first that is there.
    pub(super) fn usable() -> std::result::Result<usize, Option<String>> {
        let known = match Device::count() {
            Ok(known) => known,
            Err(CudaError::NoDriver) => return Err(None),
            Err(e) => return Err(Some(e.to_string())),
        };
        let mut first = None;
        for ordinal in 0..known {
            let opened = Device::check(ordinal).and_then(|()| Device::open(ordinal));
            match opened.and_then(|device| device.check_kernels().map(|()| device)) {
                Ok(device) => {
                    let _ = USABLE.set(device);
                    return Ok(ordinal);
                }
                Err(e) => drop(first.get_or_insert_with(|| e.to_string())),
            }
        }
        Err(first)
    }

    fn refusal(ordinal: usize, e: CudaError) -> Failure {
        Failure::input(format!("--device cuda:{ordinal}: {e}"))
            .hint("use --device cpu, or leave the flag out")
    }

    pub(super) fn check(ordinal: usize) -> Result<()> {
        Device::check(ordinal).map_err(|e| refusal(ordinal, e))
    }

    /// No step takes so long on any card that runs these kernels.
    const STUCK: Duration = Duration::from_secs(120);

    /// A kernel that never ends leaves nothing to go on with.
    fn give_up() {
        let failure = Failure::internal(format!("the device has not answered for {} s", STUCK.as_secs()))
            .hint("the process ends, which frees the device; please report how this came about");
        // Whoever is told may not listen, and the driver may wait for the device at the process's end, too.
        std::thread::spawn(move || {
            crate::screen::error(&failure.message, failure.hint.as_deref());
            std::process::exit(failure.code.into())
        });
        std::thread::sleep(Duration::from_secs(5));
        std::process::abort();
    }

    pub(super) fn open(
        ordinal: usize,
        for_model: Option<&Screen>,
    ) -> Result<(Box<dyn Backend>, Option<usize>)> {
        static WATCHED: Once = Once::new();
        // Without a thread for it nobody watches, as before.
        WATCHED.call_once(|| drop(when_stuck(STUCK, give_up)));
        let failed = |e| refusal(ordinal, e);
        let device = Device::open(ordinal).map_err(failed)?;
        if let Some(screen) = for_model {
            let mut progress = Progress::new("compiling kernels, once", screen);
            device.compile_ahead(|done, of| {
                // A log has no bar.
                if done == 0 && !screen.terminal {
                    screen.note(&format!("compiling {of} files of kernels for this card, once"));
                }
                progress.at(done, of);
            });
        }
        let (free, _) = device.memory().map_err(failed)?;
        Ok((Box::new(Cuda::new(device).map_err(failed)?), Some(free)))
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::*;

    pub(super) fn usable() -> std::result::Result<usize, Option<String>> {
        Err(None)
    }

    pub(super) fn check(ordinal: usize) -> Result<()> {
        open(ordinal, None).map(|_| ())
    }

    pub(super) fn open(ordinal: usize, _: Option<&Screen>) -> Result<(Box<dyn Backend>, Option<usize>)> {
        Err(Failure::input(format!("--device cuda:{ordinal}: this build was made without CUDA"))
            .hint("use --device cpu, or leave the flag out"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_the_driver_numbers_them() {
        for (text, device) in [
            ("auto", Some(DeviceArg::Auto)),
            ("cpu", Some(DeviceArg::Cpu)),
            ("cpu-reference", Some(DeviceArg::CpuReference)),
            ("cuda", Some(DeviceArg::Cuda(0))),
            ("cuda:3", Some(DeviceArg::Cuda(3))),
            ("cuda:", None),
            ("cuda:x", None),
            ("cuda:-1", None),
            ("gpu", None),
        ] {
            assert_eq!(text.parse().ok(), device, "{text}");
        }
    }
}
