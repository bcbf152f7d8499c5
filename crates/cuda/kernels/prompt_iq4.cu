// prompt_linear.cuh for IQ4_NL, IQ4_XS and floats.
#define PROMPT_FORMATS(MAKE) MAKE(PROMPT_F16, F16) MAKE(PROMPT_IQ4_NL, Iq4Nl) MAKE(PROMPT_IQ4_XS, Iq4Xs)
#include "prompt_linear.cuh"

PROMPT_KERNELS(iq4)
