#include "attention_chunks_wgmma.cuh"
#include "attention_walk_wgmma.cuh"

TILES(64, 1, true, attention_bf16) TILES(128, 1, true, attention_bf16) TILES(256, 1, true, attention_bf16)
TILES(64, 3, true, attention_bf16) TILES(128, 3, true, attention_bf16) TILES(256, 3, true, attention_bf16)
WALKS(64, true, attention_bf16) WALKS(128, true, attention_bf16) WALKS(256, true, attention_bf16)
