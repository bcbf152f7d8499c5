// prompt_linear.cuh for Q5_1 and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q5_1, Q5_1)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q5_1)
