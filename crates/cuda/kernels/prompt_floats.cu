// prompt_linear.cuh for floats alone, which leave registers for tiles of 160 rows: beside other formats every wgmma stands by itself
// (ptxas C7512).
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16)
#include "prompt_linear.cuh"

PROMPT_KERNELS(floats) PROMPT_KERNEL(floats, 160)
