// linear.cuh for 25 to 32 rows, common formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_4(const __grid_constant__ LinearParams p) { linear<COMMON, 4>(p); }
