// prompt_linear.cuh for Q4_0, Q4_1 and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q4_0, Q4_0) MAKE(PROMPT_Q4_1, Q4_1)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q4_0)
