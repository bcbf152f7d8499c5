// prompt_linear.cuh for Q5_0 and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q5_0, Q5_0)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q5_0)
