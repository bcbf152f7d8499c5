// linear.cuh for 17 to 24 rows, any formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_3_all(const __grid_constant__ LinearParams p) { linear<ALL, 3>(p); }
