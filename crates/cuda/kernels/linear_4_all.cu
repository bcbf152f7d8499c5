// linear.cuh for 25 to 32 rows, any formats.
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_4_all(const __grid_constant__ LinearParams p) { linear<ALL, 4>(p); }
