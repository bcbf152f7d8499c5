//! `--device auto` where there is a driver and no card that can be used. The driver is a stand-in: no such card is at hand.
#![cfg(all(feature = "cuda", feature = "demo", target_os = "linux"))]

mod common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// As much of a driver as is asked before a card is used. `FAKE_INIT` is what it says when it is started.
const DRIVER: &str = r#"
#[no_mangle]
pub extern "C" fn cuInit(_: u32) -> i32 {
    std::env::var("FAKE_INIT").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetCount(n: *mut i32) -> i32 {
    let started = cuInit(0);
    *n = i32::from(started == 0);
    started
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    *device = ordinal;
    0
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut u8, _: i32, _: i32) -> i32 {
    std::ptr::copy_nonoverlapping(b"An old card\0".as_ptr(), name, 12);
    0
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, which: i32, _: i32) -> i32 {
    *value = match which { 75 => 7, 76 => 5, _ => 0 };
    0
}
#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(_: i32, text: *mut *const u8) -> i32 {
    *text = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\0".as_ptr();
    0
}
#[no_mangle]
pub unsafe extern "C" fn cuGetErrorString(_: i32, text: *mut *const u8) -> i32 {
    *text = b"system has unsupported display driver / cuda driver combination\0".as_ptr();
    0
}
"#;

/// A folder with the stand-in.
fn driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("driver.rs"), DRIVER).unwrap();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let made = Command::new(rustc)
        .args(["--crate-type", "cdylib", "--edition", "2021", "-o", "libcuda.so", "driver.rs"])
        .current_dir(&folder)
        .status();
    assert!(made.expect("rustc runs").success());
    folder
}

#[test]
fn a_card_that_cannot_be_used_leaves_the_cpu_to_auto_and_is_named() {
    let driver = driver();
    let run = |device: &str, init: &str| {
        let args = ["run", "def f(", "--max-tokens", "2", "--device", device, "--draft-mode", "off"];
        let caches = common::caches();
        let environment = [
            ("XDG_CACHE_HOME", caches.as_os_str()),
            ("LD_LIBRARY_PATH", driver.as_os_str()),
            ("FAKE_INIT", OsStr::new(init)),
        ];
        common::finish(&args, common::start_in(&args, &environment), b"")
    };
    let old = "An old card has compute capability 7.5; 8.0 or newer is needed";
    let broken = "the CUDA driver does not start: cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    for (init, why) in [("0", old), ("803", broken)] {
        let ran = run("auto", init).ok();
        assert!(!ran.out.is_empty());
        assert!(ran.err.contains("computing on the CPU, as the card cannot be used"), "{}", ran.err);
        assert_eq!(ran.err.matches(why).count(), 1, "{}", ran.err);
        let ran = run("cuda", init);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains(&format!("--device cuda:0: {why}")), "{}", ran.err);
    }
    // A driver without cards, as in many a container, is nothing to speak of.
    let ran = run("auto", "100").ok();
    assert!(!ran.err.contains("card"), "{}", ran.err);
    let ran = run("cuda", "100");
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("there is no CUDA device 0: the driver knows 0"), "{}", ran.err);
}
