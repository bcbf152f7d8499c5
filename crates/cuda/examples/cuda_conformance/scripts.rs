//! Every family's fixture by a drafter that knows the text and spoils it where it is told: on the device, too, the bits of every logit are those of
//! plain decoding.

use std::sync::Arc;

use overdraft_cuda::{Cuda, Device};
use overdraft_formats::DType;
use overdraft_models::Checkpoint;

use crate::common::{as_gguf, fixture};
use crate::options::families;
use crate::script::{engine, keeps_its_bits};

pub(crate) fn run(device: &Arc<Device>, args: &[String]) -> Result<bool, String> {
    let families = families(args)?;
    let demo = Checkpoint::open(&fixture("../../models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(demo.tokenizer().unwrap());
    let mut passed = true;
    for family in families {
        for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
            let cuda = Box::new(Cuda::new(device.clone()).unwrap());
            let mut engine = engine(&as_gguf(family, dtype), &tokenizer, cuda, 5, 512);
            match keeps_its_bits(&mut engine, &format!("{family} {dtype}")) {
                Ok(()) => println!("{family:<14} {dtype:<5} ok"),
                Err(parted) => {
                    println!("FAILED {parted}");
                    passed = false;
                }
            }
        }
    }
    Ok(passed)
}
