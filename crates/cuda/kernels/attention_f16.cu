#include "attention_chunks_wgmma.cuh"
#include "attention_walk_wgmma.cuh"

TILES(64, 1, false, attention_f16) TILES(128, 1, false, attention_f16) TILES(256, 1, false, attention_f16)
TILES(64, 3, false, attention_f16) TILES(128, 3, false, attention_f16) TILES(256, 3, false, attention_f16)
WALKS(64, false, attention_f16) WALKS(128, false, attention_f16) WALKS(256, false, attention_f16)
