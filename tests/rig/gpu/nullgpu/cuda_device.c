// One Hopper GPU, its streams and its events.
#include "nullgpu.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cudaGetDeviceCount(int *n) {
  *n = 1;
  return 0;
}
int cudaGetDevice(int *n) {
  *n = 0;
  return 0;
}
int cudaDriverGetVersion(int *n) {
  *n = 13000;
  return 0;
}
int cudaRuntimeGetVersion(int *n) {
  *n = 13000;
  return 0;
}
const char *cudaGetErrorString(int e) { return e ? "fake cuda error" : "no error"; }
const char *cudaGetErrorName(int e) { return e ? "cudaErrorFake" : "cudaSuccess"; }
static int attr(int a) {
  switch (a) {
  case 1:
    return 1024;
  case 2:
  case 3:
    return 1024;
  case 4:
    return 64;
  case 5:
    return 2147483647;
  case 6:
  case 7:
    return 65535;
  case 8:
    return 49152;
  case 10:
    return 32;
  case 12:
    return 65536;
  case 13:
    return 1980000;
  case 16:
    return 132;
  case 36:
    return 2619000;
  case 37:
    return 6144;
  case 38:
    return 60 << 20;
  case 39:
    return 2048;
  case 41:
    return 1;
  case 75:
    return 9;
  case 76:
    return 0;
  case 81:
    return 233472;
  case 82:
    return 65536;
  case 95:
    return 1;
  case 97:
    return 232448;
  case 106:
    return 32;
  default:
    return 1;
  }
}
int cudaDeviceGetAttribute(int *v, int a, int d) {
  *v = attr(a);
  if (a == 18 || a == 83)
    *v = 0;
  return 0;
}
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200");
  p->totalGlobalMem = TOTAL;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->memoryBusWidth = 6144;
  p->l2CacheSize = 60 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlockOptin = 232448;
  p->maxBlocksPerMultiProcessor = 32;
  p->asyncEngineCount = 3;
  p->canMapHostMemory = 1;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->reservedSharedMemPerBlock = 1024;
  p->textureAlignment = 512;
  p->memPitch = 2147483647;
  p->unifiedAddressing = 1;
  p->concurrentKernels = 1;
  p->cooperativeLaunch = 1;
  return 0;
}
int cudaStreamCreateWithPriority(void **s, unsigned f, int p) {
  *s = malloc(8);
  return 0;
}
int cudaStreamCreate(void **s) {
  *s = malloc(8);
  return 0;
}
int cudaStreamCreateWithFlags(void **s, unsigned f) {
  *s = malloc(8);
  return 0;
}
int cudaStreamDestroy(void *s) { return 0; }
int cudaDeviceGetStreamPriorityRange(int *a, int *b) {
  *a = 0;
  *b = -5;
  return 0;
}
int cudaStreamGetPriority(void *s, int *p) {
  *p = 0;
  return 0;
}
int cudaStreamIsCapturing(void *s, int *c) {
  *c = 0;
  return 0;
}
int cudaStreamGetCaptureInfo(void *s, int *c, unsigned long long *id, void *g, void *d, void *e, size_t *n) {
  *c = 0;
  if (id)
    *id = 0;
  if (n)
    *n = 0;
  return 0;
}
int cudaThreadExchangeStreamCaptureMode(int *m) { return 0; }
int cudaEventCreateWithFlags(void **e, unsigned f) {
  *e = calloc(1, sizeof(struct timespec));
  return 0;
}
int cudaEventCreate(void **e) { return cudaEventCreateWithFlags(e, 0); }
int cudaEventRecord(void *e, void *s) {
  clock_gettime(CLOCK_MONOTONIC, e);
  return 0;
}
int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { return cudaEventRecord(e, s); }
int cudaEventDestroy(void *e) {
  free(e);
  return 0;
}
int cudaEventElapsedTime(float *ms, void *a, void *b) {
  struct timespec *x = a, *y = b;
  *ms = (y->tv_sec - x->tv_sec) * 1e3 + (y->tv_nsec - x->tv_nsec) / 1e6;
  return 0;
}
int cudaLaunchHostFunc(void *s, void (*f)(void *), void *u) {
  f(u);
  return 0;
}
int cudaStreamAddCallback(void *s, void (*f)(void *, int, void *), void *u, unsigned fl) {
  f(s, 0, u);
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) {
  *n = 2;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s,
                                                           unsigned fl) {
  *n = 2;
  return 0;
}
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 64;
  a->binaryVersion = 90;
  a->ptxVersion = 90;
  a->maxDynamicSharedSizeBytes = 49152;
  return 0;
}
int cudaGetSymbolAddress(void **p, const void *s) {
  static char b[1 << 20];
  *p = b;
  return 0;
}
int cudaDeviceCanAccessPeer(int *c, int a, int b) {
  *c = 0;
  return 0;
}
int cudaDeviceGetPCIBusId(char *b, int n, int d) {
  snprintf(b, n, "0000:00:00.0");
  return 0;
}
int cudaDeviceGetDefaultMemPool(void **p, int d) {
  *p = (void *)8;
  return 0;
}
