// linear.cuh for 33 to 48 rows, common formats.
#include "linear.cuh"

#if HAS_WGMMA
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_6(const __grid_constant__ LinearParams p) { linear<COMMON, 6>(p); }
#endif
