// linear.cuh for 9 to 16 rows, any formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_2_all(const __grid_constant__ LinearParams p) { linear<ALL, 2>(p); }
