// prompt_linear.cuh for Q5_K, Q6_K and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_Q5_K, Q5K) MAKE(PROMPT_Q6_K, Q6K)
#include "prompt_linear.cuh"

PROMPT_KERNELS(q5_k)
