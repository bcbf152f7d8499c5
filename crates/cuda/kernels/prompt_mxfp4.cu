// prompt_linear.cuh for MXFP4 and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_MXFP4, Mxfp4)
#include "prompt_linear.cuh"

PROMPT_KERNELS(mxfp4)
