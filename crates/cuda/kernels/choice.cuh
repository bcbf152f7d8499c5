// What a row chose, an expert or a token, and what that counts.
#pragma once
#include "common.cuh"

struct Choice {
    u32 index;
    float weight;
};
