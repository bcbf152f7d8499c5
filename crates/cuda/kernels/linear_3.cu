// linear.cuh for 17 to 24 rows, common formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_3(const __grid_constant__ LinearParams p) { linear<COMMON, 3>(p); }
