// The NVML calls that vLLM makes, for one Hopper GPU.
#include <stdio.h>
#include <string.h>
typedef void *H;
typedef struct {
  unsigned long long total, freeb, used;
} mem1;
typedef struct {
  unsigned int version;
  unsigned long long total, reserved, freeb, used;
} mem2;
int nvmlInit_v2() { return 0; }
int nvmlInit() { return 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int r) { return "null GPU"; }
int nvmlDeviceGetCount_v2(unsigned *n) {
  *n = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, H *h) {
  *h = (H)0x1000;
  return i ? 2 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *u, H *h) {
  *h = (H)0x1000;
  return 0;
}
int nvmlDeviceGetIndex(H h, unsigned *i) {
  *i = 0;
  return 0;
}
int nvmlDeviceGetName(H h, char *b, unsigned n) {
  snprintf(b, n, "NVIDIA H200");
  return 0;
}
int nvmlDeviceGetUUID(H h, char *b, unsigned n) {
  snprintf(b, n, "GPU-00000000-0000-0000-0000-000000000000");
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(H h, int *a, int *b) {
  *a = 9;
  *b = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(H h, mem1 *m) {
  m->total = 150754820096ULL;
  m->freeb = m->total;
  m->used = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(H h, mem2 *m) {
  m->total = 150754820096ULL;
  m->freeb = m->total;
  m->used = 0;
  m->reserved = 0;
  return 0;
}
int nvmlSystemGetDriverVersion(char *b, unsigned n) {
  snprintf(b, n, "580.159.04");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *v) {
  *v = 13000;
  return 0;
}
