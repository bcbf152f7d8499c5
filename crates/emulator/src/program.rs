//! Kernels, read from PTX.

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::Code;
use crate::ptx;
use crate::space::Space;

/// A module's kernels by name.
pub struct Program {
    pub kernels: HashMap<String, Arc<Kernel>>,
}

pub struct Kernel {
    pub name: String,
    pub param_bytes: usize,
    /// `.maxntid`.
    pub max_threads: u32,
    /// Blocks of a cluster along x.
    pub cluster: u32,
    pub static_shared: usize,
    pub(crate) code: Code,
}

impl Program {
    /// What is not understood is named, with its line.
    pub fn read(text: &str, space: &Space) -> Result<Self, String> {
        let kernels = ptx::read(text, space)?.into_iter().map(|entry| {
            let kernel = Kernel {
                name: entry.name,
                param_bytes: entry.param_bytes,
                max_threads: entry.max_threads,
                cluster: entry.cluster,
                static_shared: entry.static_shared,
                code: entry.code,
            };
            (kernel.name.clone(), Arc::new(kernel))
        });
        Ok(Self { kernels: kernels.collect() })
    }
}
