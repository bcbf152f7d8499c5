// linear.cuh for 49 to 64 rows, any formats.
#include "linear.cuh"

#if HAS_WGMMA
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_8_all(const __grid_constant__ LinearParams p) { linear<ALL, 8>(p); }
#endif
