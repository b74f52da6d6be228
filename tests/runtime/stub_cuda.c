// A stand-in for libcuda.so.1 whose device is the host: cuda-python's own bindings run on it, so
// that what runtime/devices/cuda.py hands them is tested without a GPU. Entries are "add_one"
// (y = x + 1) and "add" (z = x + y), over four floats. What arrives is told on stderr.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef uint64_t Address;
typedef void *Handle;
enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_PTX = 218, NOT_FOUND = 500 };
#define TELL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))

static uintptr_t next_handle = 0x1000;
static Result new_handle(Handle *made) { *made = (Handle)next_handle++; return SUCCESS; }

// The device.
Result cuInit(unsigned flags) { return SUCCESS; }
Result cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Result cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
Result cuDeviceGetName(char *name, int room, int device) {
    snprintf(name, room, "Stub GPU");
    return SUCCESS;
}
Result cuDeviceGetAttribute(int *value, int which, int device) {
    enum { MAJOR = 75, MINOR = 76, SHARED = 97 };
    *value = which == MAJOR ? 9 : which == MINOR ? 0 : which == SHARED ? 232448 : 1;
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(Handle *context, int device) { return new_handle(context); }
Result cuCtxPushCurrent(Handle context) { return context ? SUCCESS : INVALID_VALUE; }
Result cuCtxPopCurrent(Handle *context) { return new_handle(context); }
Result cuDeviceGetDefaultMemPool(Handle *pool, int device) { return new_handle(pool); }
Result cuMemPoolSetAttribute(Handle pool, int which, uint64_t *value) {
    TELL("pool attribute %d = %llx", which, (unsigned long long)*value);
    return SUCCESS;
}
Result cuGetErrorString(Result error, const char **text) { *text = "stub"; return SUCCESS; }

// Memory.
Result cuMemAllocAsync(Address *address, size_t size, Handle stream) {
    if (size > 1u << 30) return OUT_OF_MEMORY;
    *address = (Address)aligned_alloc(256, (size + 255) & ~(size_t)255);
    return SUCCESS;
}
Result cuMemFreeAsync(Address address, Handle stream) { free((void *)address); return SUCCESS; }
Result cuMemHostAlloc(void **block, size_t size, unsigned flags) {
    *block = malloc(size);
    return SUCCESS;
}
Result cuMemFreeHost(void *block) { free(block); return SUCCESS; }
Result cuMemcpyHtoDAsync(Address target, const void *source, size_t size, Handle stream) {
    memcpy((void *)target, source, size);
    return SUCCESS;
}
Result cuMemcpyDtoHAsync(void *target, Address source, size_t size, Handle stream) {
    memcpy(target, (void *)source, size);
    return SUCCESS;
}
Result cuMemcpyDtoDAsync(Address target, Address source, size_t size, Handle stream) {
    memcpy((void *)target, (void *)source, size);
    return SUCCESS;
}
Result cuMemGetInfo(size_t *unused, size_t *total) {
    *unused = 1u << 30;
    *total = 2u << 30;
    return SUCCESS;
}

// Order: all is done at once.
Result cuStreamCreate(Handle *stream, unsigned flags) { return new_handle(stream); }
Result cuStreamDestroy(Handle stream) { return SUCCESS; }
Result cuStreamSynchronize(Handle stream) { return SUCCESS; }
Result cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) { return SUCCESS; }
Result cuEventCreate(Handle *event, unsigned flags) { return new_handle(event); }
Result cuEventDestroy(Handle event) { return SUCCESS; }
Result cuEventRecord(Handle event, Handle stream) { return SUCCESS; }
Result cuEventQuery(Handle event) { return SUCCESS; }
Result cuEventSynchronize(Handle event) { return SUCCESS; }
Result cuEventElapsedTime(float *milliseconds, Handle begin, Handle end) {
    *milliseconds = 0.5f;
    return SUCCESS;
}

// Code. Handles of entries are used again by the next module.
static int dynamic_shared[3] = {49152, 49152, 49152};
Result cuModuleLoadDataEx(Handle *module, const char *image, unsigned count, int *keys,
                          void **values) {
    enum { ERROR_LOG = 5 };
    if (strstr(image, "broken")) {
        for (unsigned i = 0; i < count; i++)
            if (keys[i] == ERROR_LOG) strcpy(values[i], "line 3 is bad");
        return INVALID_PTX;
    }
    TELL("module %s", image);
    return new_handle(module);
}
Result cuModuleUnload(Handle module) {
    TELL("unload");
    dynamic_shared[1] = dynamic_shared[2] = 49152;
    return SUCCESS;
}
Result cuModuleGetFunction(Handle *entry, Handle module, const char *name) {
    *entry = (Handle)(uintptr_t)(!strcmp(name, "add_one") ? 1 : !strcmp(name, "add") ? 2 : 0);
    return *entry ? SUCCESS : NOT_FOUND;
}
Result cuFuncGetAttribute(int *value, int which, Handle entry) {
    *value = dynamic_shared[(uintptr_t)entry];
    return SUCCESS;
}
Result cuFuncSetAttribute(Handle entry, int which, int value) {
    TELL("attribute %d = %d", which, value);
    dynamic_shared[(uintptr_t)entry] = value;
    return SUCCESS;
}

typedef struct { int id; char padding[4]; unsigned value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    Handle stream;
    Attribute *attributes;
    unsigned count;
} Config;
typedef struct { int entry; float *memory[3]; } Node;
typedef struct { int count; Node nodes[64]; } Graph;

static void run(const Node *node) {
    for (int i = 0; i < 4; i++)
        if (node->entry == 1)
            node->memory[1][i] = node->memory[0][i] + 1;
        else
            node->memory[2][i] = node->memory[0][i] + node->memory[1][i];
}
static Node node_of(Handle entry, void **parameters) {
    Node node = {(int)(uintptr_t)entry};
    for (int i = 0; i <= node.entry; i++) node.memory[i] = *(float **)parameters[i];
    return node;
}
Result cuLaunchKernelEx(const Config *config, Handle entry, void **parameters, void **extra) {
    TELL("launch %u,%u,%u of %u, shared %u, cluster %u", config->grid[0], config->grid[1],
         config->grid[2], config->block[0], config->shared,
         config->count ? config->attributes[0].value[0] : 0);
    Node node = node_of(entry, parameters);
    run(&node);
    return SUCCESS;
}
typedef struct {
    Handle entry;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    Handle kernel, context;
} Parameters;
Result cuGraphCreate(Handle *made, unsigned flags) {
    *made = calloc(1, sizeof(Graph));
    return SUCCESS;
}
// A node's handle is its place.
Result cuGraphAddKernelNode(Handle *made, Handle handle, const Handle *before, size_t count,
                               const Parameters *given) {
    Graph *graph = handle;
    if (count ? before[0] != &graph->nodes[graph->count - 1] : graph->count) return INVALID_VALUE;
    TELL("node %u,%u,%u of %u, shared %u", given->grid[0], given->grid[1], given->grid[2],
         given->block[0], given->shared);
    graph->nodes[graph->count] = node_of(given->entry, given->parameters);
    *made = &graph->nodes[graph->count++];
    return SUCCESS;
}
Result cuGraphKernelNodeSetAttribute(Handle node, int which, const unsigned *value) {
    TELL("node attribute %d = %u", which, value[0]);
    return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Handle *made, Handle graph, uint64_t flags) {
    *made = malloc(sizeof(Graph));
    memcpy(*made, graph, sizeof(Graph));
    return SUCCESS;
}
Result cuGraphExecKernelNodeSetParams(Handle executable, Handle node, const Parameters *given) {
    Graph *graph = executable;
    // The nodes here have different entries.
    for (int i = 0; i < graph->count; i++)
        if (graph->nodes[i].entry == (int)(uintptr_t)given->entry) {
            TELL("rebind %d", i);
            graph->nodes[i] = node_of(given->entry, given->parameters);
        }
    return SUCCESS;
}
Result cuGraphDestroy(Handle graph) { free(graph); return SUCCESS; }
Result cuGraphExecDestroy(Handle graph) { free(graph); return SUCCESS; }
Result cuGraphLaunch(Handle handle, Handle stream) {
    Graph *graph = handle;
    TELL("replay %d", graph->count);
    for (int i = 0; i < graph->count; i++) run(&graph->nodes[i]);
    return SUCCESS;
}
Result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                              const uint64_t *dims, const uint64_t *strides, const unsigned *box,
                              const unsigned *steps, int interleave, int swizzle, int promotion,
                              int fill) {
    TELL("map %d: %u dims, %llu,%llu by %llu, box %u,%u, steps %u,%u, swizzle %d", type, rank,
         (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)strides[0],
         box[0], box[1], steps[0], steps[1], swizzle);
    memset(map, 7, 128);
    return SUCCESS;
}

// How the bindings find all of these.
Result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                           int *status) {
    Dl_info here;
    dladdr((void *)cuInit, &here);
    *found = dlsym(dlopen(here.dli_fname, RTLD_NOW), name);
    if (status) *status = !*found;
    return *found ? SUCCESS : NOT_FOUND;
}
Result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
