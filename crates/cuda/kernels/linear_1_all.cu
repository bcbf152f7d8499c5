// linear.cuh for up to 8 rows, any formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_1_all(const __grid_constant__ LinearParams p) { linear<ALL, 1>(p); }
