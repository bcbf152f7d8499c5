//! Bytes on disk into typed things: GGUF, safetensors, quantised blocks, tokenizers, chat templates and
//! Hugging Face configurations.
//!
//! Everything read here is untrusted. Whatever a file holds, the answer is a value or an [`Error`] that names
//! the file and the key or tensor, in bounded time and memory.

pub mod bytes;
mod cache_folder;
pub mod chat;
pub mod error;
pub mod gguf;
pub mod hf_config;
pub mod quant;
pub mod safetensors;
pub mod template;
mod tensor;
pub mod tokenizer;

pub use bytes::Bytes;
pub use cache_folder::CacheFolder;
pub use error::{Error, Result};
pub use quant::DType;
pub use tensor::{StoredType, Tensor, TensorInfo};
