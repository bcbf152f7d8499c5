// prompt_linear.cuh for Q4_K, Q6_K and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q4_K, Q4K) MAKE(PROMPT_Q6_K, Q6K)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q4_k)
