#include "attention_tiles.cuh"

TILES(64, 1, 1, false, attention_f16) TILES(128, 1, 1, false, attention_f16) TILES(256, 1, 1, false, attention_f16)
TILES(64, 3, 1, false, attention_f16) TILES(128, 3, 1, false, attention_f16) TILES(256, 3, 1, false, attention_f16)
