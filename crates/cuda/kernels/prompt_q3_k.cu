// prompt_linear.cuh for Q2_K, Q3_K and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q2_K, Q2K) MAKE(PROMPT_Q3_K, Q3K)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q3_k)
