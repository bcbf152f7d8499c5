#include "expert_tiles.cuh"

EXPERT_KERNEL(expert_tiles_all_1, ALL, 1)
EXPERT_KERNEL(expert_tiles_all_2, ALL, 2)
