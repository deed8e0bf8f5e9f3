#pragma once
#include "driver_types.h"
#include <stddef.h>

#define TOTAL 150122987520ULL // bytes of the device

int cudaDeviceGetAttribute(int *value, int attribute, int device);
