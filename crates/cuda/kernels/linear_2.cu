// linear.cuh for 9 to 16 rows, common formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_2(const __grid_constant__ LinearParams p) { linear<COMMON, 2>(p); }
