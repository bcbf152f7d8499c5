//! The calls as a caller makes them.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use super::*;

const OK: Status = 0;

fn refused(error: Error) -> Status {
    error as Status
}

type Made<T> = std::result::Result<T, Status>;

/// What a call writes to its first argument.
fn made<T: Default>(call: impl FnOnce(*mut T) -> Status) -> Made<T> {
    let mut value = T::default();
    match call(&mut value) {
        OK => Ok(value),
        status => Err(status),
    }
}

/// A stream in this thread's context.
fn open() -> Handle {
    assert_eq!(cuInit(0), OK);
    // SAFETY: the number is there.
    let context = made(|to| unsafe { cuDevicePrimaryCtxRetain(to, 0) }).unwrap();
    assert_eq!(cuCtxSetCurrent(context), OK);
    // SAFETY: the handle is there.
    made(|to| unsafe { cuStreamCreate(to, 1) }).unwrap()
}

fn alloc(len: usize) -> u64 {
    // SAFETY: the number is there.
    made(|to| unsafe { cuMemAlloc_v2(to, len) }).unwrap()
}

fn free(at: u64) {
    // SAFETY: only the test knows of it.
    assert_eq!(unsafe { cuMemFree_v2(at) }, OK);
}

fn send(bytes: &[u8], to: u64, stream: Handle) -> Status {
    // SAFETY: the bytes are there, and what is at `to` is this test's.
    unsafe { cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream) }
}

fn fetch(from: u64, len: usize, stream: Handle) -> Made<Vec<u8>> {
    let mut bytes = vec![0; len];
    // SAFETY: there is room.
    match unsafe { cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, len, stream) } {
        OK => Ok(bytes),
        status => Err(status),
    }
}

fn copy(from: u64, to: u64, len: usize, stream: Handle) -> Status {
    // SAFETY: the test's own memory.
    unsafe { cuMemcpyDtoDAsync_v2(to, from, len, stream) }
}

fn fill(at: u64, byte: u8, len: usize, stream: Handle) -> Status {
    // SAFETY: the test's own memory.
    unsafe { cuMemsetD8Async(at, byte, len, stream) }
}

/// What was asked for on the stream since it began to record: (graph, nodes).
fn end(stream: Handle) -> Made<(Handle, usize)> {
    // SAFETY: the handle is there.
    let graph = made(|to| unsafe { cuStreamEndCapture(stream, to) })?;
    // SAFETY: the number is there.
    Ok((graph, made(|to| unsafe { cuGraphGetNodes(graph, null_mut(), to) })?))
}

#[test]
fn copies_stay_within_allocations() {
    let stream = open();
    let (a, b) = (alloc(100), alloc(100));
    assert_eq!(send(&[1; 100], a, stream), OK);
    assert_eq!(copy(a + 50, b, 50, stream), OK);
    assert_eq!(fill(b + 99, 9, 1, stream), OK);
    assert_eq!(fetch(b, 50, stream).unwrap(), [1; 50]);
    assert_eq!(fetch(b + 99, 1, stream).unwrap(), [9]);
    let out = refused(Error::InvalidValue);
    assert_eq!(send(&[1; 101], a, stream), out);
    assert_eq!(send(&[1], a + 100, stream), out);
    assert_eq!(fetch(a + 1, 100, stream), Err(out));
    assert_eq!(copy(a, b + 1, 100, stream), out);
    assert_eq!(copy(a, a + 49, 50, stream), out, "overlaps");
    assert_eq!(fill(a, 0, 101, stream), out);
    assert_eq!(fill(a, 0, usize::MAX, stream), out);
    assert_eq!(fetch(0, 0, stream).unwrap(), []);
    free(a);
    free(b);
}

#[test]
fn pinned_memory_has_an_end_too() {
    let stream = open();
    let device = alloc(200);
    let mut pinned: *mut c_void = null_mut();
    // SAFETY: `pinned` takes the address.
    assert_eq!(unsafe { cuMemAllocHost_v2(&mut pinned, 100) }, OK);
    for (len, status) in [(100, OK), (101, refused(Error::InvalidValue))] {
        // SAFETY: what is not there is refused.
        assert_eq!(unsafe { cuMemcpyHtoDAsync_v2(device, pinned, len, stream) }, status);
        // SAFETY: as above.
        assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(pinned, device, len, stream) }, status);
    }
    free(device);
    // SAFETY: nobody uses it.
    assert_eq!(unsafe { cuMemFreeHost(pinned) }, OK);
    // SAFETY: refused, so nothing is freed.
    assert_eq!(unsafe { cuMemFreeHost(pinned) }, refused(Error::InvalidValue));
}

#[test]
fn a_graph_does_what_was_recorded_each_time_it_is_launched() {
    let (stream, other) = (open(), open());
    let (at, sum) = (alloc(8), alloc(8));
    // SAFETY: the handle is there.
    let [begun, done] = [(); 2].map(|()| made(|to| unsafe { cuEventCreate(to, 0) }).unwrap());
    assert_eq!(fill(at, 1, 8, stream), OK);
    assert_eq!(cuStreamBeginCapture_v2(stream, 1), OK);
    let bytes = [3; 4];
    assert_eq!(cuEventRecordWithFlags(begun, stream, 1), OK);
    assert_eq!(copy(at, sum, 8, stream), OK);
    assert_eq!(send(&bytes, at, stream), OK);
    assert_eq!(fill(at + 4, 5, 4, stream), OK);
    assert_eq!(fill(at, 0, 9, stream), refused(Error::InvalidValue), "no node");
    assert_eq!(cuEventRecordWithFlags(done, stream, 1), OK);
    assert_eq!(fetch(at, 8, other).unwrap(), [1; 8], "another stream is not recorded, and nothing was run");
    let (graph, n_nodes) = end(stream).unwrap();
    assert_eq!(n_nodes, 5);
    // SAFETY: the handle is there.
    let exec = made(|to| unsafe { cuGraphInstantiateWithFlags(to, graph, 0) }).unwrap();
    assert_eq!(cuGraphDestroy(graph), OK);
    // SAFETY: the number is there.
    let elapsed = || made::<f32>(|to| unsafe { cuEventElapsedTime_v2(to, begun, done) });
    assert_eq!(elapsed(), Err(refused(Error::InvalidHandle)), "not reached yet");
    for (first, then) in
        [([1; 8], [3, 3, 3, 3, 5, 5, 5, 5]), ([3, 3, 3, 3, 5, 5, 5, 5], [3, 3, 3, 3, 5, 5, 5, 5])]
    {
        // SAFETY: all memory is there.
        assert_eq!(unsafe { cuGraphLaunch(exec, stream) }, OK);
        assert_eq!(
            (fetch(sum, 8, stream).unwrap(), fetch(at, 8, stream).unwrap()),
            (first.into(), then.into())
        );
        assert!((0.0..10_000.0).contains(&elapsed().unwrap()));
    }
    assert_eq!(cuEventSynchronize(done), OK);
    assert_eq!(cuGraphExecDestroy(exec), OK);
    // SAFETY: refused.
    assert_eq!(unsafe { cuGraphLaunch(exec, stream) }, refused(Error::InvalidHandle));
    assert_eq!((cuEventDestroy_v2(begun), cuEventDestroy_v2(done)), (OK, OK));
    assert_eq!((cuStreamDestroy_v2(stream), cuStreamDestroy_v2(other)), (OK, OK));
    free(at);
    free(sum);
}

#[test]
fn a_recording_is_begun_once_and_spoilt_by_waiting() {
    let stream = open();
    assert_eq!(end(stream), Err(refused(Error::IllegalState)), "not begun");
    assert_eq!(cuStreamBeginCapture_v2(stream, 1), OK);
    assert_eq!(cuStreamBeginCapture_v2(stream, 1), refused(Error::IllegalState), "twice");
    assert_eq!(cuStreamSynchronize(stream), refused(Error::CaptureUnsupported));
    assert_eq!(end(stream), Err(refused(Error::CaptureInvalidated)));
    assert_eq!(cuStreamSynchronize(stream), OK);
    assert_eq!(cuStreamBeginCapture_v2(stream, 1), OK);
    assert_eq!(end(stream).map(|(_, n_nodes)| n_nodes), Ok(0));
}

#[test]
fn events_outside_a_graph_are_reached_at_once() {
    let stream = open();
    // SAFETY: the handle is there.
    let [first, then, untimed] =
        [0, 0, 2].map(|flags| made(|to| unsafe { cuEventCreate(to, flags) }).unwrap());
    assert_eq!(cuEventRecordWithFlags(first, stream, 1), refused(Error::InvalidValue), "of a graph");
    assert_eq!(cuEventRecordWithFlags(first, stream, 0), OK);
    std::thread::sleep(std::time::Duration::from_millis(20));
    for event in [then, untimed] {
        assert_eq!(cuEventRecordWithFlags(event, stream, 0), OK);
    }
    // SAFETY: the number is there.
    let elapsed = |from, to| made::<f32>(|ms| unsafe { cuEventElapsedTime_v2(ms, from, to) });
    let ms = elapsed(first, then).unwrap();
    assert!((20.0..10_000.0).contains(&ms), "{ms}");
    assert_eq!(elapsed(then, first), Ok(-ms));
    assert_eq!(elapsed(first, untimed), Err(refused(Error::InvalidHandle)));
}

#[test]
fn handles_are_known_by_kind_and_only_while_they_live() {
    let stream = open();
    let none = refused(Error::InvalidHandle);
    assert_eq!(cuStreamSynchronize(Handle::NULL), none);
    assert_eq!(cuEventSynchronize(stream), none);
    assert_eq!(cuModuleUnload(stream), none);
    assert_eq!(cuGraphDestroy(stream), none);
    assert_eq!(cuFuncSetAttribute(stream, 8, 0), none);
    assert_eq!(cuStreamDestroy_v2(stream), OK);
    assert_eq!(cuStreamDestroy_v2(stream), none);
    assert_eq!(send(&[1], 0, stream), none);
    // SAFETY: null is refused.
    assert_eq!(unsafe { cuStreamCreate(null_mut(), 1) }, refused(Error::InvalidValue));
}

#[test]
fn a_thread_without_the_context_makes_nothing() {
    let stream = open();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the number is there.
            let alloc = || made::<u64>(|to| unsafe { cuMemAlloc_v2(to, 1) });
            assert_eq!(alloc(), Err(refused(Error::InvalidContext)));
            assert_eq!(cuCtxSetCurrent(stream), refused(Error::InvalidContext));
            assert_eq!(cuStreamSynchronize(stream), OK, "a handle names its context");
            open();
            free(alloc().unwrap());
        });
    });
}

#[test]
fn machine_code_is_refused() {
    open();
    // SAFETY: both are there, and the images end with a zero.
    let load = |image: &[u8]| made::<Handle>(|to| unsafe { cuModuleLoadData(to, image.as_ptr().cast()) });
    assert_eq!(load(b"\x7fELF\x02\x01\x01\0"), Err(refused(Error::NoBinaryForGpu)));
    assert_eq!(load(b"\xff\xfe\0"), Err(refused(Error::InvalidImage)));
}

#[test]
fn errors_have_names() {
    let text = |call: unsafe extern "C" fn(Status, *mut *const c_char) -> Status, status| {
        let mut to = std::ptr::null();
        // SAFETY: `to` takes a pointer.
        assert_eq!(unsafe { call(status, &mut to) }, OK);
        // SAFETY: a static text.
        unsafe { CStr::from_ptr(to) }.to_str().unwrap()
    };
    assert_eq!(text(cuGetErrorName, refused(Error::LaunchFailed)), "CUDA_ERROR_LAUNCH_FAILED");
    assert_eq!(text(cuGetErrorName, 719), "CUDA_ERROR_LAUNCH_FAILED");
    assert_eq!(text(cuGetErrorString, 2), "out of memory");
    let mut to = c"".as_ptr();
    // SAFETY: `to` takes a pointer.
    assert_eq!(unsafe { cuGetErrorName(12345, &mut to) }, refused(Error::InvalidValue));
    assert!(to.is_null());
}

#[test]
fn the_device_says_what_it_is() {
    open();
    // SAFETY: the numbers are there.
    let attribute = |which| made::<i32>(|to| unsafe { cuDeviceGetAttribute(to, which, 0) });
    assert_eq!([75, 76, 16, 97, 109].map(|which| attribute(which).unwrap()), [20, 0, 4, 232_448, 0]);
    assert_eq!(attribute(9999), Err(refused(Error::InvalidValue)));
    let mut name = [1; 128];
    // SAFETY: there is room.
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 128, 0) }, OK);
    // SAFETY: ends with a zero, or the call above would have failed to.
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"CUDA emulated on the CPU");
    // SAFETY: there is room.
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 5, 0) }, OK);
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"CUDA");
    // SAFETY: the number is there.
    assert_eq!(made::<i32>(|to| unsafe { cuDeviceGet(to, 1) }), Err(refused(Error::InvalidDevice)));
}
