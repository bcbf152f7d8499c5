// linear_chain.cuh as a kernel.
#include "linear_chain.cuh"

extern "C" __global__ void __launch_bounds__(CHAIN_THREADS, 1) linear_chain(const __grid_constant__ ChainParams c) { chain(c); }
