// Kernels do nothing. With NULLGPU_LOG set, each one launched is written there once, with the library it is
// in and whether that has machine code (SASS) or PTX for this chip.
#define _GNU_SOURCE
#include "nullgpu.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  void **h;
  int ok;
  const char *lib;
} Module;
static Module mods[8192];
static int module_count;
typedef struct {
  const void *f;
  const char *name;
  int m;
  int seen;
} Kernel;
static Kernel *kernels;
static int kernel_count;
#define SLOTS (1 << 20)
static int *slots;
static unsigned hash(const void *p) { return ((uintptr_t)p * 0x9E3779B97F4A7C15ull) >> 44; }
void **__cudaRegisterFatBinary(void *b) {
  struct {
    int magic, ver;
    unsigned char *d;
    void *x;
  } *w = b;
  int i = module_count++;
  void **h = malloc(8);
  *h = (void *)(intptr_t)i;
  Module *m = &mods[i];
  m->h = h;
  m->ok = 0;
  Dl_info di;
  m->lib = dladdr(b, &di) ? strdup(di.dli_fname) : "?";
  unsigned char *d = w->d;
  if (*(unsigned *)d == 0xBA55ED50u) {
    unsigned long long fs = *(unsigned long long *)(d + 8);
    unsigned hs = *(unsigned short *)(d + 6);
    unsigned char *q = d + hs, *e = q + fs;
    while (q < e) {
      unsigned short k = *(unsigned short *)q;
      unsigned hz = *(unsigned *)(q + 4);
      unsigned long long sz = *(unsigned long long *)(q + 8);
      unsigned ar = *(unsigned *)(q + 28);
      if (k == 2 && ar == 90)
        m->ok |= 1;
      if (k == 1 && ar <= 90)
        m->ok |= 2;
      if (k == 2 && ar / 10 == 8)
        m->ok |= 0;
      q += hz + sz;
    }
  }
  return h;
}
void __cudaRegisterFunction(void **h, const char *hf, char *df, const char *dn, int t, void *a, void *b,
                            void *c, void *d, int *e) {
  if (!kernels) {
    kernels = calloc(400000, sizeof(Kernel));
    slots = calloc(SLOTS, 4);
  }
  int i = ++kernel_count;
  if (i >= 400000)
    return;
  kernels[i] = (Kernel){hf, dn, (int)(intptr_t)*h, 0};
  unsigned x = hash(hf);
  while (slots[x & (SLOTS - 1)])
    x++;
  slots[x & (SLOTS - 1)] = i;
}
static void launch(const void *f) {
  if (!kernels)
    return;
  unsigned x = hash(f);
  int i;
  while ((i = slots[x & (SLOTS - 1)])) {
    if (kernels[i].f == f) {
      if (!kernels[i].seen) {
        kernels[i].seen = 1;
        const char *p = getenv("NULLGPU_LOG");
        if (p) {
          char buf[4096];
          Module *m = &mods[kernels[i].m];
          const char *l = strrchr(m->lib, '/');
          int n = snprintf(buf, sizeof buf, "%s %s %s\n",
                           (m->ok & 1)   ? "SASS"
                           : (m->ok & 2) ? "PTX"
                                         : "NOCODE",
                           l ? l + 1 : m->lib, kernels[i].name);
          int fd = open(p, O_CREAT | O_APPEND | O_WRONLY, 0644);
          write(fd, buf, n);
          close(fd);
        }
      }
      return;
    }
    x++;
  }
  const char *p = getenv("NULLGPU_LOG");
  if (p) {
    int fd = open(p, O_CREAT | O_APPEND | O_WRONLY, 0644);
    write(fd, "UNKNOWN\n", 8);
    close(fd);
  }
}
int cudaLaunchKernel(const void *f) {
  launch(f);
  return 0;
}
int __cudaLaunchKernel(const void *f) {
  launch(f);
  return 0;
}
int cudaLaunchCooperativeKernel(const void *f) {
  launch(f);
  return 0;
}
int cudaLaunchKernelExC(void *c, const void *f) {
  launch(f);
  return 0;
}
void __cudaRegisterFatBinaryEnd(void **h) {}
void __cudaUnregisterFatBinary(void **h) {}
void __cudaRegisterVar() {}
char __cudaInitModule(void **h) { return 0; }
unsigned __cudaPushCallConfiguration() { return 0; }
int __cudaPopCallConfiguration() { return 0; }
int __cudaGetKernel(void **k, const void *f) {
  *k = (void *)f;
  return 0;
}
