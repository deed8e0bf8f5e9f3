// Device memory is host memory that nothing has touched yet; its size is kept, so that a pool can be too
// large.
#define _GNU_SOURCE
#include "nullgpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
  void *p;
  size_t n;
  int host;
} Allocation;
static Allocation allocations[65536];
static int allocation_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t used;
static void remember(void *p, size_t n, int h) {
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < allocation_count; i++)
    if (!allocations[i].p) {
      allocations[i] = (Allocation){p, n, h};
      goto o;
    }
  allocations[allocation_count++] = (Allocation){p, n, h};
o:
  if (!h)
    used += n;
  pthread_mutex_unlock(&mutex);
}
static size_t forget(void *p) {
  size_t n = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < allocation_count; i++)
    if (allocations[i].p == p) {
      n = allocations[i].n;
      if (!allocations[i].host)
        used -= n;
      allocations[i].p = 0;
      break;
    }
  pthread_mutex_unlock(&mutex);
  return n;
}
static void *reserve(size_t n) {
  void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : p;
}
int cudaMalloc(void **p, size_t n) {
  if (used + n > TOTAL)
    return 2;
  *p = reserve(n);
  if (!*p)
    return 2;
  remember(*p, n, 0);
  return 0;
}
int cudaMallocAsync(void **p, size_t n, void *s) { return cudaMalloc(p, n); }
int cudaFree(void *p) {
  if (!p)
    return 0;
  size_t n = forget(p);
  if (n)
    munmap(p, n);
  return 0;
}
int cudaFreeAsync(void *p, void *s) { return cudaFree(p); }
int cudaHostAlloc(void **p, size_t n, unsigned f) {
  *p = reserve(n ? n : 1);
  remember(*p, n ? n : 1, 1);
  return 0;
}
int cudaFreeHost(void *p) {
  size_t n = forget(p);
  if (n)
    munmap(p, n);
  return 0;
}
int cudaHostRegister(void *p, size_t n, unsigned f) {
  remember(p, n, 1);
  return 0;
}
int cudaHostUnregister(void *p) {
  forget(p);
  return 0;
}
int cudaHostGetDevicePointer(void **d, void *h, unsigned f) {
  *d = h;
  return 0;
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2;
  a->hostPointer = (void *)p;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < allocation_count; i++)
    if (allocations[i].p && (char *)p >= (char *)allocations[i].p &&
        (char *)p < (char *)allocations[i].p + allocations[i].n) {
      a->type = allocations[i].host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
      a->device = 0;
      a->devicePointer = (void *)p;
      break;
    }
  pthread_mutex_unlock(&mutex);
  return 0;
}
int cudaMemGetInfo(size_t *f, size_t *t) {
  *t = TOTAL;
  *f = TOTAL - used - (600ull << 20);
  return 0;
}
int cudaMemcpy(void *d, const void *s, size_t n, int k) {
  memmove(d, s, n);
  return 0;
}
int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *st) {
  memmove(d, s, n);
  return 0;
}
int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *st) {
  memmove(d, s, n);
  return 0;
}
int cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k, void *st) {
  for (size_t i = 0; i < h; i++)
    memmove((char *)d + i * dp, (char *)s + i * sp, w);
  return 0;
}
int cudaMemset(void *d, int v, size_t n) {
  if (n < (64 << 20) || v)
    memset(d, v, n);
  return 0;
}
int cudaMemsetAsync(void *d, int v, size_t n, void *s) { return cudaMemset(d, v, n); }
