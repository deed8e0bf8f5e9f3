// The driver API as far as it is asked, and cuBLAS, which computes nothing.
#include "nullgpu.h"
#include <stdlib.h>
#include <string.h>

static int nothing() { return 0; }
static int context_state(int d, unsigned *f, int *a) {
  if (f)
    *f = 0;
  *a = 1;
  return 0;
}
static int error_name(int e, const char **s) {
  *s = "null GPU";
  return 0;
}
int cudaGetDriverEntryPointByVersion(const char *n, void **f, unsigned v, unsigned long long fl, int *st) {
  *f = nothing;
  if (strstr(n, "PrimaryCtxGetState"))
    *f = context_state;
  if (strstr(n, "GetErrorString"))
    *f = error_name;
  if (st)
    *st = 0;
  return 0;
}

int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) {
  *v = 13000;
  return 0;
}
int cuDeviceGet(int *d, int i) {
  *d = i;
  return 0;
}
int cuDeviceGetCount(int *n) {
  *n = 1;
  return 0;
}
int cuDeviceGetAttribute(int *v, int a, int d) { return cudaDeviceGetAttribute(v, a, d); }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { return context_state(d, f, a); }
int cuDevicePrimaryCtxRetain(void **c, int d) {
  *c = (void *)8;
  return 0;
}
int cuCtxGetCurrent(void **c) {
  *c = (void *)8;
  return 0;
}
int cuCtxGetDevice(int *d) {
  *d = 0;
  return 0;
}
int cuGetErrorString(int e, const char **s) {
  *s = "null GPU";
  return 0;
}
int cuModuleLoadData(void **m, const void *d) {
  *m = malloc(8);
  return 0;
}
int cuModuleGetFunction(void **f, void *m, const char *n) {
  *f = malloc(8);
  return 0;
}
int cuFuncGetAttribute(int *v, int a, void *f) {
  *v = a == 0 ? 1024 : a == 4 ? 64 : 0;
  return 0;
}
int cuOccupancyMaxActiveClusters(int *n, void *f, void *c) {
  *n = 8;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n) {
  *n = 2;
  return 0;
}
int cuPointerGetAttribute(void *d, int a, unsigned long long p) {
  if (a == 2)
    *(int *)d = 2;
  else if (a == 3)
    *(unsigned long long *)d = p;
  else if (a == 9)
    *(int *)d = 0;
  else
    *(void **)d = (void *)p;
  return 0;
}
int cuGetProcAddress_v2(const char *n, void **f, int v, unsigned long long fl, int *st) {
  *f = nothing;
  if (st)
    *st = 0;
  return 0;
}
int cuCtxGetLimit(size_t *v, int l) {
  *v = 1 << 20;
  return 0;
}

// cuBLAS
int cublasCreate_v2(void **h) {
  *h = malloc(64);
  return 0;
}
int cublasGetMathMode(void *h, int *m) {
  *m = 0;
  return 0;
}
int cublasGetPointerMode_v2(void *h, int *m) {
  *m = 0;
  return 0;
}
size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void **h) {
  *h = malloc(64);
  return 0;
}
int cublasLtMatmulDescCreate(void **d, int a, int b) {
  *d = malloc(64);
  return 0;
}
int cublasLtMatmulDescDestroy(void *d) {
  free(d);
  return 0;
}
int cublasLtMatmulPreferenceCreate(void **d) {
  *d = malloc(64);
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void *d) {
  free(d);
  return 0;
}
int cublasLtMatrixLayoutCreate(void **d) {
  *d = malloc(64);
  return 0;
}
int cublasLtMatrixLayoutDestroy(void *d) {
  free(d);
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, void *o, void *a, void *b, void *c, void *d, void *p, int n,
                                   void *r, int *cnt) {
  *cnt = 1;
  memset(r, 0, 96);
  return 0;
}
