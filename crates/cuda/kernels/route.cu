// Chooses k experts a row. A warp per row.
#include "route.cuh"

struct Route {
    const u32* n_rows;
    Router router;
};

extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ Route p) {
    pdl_wait();
    pdl_next();
    if (blockIdx.x < *p.n_rows) route_row(p.router, blockIdx.x);
}
