// prompt_linear.cuh for Q8_0 and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q8_0, Q8_0)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q8_0)
