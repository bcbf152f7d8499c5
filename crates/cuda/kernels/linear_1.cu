// linear.cuh for up to 8 rows, common formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_1(const __grid_constant__ LinearParams p) { linear<COMMON, 1>(p); }
